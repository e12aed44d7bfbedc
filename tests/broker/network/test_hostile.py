"""Hostile and broken peers: they lose only their own connection.

The broker is a process of its own, so that its memory can be measured. After each attack a well-behaved client gets its
answers, the memory is bounded, and the log shows refusals but no failure of ours.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.apis import SERVED
from diamant.protocol.wire.schemas import encode_request_fields
from tests.broker.broker_process import BrokerProcess, broker_process
from tests.broker.wire import (
    API_VERSIONS,
    FETCH,
    METADATA,
    PRODUCE,
    WireClient,
    batch_of,
    fetch_fields,
    produce_fields,
)

RSS_GROWTH_BYTES = 96 * 1024 * 1024
"""What an attack may leave or take: far below one frame of the greatest size, far above what caches and arenas take."""

AT_ONCE = 32
CLOSE_TIMEOUT_S = 60
INT32_EXTREMES = (b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\xff", b"\xff\xff\xff\xfe")
INT16_EXTREMES = (b"\x7f\xff", b"\x80\x00")
VARINT_EXTREMES = (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff", b"\x00")


class Target(NamedTuple):
    """The broker under attack."""

    process: BrokerProcess
    address: str
    idle_rss_bytes: int

    def check_memory(self) -> None:
        """Fail if memory grew more than an attack may cause."""
        growth = self.process.resident_bytes - self.idle_rss_bytes
        assert growth < RSS_GROWTH_BYTES, f"grown by {growth} bytes"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """One broker for all attacks, warmed up. Its initial soft limit of open files is too low for the connections below."""
    directory = tmp_path_factory.mktemp("hostile")
    with broker_process(directory / "data", directory / "log", soft_file_limit=256) as process:
        address = process.wait_for_address()

        async def warm_up() -> None:
            async with WireClient(address) as client:
                await client.create("t")
            await use(address)

        asyncio.run(warm_up())
        yield Target(process, address, process.resident_bytes)


async def use(address: str) -> None:
    """Act as a well-behaved client: send requests, write and read."""
    async with WireClient(address) as client:
        assert (await client.call(API_VERSIONS, 2, {})).error_code == ErrorCode.NONE
        result = await client.produce("t", [b"good"])
        assert result.error_code == ErrorCode.NONE
        partition = (await client.call(FETCH, 12, fetch_fields("t", result.base_offset))).responses[0].partitions[0]
        assert partition.high_watermark == result.base_offset + 1


@asynccontextmanager
async def attack(target: Target) -> AsyncIterator[None]:
    """An attack in this context must leave the broker intact."""
    yield
    await use(target.address)
    assert target.process.is_running
    target.check_memory()
    assert "Traceback" not in target.process.log


async def send_and_leave(address: str, data: bytes) -> bytes:
    """Send, close our half, and return the broker's bytes until it closes the connection."""
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(CLOSE_TIMEOUT_S):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(data)
            writer.write_eof()
            return await reader.read()
        except OSError:  # ENOTCONN, which shutting down a refused connection gives, is no ConnectionError
            return b""  # closed before it had read everything
        finally:
            writer.close()
            try:
                await writer.wait_closed()
            except OSError:
                pass


async def send_all_and_leave(address: str, attacks: Iterable[bytes]) -> None:
    """Like `send_and_leave`, each on its own connection, several at a time."""
    free = asyncio.Semaphore(AT_ONCE)

    async def one(data: bytes) -> None:
        async with free:
            await send_and_leave(address, data)

    await asyncio.gather(*[one(data) for data in attacks])


REQUESTS: list[tuple[int, int, dict[str, Any]]] = [
    (PRODUCE, 7, produce_fields("t", 0, batch_of([b"a", b"b"]))),
    (FETCH, 12, fetch_fields("t", 0)),
]
"""With every kind of length field in them: classic and flexible, nested arrays, strings, bytes."""


