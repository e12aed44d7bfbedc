"""Records of `__consumer_offsets` and `__transaction_state`, and the consumer protocol of classic groups."""
