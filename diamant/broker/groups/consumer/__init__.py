"""Groups of KIP-848, as a pure state machine, and their assignments."""
