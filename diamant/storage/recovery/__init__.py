"""Opening partitions and whole directories after a stop or a crash."""
