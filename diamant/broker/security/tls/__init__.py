"""TLS: keys and certificates, the handshakes of a broker, and connections that speak it."""
