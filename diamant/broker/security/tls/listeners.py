"""TLS of all that a broker opens: the listeners that have it, by name, and the thread that they share."""

from __future__ import annotations

from collections.abc import Callable

from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.listeners import Listener
from diamant.broker.security.tls.handshakes import Handshakes
from diamant.broker.security.tls.listener_tls import ListenerTls
from diamant.broker.security.tls.settings import TlsSettings


class TlsListeners:
    """Of one broker; its loop thread's. `tell(peer, reason)` logs why a connection was closed."""

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        self._handshakes = Handshakes()
        self._tell = tell
        self.by_name: dict[str, ListenerTls] = {}
        """Of Kafka's protocol, by the names of listeners."""

    def open(self, config: BrokerConfig, listener: Listener) -> ListenerTls:
        """TLS of a listener of Kafka's protocol. Reads its files; raises ConfigError."""
        tls = ListenerTls(TlsSettings.of_listener(config, listener), self._handshakes, self._tell)
        self.by_name[listener.name] = tls
        return tls

    def close(self) -> None:
        """Give up the handshakes that are in progress."""
        self._handshakes.close()
