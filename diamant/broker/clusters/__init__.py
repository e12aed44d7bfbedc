"""Compactions and erasures on any Kafka cluster, from outside."""
