"""Kafka's bytes and what they mean, without I/O: errors, primitives and varints here, the rest in folders."""
