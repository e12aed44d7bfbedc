"""`diamant topic`, `group`, `produce` and `consume`: commands on any Kafka cluster."""
