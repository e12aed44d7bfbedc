"""A log directory: its lock, clean-shutdown mark and checkpoints; its partitions, their deletion, and copies of it."""
