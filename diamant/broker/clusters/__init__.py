"""Compactions and erasures on any Kafka cluster, carried out by a client."""
