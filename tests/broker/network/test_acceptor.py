"""Connections as they are accepted."""

from __future__ import annotations

import socket

from tests.broker.network.serving import KEY, VERSION, echo, serving
from tests.broker.wire import WireClient


async def test_connections_send_at_once_and_have_kafkas_buffers() -> None:
    """Nagle's algorithm is off, or the end of each answer would wait for a delayed acknowledgement; buffers as set."""
    async with (
        serving(echo, send_buffer_bytes=30_000, receive_buffer_bytes=40_000) as (server, address),
        WireClient(address) as client,
    ):
        client.writer.write(client.frame(KEY, VERSION, b"x"))
        assert await client.receive_frame() == (1, b"x")
        [connection] = server.connections
        assert connection._transport is not None
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 60_000  # Linux counts its own overhead as well
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 80_000
