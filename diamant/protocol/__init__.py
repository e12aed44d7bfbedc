"""Kafka's binary formats, without I/O. Errors, primitives and varints are here, the rest is in subfolders."""
