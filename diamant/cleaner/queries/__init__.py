"""Queries on a snapshot of a log: counts of records and keys, in total and per segment, and the latest record of each key."""
