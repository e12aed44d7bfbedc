"""`diamant topic`, `group`, `user`, `acl`, `produce`, `consume` and `audit`: commands for any Kafka cluster."""
