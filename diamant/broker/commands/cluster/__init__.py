"""`diamant topic`, `group`, `produce` and `consume`: commands for any Kafka cluster."""
