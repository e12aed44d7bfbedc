"""What clients may ask beyond Kafka: compact, count, explain, latest, clock, status."""
