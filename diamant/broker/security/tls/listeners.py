"""TLS of all that a broker opens: the listeners that have it, by name, and the thread that they share."""

from __future__ import annotations

from collections.abc import Callable, Collection

from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.listeners import Listener
from diamant.broker.security.tls.handshakes import Handshakes
from diamant.broker.security.tls.listener_tls import ListenerTls, NewStores
from diamant.broker.security.tls.settings import TlsSettings


class TlsListeners:
    """Of one broker; its loop thread's. `tell(peer, reason)` logs why a connection was closed."""

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        self._handshakes = Handshakes()
        self._tell = tell
        self.by_name: dict[str, ListenerTls] = {}
        """Of Kafka's protocol, by the names of listeners."""

        self.http: ListenerTls | None = None

    def open(self, config: BrokerConfig, listener: Listener) -> ListenerTls:
        """TLS of a listener of Kafka's protocol. Reads its files; raises ConfigError."""
        tls = ListenerTls(TlsSettings.of_listener(config, listener), self._handshakes, self._tell)
        self.by_name[listener.name] = tls
        return tls

    def open_http(self, config: BrokerConfig) -> None:
        """TLS of the HTTP port. Reads its files; raises ConfigError."""
        self.http = ListenerTls(TlsSettings.of_http(config), self._handshakes, self._tell)

    def read_stores(self, config: BrokerConfig, listeners: Collection[str]) -> list[NewStores]:
        """What listeners of these names (in capitals) would have by `config`. Reads files; raises ConfigError."""
        return [
            NewStores(self.by_name[listener.name], TlsSettings.of_listener(config, listener), config)
            for listener in config.listeners
            if listener.name in self.by_name and listener.name in listeners
        ]

    def close(self) -> None:
        """Give up the handshakes that are in progress."""
        self._handshakes.close()
