"""The steps of rows in the rewrite. The first four are what becomes of the batch."""

from __future__ import annotations

DROP = 0
COPY = 1
REBUILD = 2
HEADER_ONLY = 3
UNDECIDED = 4
JUDGE = 5
"""Its records must be looked at."""
EXTRA = 6
"""Its bytes are in the extra buffer."""
PLAIN_ENGINE = 7
"""For the plain engine."""
