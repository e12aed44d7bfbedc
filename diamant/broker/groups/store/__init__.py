"""The groups by id, their committed offsets, and the log that stores them."""
