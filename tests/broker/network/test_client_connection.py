"""One connection: order, slow and hostile peers, ranges of files, memory. Responses come from a function, not from a broker."""

from __future__ import annotations

import asyncio
import logging
import struct
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.network.api import CloseConnection, ConnectionInfo
from diamant.broker.network.server import Server
from diamant.protocol.wire.server_connection import SCRATCH_BYTES, Request
from diamant.storage.env.env import RealEnv
from diamant.storage.segments.segment import FileSlice
from tests.broker.network.serving import KEY, VERSION, Dispatch, echo, serving
from tests.broker.wire import WireClient
from tests.waiting import wait_until


async def test_pipelined_requests_are_answered_in_order() -> None:
    """A thousand pipelined requests get a thousand responses in order."""
    async with serving(echo) as (_, address), WireClient(address) as client:
        client.writer.write(b"".join(client.frame(KEY, VERSION, str(number).encode()) for number in range(1000)))
        for number in range(1000):
            assert await client.receive_frame() == (number + 1, str(number).encode())


async def test_a_slow_answer_holds_back_later_ones() -> None:
    """A request behind a pending one is handled only after its response."""
    futures: list[asyncio.Future[bytes]] = []
    seen: list[bytes] = []

    def dispatch(_: ConnectionInfo, request: Request) -> Any:
        seen.append(bytes(request.body))
        if request.body == b"slow":
            futures.append(asyncio.get_running_loop().create_future())
            return futures[-1]
        return bytes(request.body)

    async with serving(dispatch) as (_, address), WireClient(address) as slow, WireClient(address) as other:
        slow.writer.write(slow.frame(KEY, VERSION, b"slow") + slow.frame(KEY, VERSION, b"next"))
        other.writer.write(other.frame(KEY, VERSION, b"other"))
        assert await other.receive_frame() == (1, b"other")
        await wait_until(lambda: futures != [])
        assert b"next" not in seen
        futures[0].set_result(b"done")
        assert await slow.receive_frame() == (1, b"done")
        assert await slow.receive_frame() == (2, b"next")


async def test_a_coroutine_is_answered_and_outlives_its_connection() -> None:
    """A handler that changes state runs to its end even if the client disconnects."""
    go_on = asyncio.Event()
    ended = asyncio.Event()

    async def change() -> bytes:
        await go_on.wait()
        ended.set()
        return b"changed"

    async with serving(lambda *_: change()) as (server, address):
        async with WireClient(address) as client:
            client.writer.write(client.frame(KEY, VERSION, b""))
            await wait_until(lambda: any(connection.is_busy for connection in server.connections))
        await wait_until(lambda: not server.connections)
        go_on.set()
        async with asyncio.timeout(60):
            await ended.wait()


async def test_a_waiting_fetch_goes_with_its_connection() -> None:
    """A future returned by a handler is cancelled when the client disconnects."""
    future = asyncio.get_running_loop().create_future()
    async with serving(lambda *_: future) as (server, address):
        async with WireClient(address) as client:
            client.writer.write(client.frame(KEY, VERSION, b""))
            await wait_until(lambda: any(connection.is_busy for connection in server.connections))
        await wait_until(future.cancelled)


async def test_a_request_without_an_answer_counts_as_answered() -> None:
    """With acks=0, None from the handler sends nothing and does not block later requests."""
    dispatch: Dispatch = lambda _, request: None if request.body == b"quiet" else bytes(request.body)  # noqa: E731
    async with serving(dispatch) as (_, address), WireClient(address) as client:
        client.writer.write(client.frame(KEY, VERSION, b"quiet") + client.frame(KEY, VERSION, b"loud"))
        assert await client.receive_frame() == (2, b"loud")


async def test_a_request_in_single_bytes_is_put_together() -> None:
    """TCP may deliver one byte at a time."""
    async with serving(echo) as (_, address), WireClient(address) as client:
        for byte in client.frame(KEY, VERSION, b"piecemeal"):
            client.writer.write(bytes([byte]))
            await client.writer.drain()
        assert await client.receive_frame() == (1, b"piecemeal")


