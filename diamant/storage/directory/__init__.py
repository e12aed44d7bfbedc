"""A log directory: its lock, clean-shutdown mark and checkpoints; opening, renaming and removing partitions; copies."""
