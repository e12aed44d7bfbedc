"""Classic groups as a pure state machine: one file per event, and one for the rebalance."""
