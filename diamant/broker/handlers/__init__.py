"""The handlers of Kafka's APIs, one file each, by family."""
