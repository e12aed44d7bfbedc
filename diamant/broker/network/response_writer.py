"""Writes answers that hold ranges of log files: from the page cache to the socket, without a copy in our memory.

asyncio allows no second watcher on a descriptor that a transport owns, and its own sendfile stops all reading.
So this writes on a duplicate of the socket's descriptor, and only while the transport's own buffer is empty.

All of it happens in callbacks of the loop: one answer of a megabyte takes about ten of them, and a task for each would
cost more than the sending.

`Outbox` holds small answers back and writes them in a row, when several connections have sent their requests at once.
Every write wakes a waiting client, which costs more than the answer itself; in a row, the later writes meet a client
that is awake. With 16 connections that commit offsets this is a fifth more requests per second. If a turn of the loop
has hardly any other work, an answer is written at once.

Bounds: one answer of `MAX_BYTES` per connection (a connection with further requests writes at once), for `MAX_DELAY_S` and the
request after that.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Iterable, Sequence, Sized
from typing import TypeAlias, cast

from diamant.storage.segments.segment import FileSlice

Buffer: TypeAlias = bytes | bytearray | memoryview
Part: TypeAlias = Buffer | FileSlice

SENDFILE_MIN_BYTES = 64 * 1024
"""Slices below this are read into memory: one copy is cheaper than one more system call and wake-up."""

TURN_MAX_BYTES = 1024 * 1024
"""The bytes that one connection may send in a turn; also the range that one look into the page cache covers."""


def read_small(parts: Iterable[Part]) -> list[Buffer] | None:
    """All parts as buffers if every file slice is small and in the page cache, else None."""
    buffers: list[Buffer] = []
    for part in parts:
        if type(part) is not FileSlice:
            buffers.append(cast(Buffer, part))
            continue
        data = part.file.try_pread(part.size, part.position) if part.size < SENDFILE_MIN_BYTES else None
        if data is None or len(data) != part.size:
            return None
        buffers.append(data)
    return buffers


_MSG_MORE: int = getattr(socket, "MSG_MORE", 0)
"""More follows: the system sends both together. Linux."""


class AnswerWriter:
    """One answer at a time for one connection, as fast as its peer takes it.

    `sock` is the connection's socket; a duplicate is used and owned. In memory is at most one slice below
    `SENDFILE_MIN_BYTES`, or one turn's bytes while a thread brings a cold range into the page cache.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(sock.family, sock.type, sock.proto, fileno=os.dup(sock.fileno()))
        self._socket.setblocking(False)
        self._parts: deque[Part] = deque()
        self._sent = 0  # of the first part
        self._warm_until = 0  # position in the first part up to which the page cache has been asked
        self._is_watching = False
        self._done: asyncio.Future[None] | None = None

    def write(self, parts: Sequence[Part]) -> asyncio.Future[None]:
        """Send all parts in order; the future ends with them, or with OSError or EOFError."""
        done = self._done = self._loop.create_future()
        self._parts.extend(parts)
        self._advance()
        return done

    def resume(self) -> None:
        """Nothing: the transport's buffer is not used."""

    def close(self) -> None:
        """Give up what is left and close the duplicate; harmless a second time."""
        self._parts.clear()
        self._unwatch()
        if self._done is not None:
            self._done.cancel()
        self._socket.close()

    def _advance(self) -> None:
        """Send until the socket is full, a range is cold, or the turn is over."""
        done = self._done
        if done is None or done.done():  # closed since
            return
        turn_bytes = TURN_MAX_BYTES
        try:
            while self._parts:
                sent = self._send_some()
                if sent is None:
                    return
                turn_bytes -= sent
                if turn_bytes <= 0 and self._parts:
                    self._unwatch()
                    self._loop.call_soon(self._advance)
                    return
        except (BlockingIOError, InterruptedError):
            if not self._is_watching:
                self._is_watching = True
                self._loop.add_writer(self._socket, self._advance)
            return
        except (OSError, EOFError) as error:
            self._finish(done, error)
            return
        self._finish(done, None)

    def _send_some(self) -> int | None:
        """One system call's worth of the first part; None if a thread has been asked to read first."""
        part = self._parts[0]
        if type(part) is not FileSlice:
            return self._send_buffer(cast(Buffer, part))
        left = part.size - self._sent
        position = part.position + self._sent
        descriptor = part.file.fileno() if part.size >= SENDFILE_MIN_BYTES else None
        if descriptor is None:
            count = min(left, TURN_MAX_BYTES)
            data = part.file.try_pread(count, position)
            if data is None or len(data) != count:
                self._read_in_thread(part, position, count)
                return None
            self._replace_first(part, data)
            return self._send_some()
        if descriptor < 0:
            raise EOFError(f"{part.file.path}: closed while being sent")
        if self._sent >= self._warm_until:
            count = min(left, TURN_MAX_BYTES)
            self._warm_until = self._sent + count
            if part.file.try_pread(1, position + count - 1) is None:
                # Not in the page cache: a thread brings it there, so that a cold disk does not stop the loop.
                self._read_in_thread(part, position, count)
                return None
        sent = os.sendfile(self._socket.fileno(), descriptor, position, self._warm_until - self._sent)
        if sent == 0:
            raise EOFError(f"{part.file.path}: ends before position {part.position + part.size}")
        self._count(sent, part.size)
        return sent

    def _send_buffer(self, part: Buffer) -> int:
        # More follows: the kernel may wait for it instead of sending a segment of a few bytes.
        flags = _MSG_MORE if len(self._parts) > 1 else 0
        sent = self._socket.send(memoryview(part)[self._sent :] if self._sent else part, flags) if part else 0
        self._count(sent, len(part))
        return sent

    def _count(self, sent: int, size: int) -> None:
        self._sent += sent
        if self._sent == size:
            self._parts.popleft()
            self._sent = self._warm_until = 0

    def _replace_first(self, part: FileSlice, data: bytes) -> None:
        """Put bytes that were read in the place of the beginning of a slice."""
        self._parts.popleft()
        rest = part.size - self._sent - len(data)
        if rest:
            self._parts.appendleft(FileSlice(part.file, part.position + self._sent + len(data), rest))
        self._parts.appendleft(data)
        self._sent = self._warm_until = 0

    def _read_in_thread(self, part: FileSlice, position: int, count: int) -> None:
        self._unwatch()
        reading = self._loop.run_in_executor(None, part.file.pread, count, position)
        reading.add_done_callback(self._has_read)

    def _has_read(self, reading: asyncio.Future[bytes]) -> None:
        done = self._done
        if done is None or done.done() or reading.cancelled():
            return
        part = self._parts[0]
        assert isinstance(part, FileSlice)
        error = reading.exception()
        if error is None and not reading.result():
            error = EOFError(f"{part.file.path}: ends before position {part.position + part.size}")
        if error is not None:
            self._finish(done, error)
            return
        if part.file.fileno() is None or part.size < SENDFILE_MIN_BYTES:
            self._replace_first(part, reading.result())
        self._advance()

    def _finish(self, done: asyncio.Future[None], error: BaseException | None) -> None:
        self._unwatch()
        self._parts.clear()
        self._sent = self._warm_until = 0
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(None)

    def _unwatch(self) -> None:
        if self._is_watching:
            self._is_watching = False
            self._loop.remove_writer(self._socket)


