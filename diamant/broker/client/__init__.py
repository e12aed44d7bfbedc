"""`diamant.Admin`, a small Kafka client for commands, and the values that they share with the broker."""
