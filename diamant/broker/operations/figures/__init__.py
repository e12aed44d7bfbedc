"""Figures of the records in partitions, counted from time to time for those who look."""
