"""Consumer groups (KIP-848): their state and its records."""
