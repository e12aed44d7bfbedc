"""`diamant topic`, `produce` and `consume`: commands on any Kafka cluster."""
