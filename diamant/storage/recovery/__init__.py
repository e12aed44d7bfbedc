"""Opening and recovery of partitions and log directories after a stop or a crash."""
