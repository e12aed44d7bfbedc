"""Modes of the loop that picks records."""

from __future__ import annotations

WITH_KEY = 0
"""Records with a key."""
WITH_TEXT = 1
"""Records with some bytes in them, and the later ones of their keys."""
TOMBSTONES = 2
"""Tombstones, and the later records of their keys."""
WATCHED = 3
"""Records of the keys that are watched already."""
