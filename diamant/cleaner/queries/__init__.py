"""The contents of a log at one moment: counts of records and keys, also per segment; the latest record of each key."""
