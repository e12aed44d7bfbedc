"""The handlers of Kafka's APIs, by family. A handler's docstring lists all known deviations from Kafka."""
