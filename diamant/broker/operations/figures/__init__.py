"""Figures of the records in partitions for those who look: when `cleaner/queries` counts them, and what it found last."""