async def test_requests_that_are_not_served_close_the_connection(target: Target) -> None:
    """Unknown APIs, those between brokers, and wrong versions close the connection. Only ApiVersions responds (KIP-511)."""
    out_of_range = [
        (key, version) for key in (PRODUCE, METADATA) for version in (SERVED[key].max + 1, -(2**15), 2**15 - 1)
    ]
    async with attack(target):
        for api_key, version in [*((key, 0) for key in (-(2**15), -1, 4, 52, 999, 2**15 - 1)), *out_of_range]:
            async with WireClient(target.address) as client:
                client.writer.write(client.frame(api_key, version, bytes(20)))
                assert await client.is_closed(), (api_key, version)
        async with WireClient(target.address) as client:
            client.writer.write(client.frame(API_VERSIONS, SERVED[API_VERSIONS].max + 1, bytes(20)))
            assert (await client.receive_frame())[1][:2] == struct.pack(">h", ErrorCode.UNSUPPORTED_VERSION)


@pytest.mark.parametrize(("api_key", "version", "fields"), REQUESTS)
async def test_damaged_requests(target: Target, api_key: int, version: int, fields: dict[str, Any]) -> None:
    """Whatever lies at any position of a request is replaced by the greatest, the least and negative lengths, as int32, int16 and
    varint. An incomplete frame is dropped with its connection; a truncated request with an adapted size is refused.

    tests/protocol/wire/test_guard.py has the same for requests of every API, without a broker.
    """
    frame = WireClient(":0").frame(api_key, version, encode_request_fields(api_key, version, fields))
    # Overwriting the end may make the frame longer than it says: that is the begin of another one, which never comes.
    attacks = [
        frame[:position] + extreme + frame[position + len(extreme) :]
        for position in range(4, len(frame))
        for extreme in INT32_EXTREMES + INT16_EXTREMES + VARINT_EXTREMES
    ]
    attacks += [frame[:end] for end in range(len(frame))]
    attacks += [struct.pack(">i", end - 4) + frame[4:end] for end in range(4, len(frame))]
    async with attack(target):
        await send_all_and_leave(target.address, attacks)
        assert await send_and_leave(target.address, frame[:-1]) == b""


async def test_random_bytes(target: Target) -> None:
    """Noise, and noise in frames of the right size, closes the connection and harms no other."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    noise = [rng.randbytes(rng.choice((1, 3, 4, 17, 300, 70_000))) for _ in range(200)]
    framed = [struct.pack(">i", len(data)) + data for data in noise]
    async with attack(target):
        await send_all_and_leave(target.address, noise + framed)


@pytest.mark.slow
async def test_garbage_after_a_valid_header(target: Target) -> None:
    """Bodies of noise, zeros and ones after a valid header of every API in every version harm no other connection."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    frames = WireClient(":0")
    attacks = []
    for api_key, (first, last) in SERVED.items():
        for version in range(first, last + 1):
            bodies = (rng.randbytes(rng.randrange(200)), rng.randbytes(20), bytes(30), b"\xff" * 30, b"\x7f" * 30)
            attacks += [frames.frame(api_key, version, body) for body in bodies]
    async with attack(target):
        await send_all_and_leave(target.address, attacks)


CROWD = """
import resource, socket, sys
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
connections = []
for _ in range(count):
    connection = socket.create_connection((host, port), timeout=60)
    connection.sendall(b"\\0")
    connections.append(connection)
print("connected", flush=True)
sys.stdin.read()
for connection in connections:
    connection.setblocking(False)
    try:
        connection.recv(1)
        sys.exit("a connection was closed")
    except BlockingIOError:
        pass
"""
"""A process of clients that send one byte each, and wait."""


@pytest.mark.parametrize("count", [1000, pytest.param(4_000, marks=pytest.mark.slow)])
async def test_many_connections_that_send_one_byte(target: Target, count: int) -> None:
    """Idle connections take a few KiB each, beyond the soft limit of open files of the start; another client is served beside
    them.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < count + 200:
        pytest.skip(f"the hard limit of open files is {hard}")
    host, _, port = target.address.rpartition(":")
    async with attack(target):
        crowd = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CROWD, host, port, str(count), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert crowd.stdin is not None
        assert crowd.stdout is not None
        try:
            async with asyncio.timeout(120):
                assert await crowd.stdout.readline() == b"connected\n"
                await use(target.address)
                assert len(os.listdir(f"/proc/{target.process.pid}/fd")) > count
                target.check_memory()
                crowd.stdin.close()
                assert await crowd.wait() == 0
        finally:
            if crowd.returncode is None:
                crowd.kill()
                await crowd.wait()
