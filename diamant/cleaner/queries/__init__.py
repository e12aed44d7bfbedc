"""The contents of a log at one moment: counts of records and keys, in all and per segment, and the latest record of each key."""
