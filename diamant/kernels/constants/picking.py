"""Modes of the loop that picks records."""

WITH_KEY = 0
"""Records with the wanted key."""
WITH_TEXT = 1
"""Records that contain the wanted bytes, and later records with the same keys."""
TOMBSTONES = 2
"""Tombstones, and later records with the same keys."""
WATCHED = 3
"""Records with keys that are already watched."""
