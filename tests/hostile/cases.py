"""The cases: what hostile peers do, each a function of the target and of a size."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from diamant.protocol.wire.schemas import encode_request_fields
from tests.broker.wire import (
    API_VERSIONS,
    DESCRIBE_CONFIGS,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    WireClient,
    fetch_fields,
    produce_fields,
)
from tests.hostile.measuring import Target

INT_MAX = 2**31 - 1


class Case(NamedTuple):
    """A case, and its size: in the suite, and in full."""

    attack: Callable[[Target, int], Awaitable[str]]
    small: int
    full: int
    seconds: float = 3.0


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
    """A request's frame."""
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


# Connections


async def idle(target: Target, count: int) -> str:
    """Connections that send nothing, and then go all at once."""
    connections = await opened(target.plain, count)
    await wait_s(1)
    end(connections)
    await wait_s(1)
    return f"{count} connections"


async def half_open(target: Target, count: int) -> str:
    """Connections that begin a frame and do not go on."""
    connections = await opened(target.plain, count, struct.pack(">ihh", 1000, API_VERSIONS, 2))
    await wait_s(1)
    end(connections)
    await wait_s(1)
    return f"{count} connections"


async def churn(target: Target, count: int) -> str:
    """Connections that come and go as fast as one process can."""
    for _ in range(count // 50):
        end(await opened(target.plain, 50, b"\0"))
    return f"{count} connections"


async def announced(target: Target, count: int) -> str:
    """Frames of 2 GB and of the most that is allowed, announced and not sent."""
    too_large = await opened(target.plain, count, struct.pack(">i", INT_MAX) + bytes(100))
    allowed = await opened(target.plain, count, struct.pack(">i", 100 << 20) + bytes(100))
    before = await opened(target.sasl, count, struct.pack(">i", INT_MAX) + bytes(100))
    await wait_s(1)
    end([*too_large, *allowed, *before])
    return f"{3 * count} frames"


async def slow_writers(target: Target, count: int) -> str:
    """Connections that send a byte of a large frame now and then."""
    frame = request(PRODUCE, 7, produce_fields("second", 0, bytes(1 << 20)))
    connections = await opened(target.plain, count, frame[:2])
    for position in range(2, 32):
        for connection in connections:
            with suppress(BlockingIOError, ConnectionError):
                connection.send(frame[position : position + 1])
        await wait_s(0.05)
    end(connections)
    return f"{count} connections"


async def slow_readers(target: Target, count: int) -> str:
    """Connections that ask for everything, many times, and read nothing."""
    ask = request(METADATA, 1, {"topics": None}) * 20
    connections = await opened(target.plain, count, ask)
    await wait_s(3)
    end(connections)
    return f"{count} connections"


# Requests


async def pipelined(target: Target, frame: bytes, count: int, seconds: float = 3.0) -> str:
    """The same request over and over on some connections whose answers are read."""
    connections = await opened(target.plain, count)
    chunk = frame * max(1, (256 << 10) // len(frame))
    read = await asyncio.gather(
        *(drain(connection, seconds + 0.5) for connection in connections),
        *(push(connection, chunk, seconds) for connection in connections),
    )
    end(connections)
    return f"{sum(read[count:]) // len(frame)} requests, {sum(read[:count]) >> 20} MiB of answers"


async def pipelined_versions(target: Target, count: int) -> str:
    """ApiVersions, as many as the connection takes."""
    return await pipelined(target, request(API_VERSIONS, 2, {}), count)


async def pipelined_configs(target: Target, count: int) -> str:
    """DescribeConfigs of the broker: a small request with a large answer."""
    fields = {"resources": [{"resource_type": 4, "resource_name": "1", "configuration_keys": None}]}
    return await pipelined(target, request(DESCRIBE_CONFIGS, 4, fields | {"include_synonyms": True}), count)


async def pipelined_metadata(target: Target, count: int) -> str:
    """Metadata of all topics."""
    return await pipelined(target, request(METADATA, 9, {"topics": None}), count)


async def unknown_topics(target: Target, count: int) -> str:
    """Metadata of topics that do not exist, many in a request, again and again."""
    fields = {"topics": [{"name": f"unknown-{number}"} for number in range(count)]}
    return await pipelined(target, request(METADATA, 4, fields | {"allow_auto_topic_creation": False}), 1)


async def many_offsets(target: Target, count: int) -> str:
    """ListOffsets of many partitions."""
    partitions = [{"partition_index": number, "timestamp": -1} for number in range(count)]
    fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "second", "partitions": partitions}]}
    return await pipelined(target, request(LIST_OFFSETS, 5, fields), 1)


async def many_fetched(target: Target, count: int) -> str:
    """Fetch of many partitions."""
    fields = fetch_fields("second", 0)
    one = fields["topics"][0]["partitions"][0]
    fields["topics"][0]["partitions"] = [one | {"partition": number} for number in range(count)]
    return await pipelined(target, request(FETCH, 12, fields), 1)


async def many_configs(target: Target, count: int) -> str:
    """DescribeConfigs of one topic, many times in one request."""
    one = {"resource_type": 2, "resource_name": "second", "configuration_keys": None}
    fields = {"resources": [one] * count, "include_synonyms": True, "include_documentation": True}
    return await pipelined(target, request(DESCRIBE_CONFIGS, 4, fields), 1)


# TLS


async def tls_silent(target: Target, count: int) -> str:
    """Handshakes that never begin."""
    connections = await opened(target.tls, count)
    await wait_s(1)
    end(connections)
    return f"{count} connections"


async def tls_stalled(target: Target, count: int) -> str:
    """Handshakes that stop after their first message."""
    hello = client_hello(target)
    connections = await opened(target.tls, count, hello)
    await wait_s(1)
    end(connections)
    return f"{count} connections"


async def tls_garbage(target: Target, count: int) -> str:
    """A ClientHello with garbage in it, or after it."""
    hello = client_hello(target)
    for number in range(count):
        spoiled = bytearray(hello)
        spoiled[5 + number % (len(hello) - 5)] ^= 0xFF
        end(await opened(target.tls, 1, bytes(spoiled) + b"\x17\x03\x03\x40\x00" + bytes(100)))
    await wait_s(0.5)
    return f"{count} handshakes"


def client_hello(target: Target) -> bytes:
    """The first message of a client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = target.context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read()


CASES: dict[str, Case] = {
    "idle connections": Case(idle, 200, 10_000),
    "frames begun": Case(half_open, 200, 10_000),
    "connections that come and go": Case(churn, 300, 10_000),
    "frames of 2 GB announced": Case(announced, 50, 2000),
    "slow writers": Case(slow_writers, 50, 2000),
    "slow readers": Case(slow_readers, 20, 500),
    "ApiVersions pipelined": Case(pipelined_versions, 2, 8),
    "DescribeConfigs pipelined": Case(pipelined_configs, 2, 8),
    "Metadata pipelined": Case(pipelined_metadata, 2, 8),
    "Metadata of unknown topics": Case(unknown_topics, 10_000, 100_000),
    "ListOffsets of many partitions": Case(many_offsets, 10_000, 100_000),
    "Fetch of many partitions": Case(many_fetched, 10_000, 10_000),
    "DescribeConfigs of many topics": Case(many_configs, 1000, 10_000),
    "TLS: silent": Case(tls_silent, 100, 2000),
    "TLS: stalled": Case(tls_stalled, 100, 2000),
    "TLS: garbage": Case(tls_garbage, 100, 2000),
}
