"""The contents of a log at one moment: record counts, key counts, the latest record of each key."""
