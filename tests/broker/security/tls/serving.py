"""A TLS server for tests, whose responses come from a function."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Mapping

from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.network.api import Dispatch, frame_header
from diamant.broker.network.server import Server
from diamant.broker.network.server_limits import ServerLimits
from diamant.broker.security.tls.listener_tls import ListenerTls
from diamant.broker.security.tls.tls_listeners import TlsListeners
from tests.broker.security.tls.certificates import broker_properties


@contextlib.asynccontextmanager
async def serving_tls(
    dispatch: Dispatch, properties: Mapping[str, str] | None = None, **limits: int
) -> AsyncIterator[tuple[Server, str, ListenerTls]]:
    """A server, its address, and its TLS."""
    values = {"max_frame_bytes": 1 << 23, "max_connections": 100, "max_idle_ms": 60_000, **limits}
    server = Server(dispatch, frame_header, ServerLimits(**values))
    config = BrokerConfig(listen="SSL://127.0.0.1:0", properties={**broker_properties(), **(properties or {})})
    secured = TlsListeners(server.refused.log)
    sock = socket.socket()
    try:
        tls = secured.open(config, config.listeners[0])
        sock.bind(("127.0.0.1", 0))
        server.listen(sock, "SSL", "", 0, "SSL", tls)
        yield server, f"localhost:{sock.getsockname()[1]}", tls
    finally:
        secured.close()
        await server.close(5)
        sock.close()
