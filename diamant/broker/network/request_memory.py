"""The memory of requests, limited by `queued.max.request.bytes`. At the limit, connections are no longer read.

As in Kafka (SimpleMemoryPool), a frame is admitted while any memory is left. So usage exceeds the limit by at most one
request, and every admitted request can be received and answered, which rules out deadlocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from diamant.protocol.wire.server_connection import Request

MAX_QUEUED_REQUESTS = 1024
"""The maximum number of requests in a queue. `ServerLimits.max_queued_bytes` alone would allow too many small requests."""

REQUEST_OVERHEAD_BYTES = 128
"""The memory that a queued request uses in addition to its body."""


class RequestMemory:
    """Counts the bytes of requests, from the first byte of a frame until its response is being sent."""

    def __init__(self, limit_bytes: int) -> None:
        self._available = limit_bytes
        self._waiting: dict[object, Callable[[], None]] = {}  # in the order of arrival

    @property
    def available_bytes(self) -> int:
        """The number of bytes left; negative if the last admitted request exceeded the limit."""
        return self._available

    def admit(self, size: int, owner: object, admitted: Callable[[], None]) -> bool:
        """If any memory is left, reserve `size` bytes and return True; otherwise reserve them later, and then call `admitted`."""
        if self._available > 0 and not self._waiting:
            self._available -= size
            return True
        self._waiting[owner] = lambda: self._admit_later(size, admitted)
        return False

    def take(self, size: int) -> None:
        """Count a request that has already been received."""
        self._available -= size

    def release(self, size: int) -> None:
        """Release memory, and admit waiting requests in order of arrival while any memory is left."""
        self._available += size
        while self._available > 0 and self._waiting:
            owner = next(iter(self._waiting))
            self._waiting.pop(owner)()

    def forget(self, owner: object) -> None:
        """Remove a closed connection from the queue for memory."""
        self._waiting.pop(owner, None)

    def _admit_later(self, size: int, admitted: Callable[[], None]) -> None:
        self._available -= size
        admitted()


class MemoryShare:
    """One connection's share of the memory. `resume` is called once memory is reserved for a frame that had to wait."""

    def __init__(self, memory: RequestMemory, resume: Callable[[], object]) -> None:
        self._memory = memory
        self._resume = resume
        self.is_starved = False
        """True while a frame waits for memory."""
        self._frame_bytes = 0  # reserved for the frame being received
        self._answering_bytes = 0

    def received(self, sizes: Iterable[int], announced: int) -> None:
        """Count received requests, and reserve `announced` bytes for the next frame (0: its size is not known yet)."""
        taken = sum(sizes)
        self._memory.take(taken)
        if taken and self._frame_bytes:
            self._memory.release(self._frame_bytes)
            self._frame_bytes = 0
        if announced and not self._frame_bytes and not self.is_starved:
            if self._memory.admit(announced, self, lambda: self._admitted(announced)):
                self._frame_bytes = announced
            else:
                self.is_starved = True

    def begin_answer(self, size: int) -> None:
        """Mark a request of `size` bytes as being answered."""
        self._answering_bytes = size

    def end_answer(self) -> None:
        """Release the memory of the answered request."""
        size, self._answering_bytes = self._answering_bytes, 0
        if size:
            self._memory.release(size)

    def close(self, queued_bytes: int) -> None:
        """Release everything, including `queued_bytes` of queued requests, after the connection has closed."""
        self._memory.forget(self)
        self._memory.release(self._frame_bytes + self._answering_bytes + queued_bytes)
        self._frame_bytes = self._answering_bytes = 0

    def _admitted(self, frame_bytes: int) -> None:
        self._frame_bytes = frame_bytes
        self.is_starved = False
        self._resume()


class RequestQueue:
    """The requests of one connection that wait to be handled, and their memory."""

    __slots__ = ("queued_bytes", "requests", "share")

    def __init__(self, memory: RequestMemory | None, resume: Callable[[], object]) -> None:
        self.requests: deque[Request] = deque()
        self.queued_bytes = 0
        self.share = None if memory is None else MemoryShare(memory, resume)
        """The connection's share of the memory of all connections; None if the memory is not limited."""

    def put(self, requests: list[Request], announced_bytes: int) -> None:
        """Add requests. `announced_bytes`: the size of the frame being received."""
        sizes = [len(request.body) + REQUEST_OVERHEAD_BYTES for request in requests]
        self.requests += requests
        self.queued_bytes += sum(sizes)
        if self.share is not None:
            self.share.received(sizes, announced_bytes)

    def take(self) -> Request:
        """Remove and return the first request, to be answered."""
        request = self.requests.popleft()
        size = len(request.body) + REQUEST_OVERHEAD_BYTES
        self.queued_bytes -= size
        if self.share is not None:
            self.share.begin_answer(size)
        return request

    def end_answer(self) -> None:
        """Release the memory of the answered request."""
        if self.share is not None:
            self.share.end_answer()

    def is_full(self, max_bytes: int) -> bool:
        """Return whether no more requests should be received."""
        is_starved = self.share is not None and self.share.is_starved
        return is_starved or self.queued_bytes > max_bytes or len(self.requests) > MAX_QUEUED_REQUESTS

    def close(self) -> None:
        """Drop all requests and release their memory, after the connection has closed."""
        if self.share is not None:
            self.share.close(self.queued_bytes)
        self.requests.clear()
        self.queued_bytes = 0
