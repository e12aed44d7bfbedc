"""The brokers of one process on command: taken down and up, made to lag, given the lead of partitions."""
