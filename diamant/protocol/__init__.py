"""Kafka's binary formats, without I/O; errors, primitives and varints are here, the rest in folders."""
