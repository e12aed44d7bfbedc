"""The TLS settings of one listener or of the HTTP port, collected from the configuration.

Source: SslConfigs, BrokerSecurityConfigs, SaslChannelBuilder (client authentication beside SASL, KIP-684).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, cast

from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.broker_table import BROKER_CONFIGS
from diamant.broker.config.listeners import SASL_SSL, Listener
from diamant.broker.config.ssl_table import HTTP_PREFIX
from diamant.storage.config_key import Value

Lookup: TypeAlias = Callable[[str], tuple[str, Value]]
"""Maps a setting's name (`ssl.client.auth`) to the full name of the configuration that sets it and to its value."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """A key store or a trust store. `name` is the full name of the setting for its location, for messages."""

    name: str
    type: str
    location: str | None
    password: str | None
    key_password: str | None
    key: str | None
    """The private key of a key store, in PEM."""
    certificates: str | None
    """The chain of a key store or the certificates of a trust store, in PEM."""

    @property
    def is_given(self) -> bool:
        """True if the configuration names a file or contains PEM."""
        return bool(self.location or self.key or self.certificates)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The TLS settings of a listener. `where` names the listener in messages."""

    where: str
    key_store: StoreSettings
    trust_store: StoreSettings
    client_auth: str
    protocols: tuple[str, ...]
    cipher_suites: tuple[str, ...]
    mapping_rules: str

    @classmethod
    def of_listener(cls, config: BrokerConfig, listener: Listener) -> TlsSettings:
        """Return a Kafka listener's settings: for each, the listener's own (`listener.name.NAME.ssl.*`), or else the broker's."""

        def lookup(setting: str) -> tuple[str, Value]:
            name, value = config.of_listener(listener.name, setting)
            if setting == "ssl.client.auth" and listener.security_protocol == SASL_SSL and name == setting:
                return name, "none"  # with SASL, the broker-wide setting has no effect
            return name, value

        return _settings(str(listener), lookup)

    @classmethod
    def of_http(cls, config: BrokerConfig) -> TlsSettings:
        """Return the settings of the HTTP port (`diamant.http.ssl.*`), which uses TLS if it has a key store."""

        def lookup(setting: str) -> tuple[str, Value]:
            name = f"{HTTP_PREFIX}{setting}"
            return name, config[name] if name in BROKER_CONFIGS else None

        return _settings("the HTTP port", lookup)


def _settings(where: str, lookup: Lookup) -> TlsSettings:
    def text(setting: str) -> str | None:
        return cast(str | None, lookup(setting)[1])

    def store(kind: str) -> StoreSettings:
        is_key_store = kind == "ssl.keystore"
        return StoreSettings(
            name=lookup(f"{kind}.location")[0],
            type=(text(f"{kind}.type") or "").upper(),
            location=text(f"{kind}.location"),
            password=text(f"{kind}.password"),
            key_password=text("ssl.key.password") if is_key_store else None,
            key=text("ssl.keystore.key") if is_key_store else None,
            certificates=text("ssl.keystore.certificate.chain" if is_key_store else "ssl.truststore.certificates"),
        )

    return TlsSettings(
        where=where,
        key_store=store("ssl.keystore"),
        trust_store=store("ssl.truststore"),
        client_auth=text("ssl.client.auth") or "none",
        protocols=tuple(cast(list[str], lookup("ssl.enabled.protocols")[1] or [])),
        cipher_suites=tuple(cast(list[str], lookup("ssl.cipher.suites")[1] or [])),
        mapping_rules=text("ssl.principal.mapping.rules") or "DEFAULT",
    )
