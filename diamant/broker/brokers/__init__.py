"""Several brokers in one process, which share one storage: which are up, and which lead each partition or are in sync."""
