"""The rules of a round, int64[RULES]."""

IS_KAFKA = 0
MAP_END_OFFSET = 1
LOG_START_OFFSET = 2
"""-2**63 in mode kafka."""
HEADER_END = 3
"""An emptied batch whose last offset is one below this offset stays as a header (`CleanPlan.header_end`)."""
NOW_MS = 4
NEW_HORIZON_MS = 5
"""The delete horizon to set in batches that have tombstones but no horizon yet; `NO_HORIZON` to set none."""
IS_PROBING = 6
FROZEN_ABOVE = 7
"""Tombstones of batches that begin above this offset do not expire (`CleanPlan.is_frozen`); 2**63 - 1 if all may expire."""
HELD_ABOVE = 8
HELD_SINCE_MS = 9
"""Tombstones of batches that begin above `HELD_ABOVE` expire only with a horizon up to this time (`CleanPlan.is_held`)."""
RULES = 10

NO_HORIZON = -1
