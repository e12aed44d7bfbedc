"""What a log holds at one moment: record counts, key counts, the latest record of each key."""
