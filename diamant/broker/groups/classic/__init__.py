"""Classic groups, as a pure state machine."""