@pytest.mark.parametrize(
    "frame",
    [struct.pack(">i", -1), struct.pack(">i", (1 << 20) + 1), struct.pack(">i", 3) + b"abc", b"GET / HTTP/1.1\r\n\r\n"],
    ids=["negative", "too large", "too small", "http"],
)
async def test_a_hostile_frame_closes_its_own_connection_only(frame: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """An impossible size closes the connection with one log line; other connections are not affected."""
    caplog.set_level(logging.WARNING)
    async with serving(echo) as (_, address), WireClient(address) as hostile, WireClient(address) as other:
        hostile.writer.write(frame)
        assert await hostile.is_closed()
        other.writer.write(other.frame(KEY, VERSION, b"fine"))
        assert await other.receive_frame() == (1, b"fine")
    assert len([record for record in caplog.records if "connection closed" in record.message]) == 1


async def test_a_handler_that_fails_closes_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    """A bug is logged with its traceback and closes one connection. CloseConnection is not a bug."""

    def dispatch(_: ConnectionInfo, request: Request) -> bytes:
        if request.body == b"bug":
            raise ValueError("bug")
        if request.body == b"close":
            raise CloseConnection("as it should be")
        return bytes(request.body)

    async with serving(dispatch) as (_, address):
        for body in (b"bug", b"close"):
            async with WireClient(address) as client:
                client.writer.write(client.frame(KEY, VERSION, body))
                assert await client.is_closed()
        async with WireClient(address) as client:
            client.writer.write(client.frame(KEY, VERSION, b"fine"))
            assert await client.receive_frame() == (1, b"fine")
    assert [bool(record.exc_info) for record in caplog.records if record.levelno >= logging.WARNING] == [True, False]


@pytest.mark.slow
async def test_a_busy_connection_is_read_up_to_its_limit_only() -> None:
    """Requests behind a pending one are queued up to a limit in bytes. Then the socket is not read."""
    future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    answers = iter([future])
    dispatch: Dispatch = lambda *_: next(answers, b"")  # noqa: E731
    async with serving(dispatch, max_queued_bytes=100_000) as (server, address), WireClient(address) as client:
        count = 3000
        client.writer.write(b"".join(client.frame(KEY, VERSION, bytes(10_000)) for _ in range(count)))
        await wait_until(lambda: any(connection.is_reading_paused for connection in server.connections))
        (connection,) = server.connections
        assert connection.queue.queued_bytes < 100_000 + 2 * 64 * 1024
        future.set_result(b"")
        for _ in range(count):
            await client.receive_frame()


def file_of(path: Path, content: bytes) -> Any:
    """Return a file of the real Env with the given content."""
    file = RealEnv().open(str(path), create=True)
    file.append(content)
    return file


@pytest.mark.parametrize("size", [1, 1000, 65_535, 65_536, 3_000_001])
async def test_ranges_of_files_are_sent_as_they_are(tmp_path: Path, size: int) -> None:
    """Small ranges are sent from memory, large ones by sendfile: the peer gets the same bytes in order."""
    content = bytes(range(256)) * (size // 256 + 2)
    file = file_of(tmp_path / "log", content)
    answer = [b"before", FileSlice(file, 7, size), b"between", FileSlice(file, 0, size), b"after"]
    async with serving(lambda *_: list(answer)) as (_, address), WireClient(address) as client:
        for _ in range(3):
            client.writer.write(client.frame(KEY, VERSION, b""))
        for number in range(3):
            expected = b"before" + content[7 : 7 + size] + b"between" + content[:size] + b"after"
            assert await client.receive_frame() == (number + 1, expected)
    file.close()


@pytest.mark.slow
async def test_a_peer_that_does_not_read_stops_nobody_else(tmp_path: Path) -> None:
    """A response larger than the socket's buffers waits for its reader, while other connections are served."""
    content = bytes(64 << 20)
    file = file_of(tmp_path / "log", content)

    def dispatch(_: ConnectionInfo, request: Request) -> Any:
        return [FileSlice(file, 0, len(content))] if request.body == b"large" else bytes(request.body)

    async with serving(dispatch) as (server, address), WireClient(address) as slow, WireClient(address) as other:
        slow.writer.write(slow.frame(KEY, VERSION, b"large"))
        await wait_until(lambda: any(connection.is_busy for connection in server.connections))
        for number in range(10):
            other.writer.write(other.frame(KEY, VERSION, b"small"))
            assert await other.receive_frame() == (number + 1, b"small")
        assert any(connection.is_busy for connection in server.connections)
        correlation_id, received = await slow.receive_frame()
        assert (correlation_id, len(received)) == (1, len(content))
    file.close()


async def test_a_peer_that_leaves_in_the_middle_of_a_file_is_forgotten(tmp_path: Path) -> None:
    """The duplicate of the socket's descriptor is closed with the connection."""
    file = file_of(tmp_path / "log", bytes(64 << 20))
    async with serving(lambda *_: [FileSlice(file, 0, 64 << 20)]) as (server, address):
        client = WireClient(address)
        await client.__aenter__()
        client.writer.write(client.frame(KEY, VERSION, b""))
        await client.reader.readexactly(100_000)
        client.writer.transport.abort()
        await client.__aexit__(None, None, None)
        await wait_until(lambda: not server.connections)
    file.close()


def held_bytes(server: Server) -> list[int]:
    """Return the bytes that each connection holds for an incomplete request, in ascending order."""
    return sorted(len(connection.frames._frame or b"") for connection in server.connections)


@pytest.mark.parametrize("limit_bytes", [-1, 1_100_000, 1_800_000])
async def test_memory_for_large_requests_is_one_request_per_connection(limit_bytes: int) -> None:
    """Without a limit each connection has its one request in memory, and no more than that; with `queued.max.request.bytes` all
    together have that limit, one request more, and 256 KiB for each that waits. In the end all are answered.
    """
    body = bytes(1_000_000)

    async def answer_later(request: Request) -> bytes:
        return b"%d" % len(request.body)

    def answer(_: ConnectionInfo, request: Request) -> Any:
        return answer_later(request) if limit_bytes == 1_800_000 else b"%d" % len(request.body)

    async with AsyncExitStack() as stack:
        limits = {"max_frame_bytes": 1_100_000, "max_request_memory_bytes": limit_bytes}
        server, address = await stack.enter_async_context(serving(answer, **limits))
        clients = [await stack.enter_async_context(WireClient(address)) for _ in range(6)]
        frames = [client.frame(KEY, VERSION, body) for client in clients]
        for client, frame in zip(clients, frames, strict=True):
            client.writer.write(frame[:-10])
        waiting = 0 if limit_bytes < 0 else 4  # the second is admitted since the first has left something

        def is_received() -> bool:
            there = [connection.frames.pending_bytes for connection in server.connections]
            paused = sum(connection.is_reading_paused for connection in server.connections)
            return paused == waiting and there.count(len(frames[0]) - 10) == 6 - waiting

        await wait_until(is_received)
        held = held_bytes(server)
        assert held[waiting:] == [len(frames[0]) - 4] * (6 - waiting)
        most = 4 * SCRATCH_BYTES  # of a frame whose first bytes are as many as one read takes
        assert all(size <= most for size in held[:waiting])
        if limit_bytes > 0:
            assert sum(held) <= limit_bytes + len(frames[0]) + waiting * most
        for client, frame in zip(clients, frames, strict=True):
            client.writer.write(frame[-10:])
        for client in clients:
            assert await client.receive_frame() == (1, b"1000000")
        assert held_bytes(server) == [0] * 6


async def test_a_lost_connection_gives_its_memory_back() -> None:
    """The memory of queued, waiting and half-received requests is released with their connection."""
    futures: list[asyncio.Future[bytes]] = []

    def dispatch(_: ConnectionInfo, request: Request) -> Any:
        futures.append(asyncio.get_running_loop().create_future())
        return futures[-1]

    async with serving(dispatch, max_request_memory_bytes=1_000_000) as (server, address):
        assert server.memory is not None
        async with WireClient(address) as client:
            frames = b"".join(client.frame(KEY, VERSION, bytes(1000)) for _ in range(5))
            client.writer.write(frames + client.frame(KEY, VERSION, bytes(400_000))[:200_000])
            await wait_until(lambda: server.memory.available_bytes <= 600_000)
        await wait_until(lambda: not server.connections)
        assert server.memory.available_bytes == 1_000_000
