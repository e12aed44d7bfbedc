"""Consumer groups (KIP-848): their state, and the records that describe it."""
