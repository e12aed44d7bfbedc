"""The listeners of a broker and their advertised addresses, parsed from `listeners` and `advertised.listeners`.

A listener is ``NAME://host:port``. An empty host binds every interface, port 0 takes a free one, ``[::1]`` is IPv6.
Names are in capitals; `listener.security.protocol.map` assigns each a security protocol. Kafka: ``ListenersValidator``,
``EndPoint``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from diamant.storage.config_key import ConfigError

PLAINTEXT = "PLAINTEXT"
SASL_PLAINTEXT = "SASL_PLAINTEXT"
SASL_SSL = "SASL_SSL"
SECURITY_PROTOCOLS = (PLAINTEXT, "SSL", SASL_PLAINTEXT, SASL_SSL)
"""In the order of their numbers in Kafka's `SecurityProtocol`."""
SASL_PROTOCOLS = (SASL_PLAINTEXT, SASL_SSL)
TLS_PROTOCOLS = ("SSL", SASL_SSL)
META_ADDRESSES = ("0.0.0.0", "::", "")  # noqa: S104  (nothing is bound here)
"""Hosts that mean "every interface": valid for binding, useless to a client."""


class Listener(NamedTuple):
    """One listener. ``host`` is empty for every interface; IPv6 hosts have no brackets."""

    name: str
    host: str
    port: int
    security_protocol: str = PLAINTEXT
    broker: int = 0
    """The index of its broker among the `diamant.brokers` of this process, from 0."""

    def of_broker(self, broker: int) -> Listener:
        """Return this listener for another broker of this process: brokers have consecutive ports, but port 0 stays 0."""
        return self._replace(port=self.port + broker if self.port else 0, broker=broker)

    @property
    def address(self) -> str:
        """``host:port`` as clients write it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can connect."""
        if self.host in ("localhost", "127.0.0.1", "::1"):
            return True
        import ipaddress

        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def http_scheme(self) -> str:
        """The URL scheme if this is the HTTP port: `https` with TLS, else `http`."""
        return "https" if self.security_protocol in TLS_PROTOCOLS else "http"

    def __str__(self) -> str:
        return f"{self.name}://{self.address}"


@dataclass(slots=True)
class Addresses:
    """The addresses of a running broker, with actual ports."""

    kafka: list[Listener]
    http: Listener | None = None
    """The address for clients on this machine."""
    http_bound: Listener | None = None
    """The bound address; its host is that of `diamant.http.listen`, possibly every interface."""

    @property
    def http_url(self) -> str | None:
        """The URL of the HTTP port for clients on this machine, such as ``http://host:port``; None if HTTP is off."""
        return None if self.http is None else f"{self.http.http_scheme}://{self.http.address}"


_LISTENER = re.compile(r"([^:/\s]+)://(?:\[([0-9A-Za-z:.%_-]*)\]|([0-9A-Za-z.%_-]*)):([0-9]{1,5})", re.ASCII)
_ADDRESS = re.compile(r"(?:\[[0-9A-Za-z:.%_-]*\]|[0-9A-Za-z.%_-]*):[0-9]{1,5}", re.ASCII)


def listener_text(address: str, protocol: str = PLAINTEXT) -> str:
    """Turn a bare ``host:port`` into a listener named after its protocol; return any other string unchanged."""
    return f"{protocol}://{address}" if _ADDRESS.fullmatch(address) else address


def parse_address(config_name: str, text: str, listener_name: str) -> Listener:
    """Parse ``host:port`` of a non-Kafka port as a listener with this name. Raises ConfigError, which names the configuration."""
    if _ADDRESS.fullmatch(text) is None or int(text.rpartition(":")[2]) > 0xFFFF:
        raise ConfigError(f"{config_name}: {text!r} is not host:port with a port from 0 to 65535")
    return _parse_listener(config_name, f"{listener_name}://{text}", {listener_name: PLAINTEXT})


def parse_listeners(
    config_name: str, texts: Sequence[str], protocols: Mapping[str, str], *, names_may_share_ports: bool = False
) -> list[Listener]:
    """Parse the listeners of one configuration. Raises ConfigError, which names the configuration.

    ``protocols``: the security protocols, by listener name. Two listeners must not have the same name. They may have the same
    address only if the port is 0 or ``names_may_share_ports`` is set (advertised listeners may be behind one proxy).
    """
    listeners: list[Listener] = []
    for text in texts:
        listener = _parse_listener(config_name, text, protocols)
        for other in listeners:
            if other.name == listener.name:
                raise ConfigError(f"{config_name}: the name {listener.name} occurs twice: {other}, {listener}")
            if other.port == listener.port != 0 and other.host == listener.host and not names_may_share_ports:
                raise ConfigError(f"{config_name}: {other} and {listener} would use the same port")
        listeners.append(listener)
    return listeners


def _parse_listener(config_name: str, text: str, protocols: Mapping[str, str]) -> Listener:
    match = _LISTENER.fullmatch(text)
    if match is None or int(match[4]) > 0xFFFF:
        raise ConfigError(f"{config_name}: {text!r} is not NAME://host:port with a port from 0 to 65535")
    name = match[1].upper()
    protocol = protocols.get(name)
    if protocol is None:
        raise ConfigError(
            f"{config_name}: listener {name} of {text!r} has no security protocol: add {name}:PLAINTEXT to "
            "listener.security.protocol.map"
        )
    return Listener(name, match[2] or match[3] or "", int(match[4]), protocol)


def parse_protocol_map(text: str) -> dict[str, str]:
    """Parse `listener.security.protocol.map`, ``NAME:PROTOCOL,...``, to a dictionary in upper case. Raises ConfigError."""
    protocols: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = (part.strip().upper() for part in entry.rpartition(":"))
        if not (name and colon) or protocol not in SECURITY_PROTOCOLS:
            allowed = ", ".join(SECURITY_PROTOCOLS)
            raise ConfigError(f"listener.security.protocol.map: {entry!r} is not NAME:PROTOCOL with one of {allowed}")
        if name in protocols:
            raise ConfigError(f"listener.security.protocol.map: the name {name} occurs twice")
        protocols[name] = protocol
    return protocols
