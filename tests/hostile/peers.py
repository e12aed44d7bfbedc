"""What hostile peers have in common: connections, and requests over and over."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from diamant.protocol.wire.schemas import encode_request_fields
from tests.broker.wire import WireClient
from tests.hostile.measuring import Target


async def wait_s(seconds: float) -> None:
    """Let the attack last."""
    await asyncio.sleep(seconds)


def endpoint(address: str) -> tuple[str, int]:
    """Host and port."""
    host, _, port = address.rpartition(":")
    return host, int(port)


async def opened(address: str, count: int, first: bytes = b"") -> list[socket.socket]:
    """Connections, each of which has sent `first`."""
    loop = asyncio.get_running_loop()
    connections = []
    for number in range(count):
        connection = socket.socket()
        connection.setblocking(False)
        await loop.sock_connect(connection, endpoint(address))
        if first:
            connection.send(first)
        connections.append(connection)
        if number % 50 == 0:
            await asyncio.sleep(0)
    return connections


def end(connections: Iterable[socket.socket]) -> None:
    """Close them all at once."""
    for connection in connections:
        connection.close()


def request(key: int, version: int, fields: dict[str, Any], client_id: bytes = b"hostile") -> bytes:
    """Return a request's frame."""
    return WireClient(":0").frame(key, version, encode_request_fields(key, version, fields), client_id=client_id)


async def drain(connection: socket.socket, seconds: float) -> int:
    """Read what comes for a time; the number of bytes."""
    loop, total, until_s = asyncio.get_running_loop(), 0, time.monotonic() + seconds
    with suppress(TimeoutError, OSError):
        async with asyncio.timeout(seconds):
            while time.monotonic() < until_s:
                received = await loop.sock_recv(connection, 1 << 20)
                if not received:
                    break
                total += len(received)
    return total


async def push(connection: socket.socket, data: bytes, seconds: float) -> int:
    """Send the same bytes over and over, as long as they are taken; the number of bytes."""
    loop, total, until_s = asyncio.get_running_loop(), 0, time.monotonic() + seconds
    with suppress(TimeoutError, OSError):
        async with asyncio.timeout(seconds):
            while time.monotonic() < until_s:
                await loop.sock_sendall(connection, data)
                total += len(data)
    return total


async def pipelined(
    target: Target, frame: bytes, count: int, seconds: float = 3.0, *, address: str | None = None
) -> str:
    """Return the same request over and over on some connections whose answers are read."""
    connections = await opened(address or target.plain, count)
    chunk = frame * max(1, (256 << 10) // len(frame))
    read = await asyncio.gather(
        *(drain(connection, seconds + 0.5) for connection in connections),
        *(push(connection, chunk, seconds) for connection in connections),
    )
    end(connections)
    return f"{sum(read[count:]) // len(frame)} requests, {sum(read[:count]) >> 20} MiB of answers"
