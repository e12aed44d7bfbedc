"""Opening and recovery of a partition after a stop or a crash."""
