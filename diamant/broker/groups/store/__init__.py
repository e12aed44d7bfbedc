"""Groups by id, their committed offsets, and their log."""
