"""Records of the metadata log."""
