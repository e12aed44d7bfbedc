"""Classic groups, as a pure state machine: a file for each event, and one for the rebalance."""
