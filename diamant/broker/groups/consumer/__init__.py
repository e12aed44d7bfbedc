"""Groups of KIP-848: their state and the records that hold it."""
