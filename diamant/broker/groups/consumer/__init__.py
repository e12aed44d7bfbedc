"""Groups of KIP-848: their state and its records."""
