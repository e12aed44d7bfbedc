"""The producers of a partition: their state, their transactions, and the snapshots of both."""
