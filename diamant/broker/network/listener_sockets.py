"""The sockets of listeners and their addresses. Sockets are bound before they listen, so a port in use is reported early."""

from __future__ import annotations

import asyncio
import socket
from typing import NamedTuple

from diamant.broker.config.listeners import META_ADDRESSES, Listener
from diamant.broker.network.api import ConnectionInfo
from diamant.broker.security.identity.principal import ANONYMOUS


def bound_socket(listener: Listener) -> socket.socket:
    """Bind a non-blocking socket to a listener's address; it does not listen yet. The caller has to close it. Raises OSError."""
    is_ipv6 = ":" in listener.host or (not listener.host and socket.has_dualstack_ipv6())
    sock = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_ipv6:
            # An empty host means every IPv4 and IPv6 interface, "::" only every IPv6 interface.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if not listener.host else 1)
        sock.bind((listener.host, listener.port))
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def reachable(listener: Listener, sock: socket.socket) -> Listener:
    """Return the socket's address for clients on this machine: the actual port, and loopback for "every interface"."""
    host = listener.host
    if host in META_ADDRESSES:
        host = "::1" if host == "::" else "127.0.0.1"
    return listener._replace(host=host, port=sock.getsockname()[1])


def plain_host(address: str) -> str:
    """Return a peer's address, without the prefix that a dual-stack socket adds to IPv4 addresses."""
    return address.removeprefix("::ffff:")


class ListenerEndpoint(NamedTuple):
    """The listener of a connection. If no advertised host is set, the address that the client connected to is advertised."""

    listener_name: str
    advertised_host: str
    advertised_port: int
    security_protocol: str
    broker_id: int

    def connection_info(self, transport: asyncio.BaseTransport) -> ConnectionInfo:
        """Return the information about a new connection."""
        peer = transport.get_extra_info("peername")
        local = transport.get_extra_info("sockname")
        return ConnectionInfo(
            self.listener_name,
            f"{peer[0]}:{peer[1]}" if peer else "unknown peer",
            plain_host(peer[0]) if peer else "",
            self.advertised_host or plain_host(local[0]),
            self.advertised_port or local[1],
            self.security_protocol,
            transport.get_extra_info("principal", ANONYMOUS),
            broker_id=self.broker_id,
        )
