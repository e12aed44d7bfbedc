"""Commands for Kafka clusters other than Diamant."""
