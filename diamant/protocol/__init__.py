"""Kafka's bytes and what they mean: the wire protocol, record batches, compression, checksums.

Sans-I/O: bytes in, values out, and back. Nothing here opens a file or a socket, reads a clock, logs or waits; errors
are those of errors.py, and whatever bytes a peer or a disk hands over, nothing else is raised for them. For files see
diamant/storage, for sockets diamant/broker.
"""
