"""Classic groups as a pure state machine: one module per event, and one for rebalances."""
