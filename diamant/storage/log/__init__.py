"""One partition: append, read, flush, removal and the swap of segments."""
