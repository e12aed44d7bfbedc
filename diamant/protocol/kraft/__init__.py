"""Records and batches of the metadata log."""
