"""Ghosts: keys that consumer groups may still hold although they were deleted."""
