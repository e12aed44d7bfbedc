"""`diamant.Admin`, and the values that it shares with the broker."""
