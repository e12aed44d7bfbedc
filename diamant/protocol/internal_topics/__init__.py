"""Records of `__consumer_offsets` and `__transaction_state`, and what consumers put into groups."""
