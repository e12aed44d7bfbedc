"""Kafka's binary formats, without I/O. Errors, primitives and varints are in this folder, the rest in subfolders."""
