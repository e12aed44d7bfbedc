"""Kafka's binary formats, without I/O. Errors, primitives and varints are in this package, the rest in subpackages."""
