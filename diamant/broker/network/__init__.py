"""The Kafka port: sockets, buffers and frames, and the contract of a handler."""
