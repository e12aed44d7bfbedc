"""The broker's end of the pipe into which a child writes its messages, one per line.

The loop reads it directly: an asyncio stream takes three more turns of the loop per message, which would delay the answers
to clients.
"""

from __future__ import annotations

import asyncio
import os

READ_BYTES = 64 * 1024


class MessagePipe:
    """Reads the lines that another process writes into a pipe. Owns the descriptor. Loop thread only.

    Memory: a line of `max_line_bytes`, and `READ_BYTES` beyond it. Reading pauses while the buffer is full.
    """

    def __init__(self, descriptor: int, max_line_bytes: int) -> None:
        self.is_at_end = False
        """True after `close`, or if the other end is closed and everything was read."""
        self._descriptor = descriptor
        self._max_line_bytes = max_line_bytes
        self._unread = bytearray()
        self._searched = 0
        """Length of the prefix of `_unread` known to hold no line end, in bytes."""
        self._is_paused = False
        self._arrival: asyncio.Future[None] | None = None
        """Future of the waiting caller."""
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    async def line(self, timeout_s: float | None) -> bytes | None:
        """Return the next line without its terminator; None at the end.

        Raises TimeoutError if none arrives in time, ValueError if the line is too long.
        """
        while (end := self._unread.find(b"\n", self._searched)) < 0:
            self._searched = len(self._unread)
            if self.is_at_end:
                return None
            if self._is_paused:
                raise ValueError(f"a message has more than {self._max_line_bytes} bytes")
            self._arrival = self._loop.create_future()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._arrival
            finally:
                self._arrival = None
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        self._searched = 0
        if self._is_paused and len(self._unread) <= self._max_line_bytes:
            self._is_paused = False
            self._loop.add_reader(self._descriptor, self._read)
        return line

    def close(self) -> None:
        """Stop reading and close the descriptor."""
        if not self.is_at_end:
            self.is_at_end = True
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)

    def _read(self) -> None:
        data = os.read(self._descriptor, READ_BYTES)
        self._unread += data
        if not data:
            self.close()
        elif len(self._unread) > self._max_line_bytes:
            self._is_paused = True
            self._loop.remove_reader(self._descriptor)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
