"""Operations that Kafka does not have: compact, count, explain, latest, clock, status."""
