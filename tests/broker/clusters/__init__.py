"""Erasures and compactions on any Kafka cluster: against Diamant as a Kafka like any other, and against Apache Kafka."""
