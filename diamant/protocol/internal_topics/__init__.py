"""Records of the coordinators' topics, and the consumer protocol of classic groups."""
