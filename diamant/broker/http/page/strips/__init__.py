"""Partitions as strips of their segments."""
