"""Sockets, buffers and frames of the Kafka port, and the contract of a handler."""
