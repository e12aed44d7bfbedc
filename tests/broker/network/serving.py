"""A server of the Kafka port whose responses come from a function."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

from diamant.broker.network.api import ConnectionInfo, frame_header
from diamant.broker.network.server import Server
from diamant.broker.network.server_limits import ServerLimits
from diamant.protocol.wire.server_connection import Request

Dispatch = Callable[[ConnectionInfo, Request], Any]
KEY, VERSION = 3, 0


def echo(_: ConnectionInfo, request: Request) -> bytes:
    """Answer with the request's body."""
    return bytes(request.body)


@contextlib.asynccontextmanager
async def serving(dispatch: Dispatch, **limits: int) -> AsyncIterator[tuple[Server, str]]:
    """A server and its address."""
    values = {"max_frame_bytes": 1 << 20, "max_connections": 100, "max_idle_ms": 60_000, **limits}
    server = Server(dispatch, frame_header, ServerLimits(**values))
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{sock.getsockname()[1]}"
    server.listen(sock, "PLAINTEXT", "", 0)
    try:
        yield server, address
    finally:
        await server.close(5)
