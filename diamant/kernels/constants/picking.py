"""Modes of the loop that picks records."""

WITH_KEY = 0
"""Records with a key."""
WITH_TEXT = 1
"""Records that contain some bytes, and later records of their keys."""
TOMBSTONES = 2
"""Tombstones, and later records of their keys."""
WATCHED = 3
"""Records of keys that are watched already."""
