"""State, transactions and snapshots of a partition's producers."""
