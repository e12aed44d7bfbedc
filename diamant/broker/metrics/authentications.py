"""The figures for the authentication metrics, by listener. A PLAINTEXT listener shows zeros, as in Kafka.

A listener with TLS and SASL counts successes in SASL, and failures in either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from diamant.broker.config.listeners import SASL_PROTOCOLS, Listener
from diamant.broker.security.identity.authentication_counts import AuthenticationCounts

if TYPE_CHECKING:
    from diamant.broker.security.sasl.sasl_listeners import SaslListeners
    from diamant.broker.security.tls.tls_listeners import TlsListeners

Authentications: TypeAlias = tuple[tuple[tuple[str, str], AuthenticationCounts], ...]
"""The listeners' labels with their counts."""

NETWORK_PROCESSOR = "0"
"""The label of Kafka's network threads; Diamant has one."""


def take_authentications(
    listeners: Iterable[Listener], tls: TlsListeners | None, sasl: SaslListeners | None
) -> Authentications:
    """The counts of all listeners."""
    found = []
    for listener in listeners:
        by_tls = None if tls is None else tls.by_name.get(listener.name)
        counts = AuthenticationCounts() if by_tls is None else replace(by_tls.counts)
        if sasl is not None and listener.security_protocol in SASL_PROTOCOLS:
            failed_handshakes = counts.failed
            counts = replace(sasl.counts[listener.name])
            counts.failed += failed_handshakes
        found.append(((listener.name, NETWORK_PROCESSOR), counts))
    return tuple(found)
