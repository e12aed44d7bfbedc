"""One partition: append, read, producer state, and the swap of segments."""
