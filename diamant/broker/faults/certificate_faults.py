"""Faults of certificates: TLS connections that get an expired certificate, or that of another host.

They need a broker with a throw-away CA (`BrokerConfig(tls=True)`): clients trust the signer, so only the certificate's contents
can make them refuse it. The context for each kind and listener is made once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from diamant.broker.faults.fault import Fault, Firing
from diamant.broker.faults.spec import FaultError

if TYPE_CHECKING:
    import ssl

    from diamant.broker.node.node import Node
    from diamant.broker.security.tls.listener_tls import ListenerTls

HANDSHAKE = "TLS handshake"
"""Stands for the API name in counts and logs."""


class CertificateFaults:
    """The certificate faults of one broker. Belongs to the loop thread. `installed`: all faults, in matching order."""

    def __init__(self, node: Node, installed: Mapping[int, Fault]) -> None:
        self._node = node
        self._installed = installed
        self._contexts: dict[tuple[str, str], ssl.SSLContext] = {}

    def install(self) -> None:
        """Choose the certificate of each connection from now on. FaultError without a throw-away CA."""
        tls = self._node.tls
        if tls is None or tls.authority is None:
            raise FaultError("certificate: needs a broker with its own CA, BrokerConfig(tls=True)")
        for listener in tls.by_name.values():
            listener.choose = self._choose

    def uninstall(self) -> None:
        """Stop choosing certificates. Does nothing the second time."""
        if self._node.tls is not None:
            for listener in self._node.tls.by_name.values():
                listener.choose = None

    def _choose(self, listener: ListenerTls, peer: str) -> ssl.SSLContext | None:
        for fault in self._installed.values():
            kind = fault.spec.certificate
            if kind is not None and fault.draws():
                fault.fire(Firing(self._node.env.clock.now_ms(), HANDSHAKE, 0, None, peer, ()))
                return self._context(listener, kind)
        return None

    def _context(self, listener: ListenerTls, kind: str) -> ssl.SSLContext:
        key = listener.settings.where, kind
        if key not in self._contexts:
            assert self._node.tls is not None
            self._contexts[key] = self._node.tls.faulty_context(
                listener, self._node.config, is_expired=kind == "expired"
            )
        return self._contexts[key]
