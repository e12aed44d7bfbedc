"""The writer of responses that contain ranges of log files. It sends them from the page cache to the socket without copying.

asyncio allows no second watcher on a descriptor that a transport owns, and its own sendfile stops all reading.
So the writer uses a duplicate of the socket's descriptor, and only while the transport's own buffer is empty.

It runs in callbacks of the loop: a response of one megabyte takes about ten callbacks, and a task for each response would cost
more than sending it.

`Outbox` holds small responses back and writes them together when several connections have sent requests at once. A write
that wakes a waiting client costs more than the response itself; later writes in a batch find the client awake.
With 16 connections that commit offsets, this gives a fifth more requests per second. If a turn of the loop has hardly any
other work, a response is written immediately.

Bounds: one response of `MAX_BYTES` per connection (a connection with further requests writes immediately), held for `MAX_DELAY_S`
plus the time of the request then in progress.
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
"""Slices below this size are read into memory, since a copy is cheaper than another system call and wake-up."""

LARGE_BYTES = 256 * 1024
"""Responses of this size or more bypass the transport, which would copy the bytes that the socket does not accept."""

TURN_MAX_BYTES = 1024 * 1024
"""The most bytes that one connection sends per turn of the loop; also the size of the range that a page cache check covers."""


def read_small(parts: Iterable[Part]) -> list[Buffer] | None:
    """Return all parts as buffers; None unless every file slice is small and in the page cache."""
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
"""The flag that tells Linux to send this data together with the data that follows; 0 on other systems."""


class AnswerWriter:
    """Writes one response at a time to one connection, as fast as its peer reads.

    `sock` is the connection's socket; the writer owns a duplicate. It holds at most one slice below
    `SENDFILE_MIN_BYTES` in memory, or the bytes of one turn while a thread reads a range that is not in the page cache.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(sock.family, sock.type, sock.proto, fileno=os.dup(sock.fileno()))
        self._socket.setblocking(False)
        self._parts: deque[Part] = deque()
        self._sent = 0  # of the first part
        self._warm_until = 0  # position in the first part up to which the page cache was checked
        self._is_watching = False
        self._done: asyncio.Future[None] | None = None

    def write(self, parts: Sequence[Part]) -> asyncio.Future[None]:
        """Send all parts in order. The future is done when the last part is sent, or fails with OSError or EOFError."""
        done = self._done = self._loop.create_future()
        self._parts.extend(parts)
        self._advance()
        return done

    def resume(self) -> None:
        """Do nothing, since the transport's buffer is not used."""

    def close(self) -> None:
        """Drop all unsent data and close the duplicate. Idempotent."""
        self._parts.clear()
        self._unwatch()
        if self._done is not None:
            self._done.cancel()
        self._socket.close()

    def _advance(self) -> None:
        """Send until the socket is full, a range is not in the page cache, or the turn is over."""
        done = self._done
        if done is None or done.done():  # closed before this callback ran
            self._unwatch()
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
        except (OSError, EOFError, RuntimeError) as error:  # RuntimeError: the system refuses a thread
            self._finish(done, error)
            return
        self._finish(done, None)

    def _send_some(self) -> int | None:
        """Send some bytes of the first part with one system call; return their number, or None if a thread has to read first."""
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
                # Not in the page cache: a thread reads it, so that a slow disk does not block the loop.
                self._read_in_thread(part, position, count)
                return None
        sent = os.sendfile(self._socket.fileno(), descriptor, position, self._warm_until - self._sent)
        if sent == 0:
            raise EOFError(f"{part.file.path}: ends before position {part.position + part.size}")
        self._count(sent, part.size)
        return sent

    def _send_buffer(self, part: Buffer) -> int:
        # If more data follows, the kernel may wait for it instead of sending a segment of a few bytes.
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
        """Replace the start of a slice with the bytes read from it."""
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
"""The largest response that is held back; larger ones are written immediately."""

MIN_CALLBACKS = 3
"""A response is held back only if at least this number of callbacks is left in the turn of the loop."""

MAX_DELAY_S = 0.001
"""The longest time that a response is held back."""


class Outbox:
    """The responses that one loop writes, in order, at the end of its turn."""

    __slots__ = ("_loop", "_rest_of_turn", "_since_s", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # The callbacks left in this turn, from a private attribute of asyncio. Without it, responses are written immediately.
        self._rest_of_turn: Sized = getattr(loop, "_ready", ())
        self._waiting: list[tuple[asyncio.Transport, bytes]] = []
        self._since_s = 0.0

    def put(self, transport: asyncio.Transport, frame: bytes, now_s: float) -> None:
        """Write `frame` now or soon. `now_s`: the current monotonic time."""
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
        """Write the held-back responses. Call it before any other operation on a transport."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for transport, frame in waiting:
            transport.write(frame)
