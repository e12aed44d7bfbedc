"""The cases: what hostile peers do, each a function of the target and of a size."""

from __future__ import annotations

import ssl
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

from tests.broker.wire import (
    API_VERSIONS,
    DESCRIBE_CONFIGS,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    fetch_fields,
    produce_fields,
)
from tests.hostile import cases_of_ports as ports
from tests.hostile.measuring import Target
from tests.hostile.peers import end, opened, pipelined, request, wait_s

INT_MAX = 2**31 - 1


class Case(NamedTuple):
    """A case, and its size: in the suite, and in full."""

    attack: Callable[..., Awaitable[str]]
    small: int
    full: int


# Connections


async def idle(target: Target, size: int) -> str:
    """Connections that send nothing, and then go all at once."""
    connections = await opened(target.plain, size)
    await wait_s(1)
    end(connections)
    await wait_s(1)
    return f"{size} connections"


async def half_open(target: Target, size: int) -> str:
    """Connections that begin a frame and do not go on."""
    connections = await opened(target.plain, size, struct.pack(">ihh", 1000, API_VERSIONS, 2))
    await wait_s(1)
    end(connections)
    await wait_s(1)
    return f"{size} connections"


async def churn(target: Target, size: int) -> str:
    """Connections that come and go as fast as one process can."""
    for _ in range(size // 50):
        end(await opened(target.plain, 50, b"\0"))
    return f"{size} connections"


async def announced(target: Target, size: int) -> str:
    """Frames of 2 GB and of the most that is allowed, announced and not sent."""
    too_large = await opened(target.plain, size, struct.pack(">i", INT_MAX) + bytes(100))
    allowed = await opened(target.plain, size, struct.pack(">i", 100 << 20) + bytes(100))
    before = await opened(target.sasl, size, struct.pack(">i", INT_MAX) + bytes(100))
    await wait_s(1)
    end([*too_large, *allowed, *before])
    return f"{3 * size} frames"


async def slow_writers(target: Target, size: int) -> str:
    """Connections that send a byte of a large frame now and then."""
    frame = request(PRODUCE, 7, produce_fields("second", 0, bytes(1 << 20)))
    connections = await opened(target.plain, size, frame[:2])
    for position in range(2, 32):
        for connection in connections:
            with suppress(BlockingIOError, ConnectionError):
                connection.send(frame[position : position + 1])
        await wait_s(0.05)
    end(connections)
    return f"{size} connections"


async def slow_readers(target: Target, size: int) -> str:
    """Connections that ask for everything, many times, and read nothing."""
    ask = request(METADATA, 1, {"topics": None}) * 20
    connections = await opened(target.plain, size, ask)
    await wait_s(3)
    end(connections)
    return f"{size} connections"


# Requests


async def pipelined_versions(target: Target, size: int) -> str:
    """ApiVersions, as many as the connection takes."""
    return await pipelined(target, request(API_VERSIONS, 2, {}), size)


async def pipelined_configs(target: Target, size: int) -> str:
    """DescribeConfigs of the broker: a small request with a large answer."""
    fields = {"resources": [{"resource_type": 4, "resource_name": "1", "configuration_keys": None}]}
    return await pipelined(target, request(DESCRIBE_CONFIGS, 4, fields | {"include_synonyms": True}), size)


async def pipelined_metadata(target: Target, size: int) -> str:
    """Metadata of all topics."""
    return await pipelined(target, request(METADATA, 9, {"topics": None}), size)


async def unknown_topics(target: Target, size: int) -> str:
    """Metadata of topics that do not exist, many in a request, again and again."""
    fields = {"topics": [{"name": f"unknown-{number}"} for number in range(size)]}
    return await pipelined(target, request(METADATA, 4, fields | {"allow_auto_topic_creation": False}), 1)


async def many_offsets(target: Target, size: int) -> str:
    """ListOffsets of many partitions."""
    partitions = [{"partition_index": number, "timestamp": -1} for number in range(size)]
    fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "second", "partitions": partitions}]}
    return await pipelined(target, request(LIST_OFFSETS, 5, fields), 1)


async def many_fetched(target: Target, size: int) -> str:
    """Fetch of many partitions."""
    fields = fetch_fields("second", 0)
    one = fields["topics"][0]["partitions"][0]
    fields["topics"][0]["partitions"] = [one | {"partition": number} for number in range(size)]
    return await pipelined(target, request(FETCH, 12, fields), 1)


async def many_configs(target: Target, size: int) -> str:
    """DescribeConfigs of one topic, many times in one request."""
    one = {"resource_type": 2, "resource_name": "second", "configuration_keys": None}
    fields = {"resources": [one] * size, "include_synonyms": True, "include_documentation": True}
    return await pipelined(target, request(DESCRIBE_CONFIGS, 4, fields), 1)


# TLS


async def tls_silent(target: Target, size: int) -> str:
    """Handshakes that never begin."""
    connections = await opened(target.tls, size)
    await wait_s(1)
    end(connections)
    return f"{size} connections"


async def tls_stalled(target: Target, size: int) -> str:
    """Handshakes that stop after their first message."""
    hello = client_hello(target)
    connections = await opened(target.tls, size, hello)
    await wait_s(1)
    end(connections)
    return f"{size} connections"


async def tls_garbage(target: Target, size: int) -> str:
    """Return a ClientHello with garbage in it, or after it."""
    hello = client_hello(target)
    for number in range(size):
        spoiled = bytearray(hello)
        spoiled[5 + number % (len(hello) - 5)] ^= 0xFF
        end(await opened(target.tls, 1, bytes(spoiled) + b"\x17\x03\x03\x40\x00" + bytes(100)))
    await wait_s(0.5)
    return f"{size} handshakes"


def client_hello(target: Target) -> bytes:
    """Return the first message of a client."""
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
    "ListOffsets of many partitions": Case(many_offsets, 10_000, 50_000),
    "Fetch of many partitions": Case(many_fetched, 10_000, 10_000),
    "DescribeConfigs of many topics": Case(many_configs, 1000, 10_000),
    "batches that are bombs": Case(ports.bombs, 8, 256),
    "users guessed": Case(ports.guesses, 100, 10_000),
    "client ids invented": Case(ports.client_ids, 1000, 100_000),
    "patterns that take long": Case(ports.patterns, 20, 1000),
    "HTTP: slow": Case(ports.slow_http, 20, 500),
    "HTTP: pipelined": Case(ports.http_pipelined, 4, 32),
    "HTTP: headers": Case(ports.http_headers, 12, 300),
    "HTTP: bodies that are bombs": Case(ports.http_bombs, 64, 1024),
    "TLS: silent": Case(tls_silent, 100, 2000),
    "TLS: stalled": Case(tls_stalled, 100, 2000),
    "TLS: garbage": Case(tls_garbage, 100, 2000),
    "TLS: renegotiation": Case(ports.renegotiations, 50, 500),
}
