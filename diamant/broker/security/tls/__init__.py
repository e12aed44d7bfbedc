"""TLS: keys and certificates, handshakes, and encrypted connections."""
