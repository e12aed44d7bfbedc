"""The steps of rows in the rewrite. The first four are final outcomes of a batch."""

DROP = 0
COPY = 1
REBUILD = 2
HEADER_ONLY = 3
UNDECIDED = 4
JUDGE = 5
"""The batch's records must be read."""
EXTRA = 6
"""The batch's output is in the extra buffer."""
PLAIN_ENGINE = 7
"""The plain engine must process the batch."""
