"""Hand-written codecs for frequent requests and responses."""