MAX_BYTES = 4096
"""Of one answer: what is longer is written at once."""

MIN_CALLBACKS = 3
"""Callbacks that are left of the turn: with fewer there is nothing worth waiting for."""

MAX_DELAY_S = 0.001
"""Answers that have waited this long for others go out."""


class Outbox:
    """The answers of one loop that are to be written at the end of its turn, in their order."""

    __slots__ = ("_loop", "_rest_of_turn", "_since_s", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # The callbacks that are due: asyncio has no other way to tell. On a loop without it every answer is written at once.
        self._rest_of_turn: Sized = getattr(loop, "_ready", ())
        self._waiting: list[tuple[asyncio.Transport, bytes]] = []
        self._since_s = 0.0

    def put(self, transport: asyncio.Transport, frame: bytes, now_s: float) -> None:
        """Write `frame` now or soon; `now_s` is the monotonic time."""
        if not self._waiting:
            if len(self._rest_of_turn) < MIN_CALLBACKS:
                transport.write(frame)
                return
            self._since_s = now_s
            self._loop.call_soon(self.flush)
        self._waiting.append((transport, frame))
        if now_s - self._since_s > MAX_DELAY_S:
            self.flush()

    def flush(self) -> None:
        """Write what waits: to be called before anything else is written to, or done with, a transport."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for transport, frame in waiting:
            transport.write(frame)
