"""The authentication counts of one listener. A listener without SASL counts its TLS handshakes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class AuthenticationCounts:
    """Kafka's counts (SelectorMetrics of `org.apache.kafka.common.network.Selector`, SocketServer)."""

    successful: int = 0
    failed: int = 0
    successful_again: int = 0
    """Re-authentications (KIP-368)."""
    failed_again: int = 0
    expired: int = 0
    """Connections closed because their session expired without re-authentication."""
