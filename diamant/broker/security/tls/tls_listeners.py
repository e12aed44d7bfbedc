"""TLS of all listeners of a broker, and of its HTTP port, with the handshake thread that they share."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from diamant.broker.client.client_config import ClientConfig
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.listeners import META_ADDRESSES, TLS_PROTOCOLS, Listener
from diamant.broker.config.ssl_table import TLS
from diamant.broker.security.tls.context import server_context
from diamant.broker.security.tls.handshakes import Handshakes
from diamant.broker.security.tls.key_material import KeyMaterial
from diamant.broker.security.tls.listener_tls import ListenerTls, NewStores
from diamant.broker.security.tls.tls_settings import TlsSettings

if TYPE_CHECKING:
    from diamant.broker.security.tls.throw_away import ThrowAwayCa


class TlsListeners:
    """TLS of one broker. Belongs to the loop thread. `log_refusal(peer, reason)` logs why a connection was closed."""

    def __init__(self, log_refusal: Callable[[str, str], None], authority: ThrowAwayCa | None = None) -> None:
        self._handshakes = Handshakes()
        self._log_refusal = log_refusal
        self.by_name: dict[str, ListenerTls] = {}
        """The listeners of Kafka's protocol, by name."""

        self.authority = authority
        """The throw-away CA, if `diamant.tls` is set. A broker that is started again keeps it, since clients trust it."""
        self.http: ListenerTls | None = None

    def open(self, config: BrokerConfig, listener: Listener) -> ListenerTls:
        """Set up TLS for a listener of Kafka's protocol. Reads its key and trust stores; raises ConfigError."""
        tls = self._made(config, listener)
        self.by_name[listener.name] = tls
        return tls

    def check(self, config: BrokerConfig) -> None:
        """Raise ConfigError if a listener that is open now could not be opened with `config`. Reads key and trust stores."""
        for listener in config.listeners:
            if listener.name in self.by_name:
                self._made(config, listener)

    def _made(self, config: BrokerConfig, listener: Listener) -> ListenerTls:
        settings = TlsSettings.of_listener(config, listener)
        if config[TLS]:
            settings = self._with_throw_away(settings, config)
        return ListenerTls(settings, self._handshakes, self._log_refusal)

    def _with_throw_away(self, settings: TlsSettings, config: BrokerConfig) -> TlsSettings:
        """Fill in missing stores from the throw-away CA."""
        from diamant.broker.security.tls.throw_away import ThrowAwayCa

        if self.authority is None:
            self.authority = ThrowAwayCa()
        if not settings.key_store.is_given:
            issued = self.authority.issue("diamant", hosts=hosts_of(config))
            store = replace(settings.key_store, key=issued.key, certificates=issued.certificate)
            settings = replace(settings, key_store=store)
        if not settings.trust_store.is_given:
            store = replace(settings.trust_store, certificates=self.authority.certificate)
            settings = replace(settings, trust_store=store)
        return settings

    def faulty_context(self, listener: ListenerTls, config: BrokerConfig, *, is_expired: bool) -> ssl.SSLContext:
        """Return a listener's context with a faulty certificate: expired if `is_expired`, else issued for another host."""
        assert self.authority is not None
        hosts = hosts_of(config) if is_expired else ["wrong-host.invalid"]
        issued = self.authority.issue("diamant", hosts=hosts, is_expired=is_expired)
        return server_context(listener.settings, KeyMaterial(f"{issued.certificate}{issued.key}".encode(), None))

    def open_http(self, config: BrokerConfig) -> None:
        """Set up TLS for the HTTP port. Reads its key and trust stores; raises ConfigError."""
        self.http = ListenerTls(TlsSettings.of_http(config), self._handshakes, self._log_refusal)

    def read_stores(self, config: BrokerConfig, listeners: Collection[str], *, with_http: bool) -> list[NewStores]:
        """Read the stores that `config` sets for the named listeners (in capitals) and, if asked, HTTP. Raises ConfigError."""
        stores = [
            NewStores(self.by_name[listener.name], TlsSettings.of_listener(config, listener), config)
            for listener in config.listeners
            if listener.name in self.by_name and listener.name in listeners
        ]
        if with_http and self.http is not None:
            stores.append(NewStores(self.http, TlsSettings.of_http(config), config))
        return stores

    def completed(self, config: ClientConfig, certificate: str | None) -> ClientConfig:
        """Add the throw-away CA and, if named, a client certificate. Raises ValueError if there is no CA to issue it."""
        if self.authority is None:
            if certificate is not None:
                raise ValueError("client certificates are issued only with BrokerConfig(tls=True)")
            return config
        if config.security_protocol not in TLS_PROTOCOLS:
            return config
        config = replace(config, ca=self.authority.certificate)
        if certificate is None:
            return config
        issued = self.authority.issue(certificate)
        return replace(config, certificate=issued.certificate, key=issued.key)

    def close(self) -> None:
        """Abort the handshakes in progress."""
        self._handshakes.close()


def hosts_of(config: BrokerConfig) -> list[str]:
    """Return the names and addresses of a broker: those of this machine, and those of its listeners, advertised or not."""
    told = [listener.host for listener in (*config.listeners, *config.advertised_listeners)]
    hosts = ["localhost", "127.0.0.1", "::1", socket.gethostname(), *told]
    return list(dict.fromkeys(host for host in hosts if host not in META_ADDRESSES))
