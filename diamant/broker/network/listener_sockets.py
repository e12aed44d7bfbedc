"""The sockets of listeners: bound before anything else, so that a port in use is reported at once."""

from __future__ import annotations

import socket

from diamant.broker.config.listeners import META_ADDRESSES, Listener


def bound_socket(listener: Listener) -> socket.socket:
    """Return a socket at a listener's address that does not block and does not listen yet; the caller closes it. OSError."""
    is_ipv6 = ":" in listener.host or (not listener.host and socket.has_dualstack_ipv6())
    sock = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_ipv6:
            # An empty host is every interface in both families, "::" the IPv6 ones as written.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if not listener.host else 1)
        sock.bind((listener.host, listener.port))
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def reachable(listener: Listener, sock: socket.socket) -> Listener:
    """Return the socket's address for clients on this machine: its port, and loopback for "every interface"."""
    host = listener.host
    if host in META_ADDRESSES:
        host = "::1" if host == "::" else "127.0.0.1"
    return listener._replace(host=host, port=sock.getsockname()[1])
