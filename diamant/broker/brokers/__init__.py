"""Several brokers in one process: which are up, who leads a partition, who is in sync. There is one storage."""
