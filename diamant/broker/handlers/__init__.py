"""The handlers of Kafka's APIs, by family. A handler's docstring lists its deviations from Kafka; without one, none is known."""
