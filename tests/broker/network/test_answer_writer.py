"""Responses with ranges of files: complete, in order, and independent of other connections' disks and peers."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest

from diamant.broker.network.copied_answer import PIECE_BYTES, CopyingWriter
from diamant.broker.network.response_writer import SENDFILE_MIN_BYTES, TURN_MAX_BYTES, AnswerWriter, read_small
from diamant.storage.env.env import RealEnv
from diamant.storage.segments.segment import FileSlice
from tests.waiting import wait_until


class ColdFile:
    """A file that is not in the page cache until `pread` has read it."""

    def __init__(self, content: bytes, descriptor: int | None = None) -> None:
        self.path = "cold"
        self.content = content
        self.descriptor = descriptor
        self.read_ranges: list[tuple[int, int]] = []

    def try_pread(self, count: int, position: int) -> bytes | None:
        """Return "not in the page cache" until the range was read."""
        if any(start <= position and position + count <= end for start, end in self.read_ranges):
            return self.content[position : position + count]
        return None

    def pread(self, count: int, position: int) -> bytes:
        """Read a range and record it."""
        self.read_ranges.append((position, position + count))
        return self.content[position : position + count]

    def fileno(self) -> int | None:
        """Return the descriptor for sendfile."""
        return self.descriptor


class NoThreads(ThreadPoolExecutor):
    """A pool on a system that refuses threads."""

    def submit(self, *_: object, **__: object) -> NoReturn:
        raise RuntimeError("can't start new thread")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connected pair with small buffers: the peer's end and ours."""
    far, ours = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
    ours.setblocking(False)
    far.setblocking(False)
    with far, ours:
        yield far, ours


async def receive(far: socket.socket, size: int) -> bytes:
    """Receive exactly `size` bytes."""
    data = b""
    while len(data) < size:
        data += await asyncio.get_running_loop().sock_recv(far, 64 * 1024)
    return data


async def test_parts_of_every_kind_arrive_in_order(tmp_path: Path, pair: tuple[socket.socket, socket.socket]) -> None:
    """Buffers, small slices and slices larger than one turn are sent in order and complete."""
    content = os.urandom(2 * TURN_MAX_BYTES + 12345)
    (tmp_path / "log").write_bytes(content)
    file = RealEnv().open(str(tmp_path / "log"))
    slices = [FileSlice(file, 5, 100), FileSlice(file, 7, SENDFILE_MIN_BYTES), FileSlice(file, 1, len(content) - 1)]
    writer = AnswerWriter(pair[1])
    writing = writer.write([b"head", slices[0], b"", slices[1], memoryview(b"mid"), slices[2], b"tail"])
    expected = b"head" + content[5:105] + content[7 : 7 + SENDFILE_MIN_BYTES] + b"mid" + content[1:] + b"tail"
    assert await receive(pair[0], len(expected)) == expected
    await writing
    writer.close()
    file.close()


async def test_cold_ranges_are_read_by_a_thread(pair: tuple[socket.socket, socket.socket]) -> None:
    """A thread reads a range that is not in the page cache and has no descriptor, turn by turn."""
    file = ColdFile(os.urandom(TURN_MAX_BYTES + 1000))
    writer = AnswerWriter(pair[1])
    writing = writer.write([b"x", FileSlice(file, 10, TURN_MAX_BYTES + 900), b"y"])  # type: ignore[arg-type]
    assert await receive(pair[0], TURN_MAX_BYTES + 902) == b"x" + file.content[10 : TURN_MAX_BYTES + 910] + b"y"
    await writing
    assert file.read_ranges == [(10, 10 + TURN_MAX_BYTES), (10 + TURN_MAX_BYTES, 910 + TURN_MAX_BYTES)]
    writer.close()


@pytest.mark.parametrize("is_copied", [False, True])
async def test_a_thread_that_the_system_refuses_fails_the_answer(
    pair: tuple[socket.socket, socket.socket], is_copied: bool
) -> None:
    """The client would wait for the rest without end."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_accepted_socket(asyncio.Protocol, pair[1].dup())
    writer = CopyingWriter(transport) if is_copied else AnswerWriter(pair[1])
    loop.set_default_executor(NoThreads(1))
    writing = writer.write([bytes(PIECE_BYTES), FileSlice(ColdFile(bytes(100)), 0, 100)])  # type: ignore[arg-type]
    assert not writing.done()
    await receive(pair[0], PIECE_BYTES)
    await wait_until(lambda: not transport.get_write_buffer_size())
    writer.resume()
    with pytest.raises(RuntimeError, match="new thread"):
        await writing
    writer.close()
    transport.abort()


async def test_a_cold_file_is_warmed_before_sendfile(tmp_path: Path, pair: tuple[socket.socket, socket.socket]) -> None:
    """With a descriptor, the thread only reads the range into the page cache; sendfile sends it."""
    content = os.urandom(3 * SENDFILE_MIN_BYTES)
    (tmp_path / "log").write_bytes(content)
    descriptor = os.open(tmp_path / "log", os.O_RDONLY)
    file = ColdFile(content, descriptor)
    writer = AnswerWriter(pair[1])
    writing = writer.write([FileSlice(file, 0, len(content))])  # type: ignore[arg-type]
    assert await receive(pair[0], len(content)) == content
    await writing
    assert file.read_ranges == [(0, len(content))]
    writer.close()
    os.close(descriptor)


async def test_a_file_that_is_too_short_fails_the_answer(
    tmp_path: Path, pair: tuple[socket.socket, socket.socket]
) -> None:
    """A range beyond the end of its file raises EOFError with the file's name, instead of sending a short response."""
    (tmp_path / "log").write_bytes(bytes(SENDFILE_MIN_BYTES))
    descriptor = os.open(tmp_path / "log", os.O_RDONLY)
    file = ColdFile(bytes(2 * SENDFILE_MIN_BYTES), descriptor)
    writer = AnswerWriter(pair[1])
    writing = writer.write([FileSlice(file, 0, 2 * SENDFILE_MIN_BYTES)])  # type: ignore[arg-type]
    await receive(pair[0], SENDFILE_MIN_BYTES)
    with pytest.raises(EOFError, match="cold: ends before position 131072"):
        await writing
    writer.close()
    os.close(descriptor)


async def test_closing_gives_up_an_answer(pair: tuple[socket.socket, socket.socket]) -> None:
    """Closing a connection whose peer does not read cancels the response and its watcher."""
    writer = AnswerWriter(pair[1])
    writing = writer.write([bytes(10 * TURN_MAX_BYTES)])
    assert not writing.done()
    writer.close()
    writer.close()
    assert writing.cancelled()


async def test_a_peer_that_went_away_fails_the_answer(pair: tuple[socket.socket, socket.socket]) -> None:
    """Writing to a closed connection raises ConnectionError."""
    writer = AnswerWriter(pair[1])
    pair[0].close()
    with pytest.raises(ConnectionError):
        await writer.write([bytes(TURN_MAX_BYTES)])
    writer.close()


def test_small_warm_slices_need_no_writer(tmp_path: Path) -> None:
    """Small slices in the page cache are read at once. A large or cold slice needs the writer."""
    (tmp_path / "log").write_bytes(b"0123456789" * 10000)
    file = RealEnv().open(str(tmp_path / "log"))
    assert read_small([b"a", FileSlice(file, 3, 4)]) == [b"a", b"3456"]
    assert read_small([FileSlice(file, 0, SENDFILE_MIN_BYTES)]) is None
    assert read_small([FileSlice(ColdFile(b"0123"), 0, 4)]) is None  # type: ignore[arg-type]
    file.close()
