"""The contents of a log at one moment: counts of records and keys, by segment, too; the latest record of each key."""
