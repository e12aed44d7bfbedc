"""The writer of responses that contain ranges of log files, for TLS transports, which encrypt the bytes.

The ranges are read in pieces, since the kernel cannot send them directly. A thread reads pieces that are not in the page cache.

Bounds: one piece of `PIECE_BYTES` per connection, plus the unsent part of the previous piece in the transport.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import cast

from diamant.broker.network.response_writer import TURN_MAX_BYTES, AnswerWriter, Buffer, Part
from diamant.storage.segments.segment import FileSlice

PIECE_BYTES = 96 * 1024
"""Six TLS records, enough to make the cost of a call negligible. A piece passes through several buffers, and glibc may map and
unmap buffers of 128 KiB or more at each use. With pieces of 256 KiB, this took two and a half times as much CPU time."""


class CopyingWriter:
    """Writes one response at a time to one connection, as fast as its peer reads. The transport's high-water mark is zero, and
    the connection calls `resume` when the transport's buffer is empty.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._parts: deque[Part] = deque()
        self._is_reading = False
        self._done: asyncio.Future[None] | None = None

    def write(self, parts: Sequence[Part]) -> asyncio.Future[None]:
        """Send all parts in order. The future is done once the transport has them, or fails with OSError or EOFError."""
        done = self._done = self._loop.create_future()
        self._parts.extend(parts)
        self._advance()
        return done

    def resume(self) -> None:
        """Continue, now that the transport's buffer is empty."""
        if self._done is not None and not self._done.done():
            self._loop.call_soon(self._advance)

    def close(self) -> None:
        """Drop all unsent data. Idempotent."""
        self._parts.clear()
        if self._done is not None:
            self._done.cancel()

    def _advance(self) -> None:
        """Write pieces until the transport is full, a range is not in the page cache, or the turn is over."""
        done = self._done
        if done is None or done.done() or self._is_reading:
            return
        turn_bytes = TURN_MAX_BYTES
        try:
            while self._parts:
                if self._transport.get_write_buffer_size():
                    return
                piece = self._next_piece()
                if piece is None:
                    return
                self._transport.write(piece)
                turn_bytes -= len(piece)
                if turn_bytes <= 0 and self._parts:
                    self._loop.call_soon(self._advance)
                    return
        except (OSError, EOFError, RuntimeError) as error:  # RuntimeError: the system refuses a thread
            self._parts.clear()
            done.set_exception(error)
            return
        done.set_result(None)

    def _next_piece(self) -> Buffer | None:
        """Take the next piece of at most `PIECE_BYTES`; None if a thread has to read it first."""
        buffers: list[Buffer] = []
        room = PIECE_BYTES
        while self._parts and room > 0:
            part = self._parts[0]
            count = min(part.size if type(part) is FileSlice else len(cast(Buffer, part)), room)
            if type(part) is FileSlice:
                data = _warm(part, count)
                if data is None:
                    if not buffers:
                        self._read_in_thread(part, count)
                        return None
                    break
                buffers.append(data)
            else:
                buffers.append(memoryview(cast(Buffer, part))[:count])
            self._drop(count)
            room -= count
        return buffers[0] if len(buffers) == 1 else b"".join(buffers)

    def _drop(self, count: int) -> None:
        """Shorten the first part by `count` bytes."""
        part = self._parts.popleft()
        if type(part) is FileSlice:
            if part.size > count:
                self._parts.appendleft(FileSlice(part.file, part.position + count, part.size - count))
        elif len(cast(Buffer, part)) > count:
            self._parts.appendleft(memoryview(cast(Buffer, part))[count:])

    def _read_in_thread(self, part: FileSlice, count: int) -> None:
        self._loop.run_in_executor(None, part.file.pread, count, part.position).add_done_callback(self._has_read)
        self._is_reading = True

    def _has_read(self, reading: asyncio.Future[bytes]) -> None:
        self._is_reading = False
        done = self._done
        if done is None or done.done() or reading.cancelled():
            return
        error = reading.exception()
        part = cast(FileSlice, self._parts[0])
        if error is None and not reading.result():
            error = EOFError(f"{part.file.path}: ends before position {part.position + part.size}")
        if error is not None:
            self._parts.clear()
            done.set_exception(error)
            return
        self._drop(len(reading.result()))
        self._parts.appendleft(reading.result())
        self._advance()


def answer_writer(transport: asyncio.Transport) -> AnswerWriter | CopyingWriter:
    """Return the writer for a transport: CopyingWriter if the transport encrypts, otherwise AnswerWriter."""
    is_encrypted = transport.get_extra_info("sslcontext") is not None
    return CopyingWriter(transport) if is_encrypted else AnswerWriter(transport.get_extra_info("socket"))


def _warm(part: FileSlice, count: int) -> bytes | None:
    """Return the first `count` bytes of a slice, or None if they are not in the page cache."""
    data = part.file.try_pread(count, part.position)
    return data if data is not None and len(data) == count else None
