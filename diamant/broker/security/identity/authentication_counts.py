"""Counts of how clients of one listener have authenticated: by SASL, and by the handshake where TLS is all that there is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class AuthenticationCounts:
    """As Kafka counts (SelectorMetrics of `org.apache.kafka.common.network.Selector`, SocketServer)."""

    successful: int = 0
    failed: int = 0
    successful_again: int = 0
    """Re-authentications (KIP-368)."""
    failed_again: int = 0
    expired: int = 0
    """Connections that were closed as their session had ended, and the client had not authenticated again."""
