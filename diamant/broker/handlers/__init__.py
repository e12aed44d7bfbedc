"""Handlers for Kafka's APIs, grouped by family. Each handler's docstring lists all known deviations from Kafka."""
