"""The log of one partition: appends, reads, flushes, and the removal and replacement of segments."""
