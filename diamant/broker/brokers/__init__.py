"""Several brokers in one process: which are up, which lead each partition, which are in sync. They share one storage."""
