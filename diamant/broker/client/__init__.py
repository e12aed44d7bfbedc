"""`diamant.Admin`, and a small Kafka client for commands."""
