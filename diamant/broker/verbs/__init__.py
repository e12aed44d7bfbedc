"""What clients may ask for beyond Kafka: compact, explain, erase, and the clock. One file each, imported on first use."""
