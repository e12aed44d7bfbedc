"""Groups by id, with their committed offsets, and the log that holds them."""
