"""Ghosts: deleted keys that consumer groups may still hold."""
