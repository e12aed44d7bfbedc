"""`queued.max.request.bytes`: the memory that requests may take before connections are no longer read.

As in Kafka (SimpleMemoryPool) a frame is admitted as long as anything is left. So at most the limit and one request
more are in use, and every admitted request can be received and answered: there is no deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


class RequestMemory:
    """Counts bytes of requests, from the first that is read of a frame until its answer is on the way."""

    def __init__(self, limit_bytes: int) -> None:
        self._available = limit_bytes
        self._waiting: dict[object, Callable[[], None]] = {}  # in the order of arrival

    @property
    def available_bytes(self) -> int:
        """The bytes left; negative while the last admitted request exceeds the limit."""
        return self._available

    def admit(self, size: int, owner: object, admitted: Callable[[], None]) -> bool:
        """Reserve `size` bytes if anything is left. If not, `admitted` is called once they have been reserved."""
        if self._available > 0 and not self._waiting:
            self._available -= size
            return True
        self._waiting[owner] = lambda: self._admit_later(size, admitted)
        return False

    def take(self, size: int) -> None:
        """Count a request that has been received already."""
        self._available -= size

    def release(self, size: int) -> None:
        """Give back; the request that has waited longest is admitted."""
        self._available += size
        while self._available > 0 and self._waiting:
            owner = next(iter(self._waiting))
            self._waiting.pop(owner)()

    def forget(self, owner: object) -> None:
        """Stop waiting: the connection has gone."""
        self._waiting.pop(owner, None)

    def _admit_later(self, size: int, admitted: Callable[[], None]) -> None:
        self._available -= size
        admitted()


class MemoryShare:
    """What one connection takes of it. `resume` is called once memory is reserved for a frame that had to wait."""

    def __init__(self, memory: RequestMemory, resume: Callable[[], object]) -> None:
        self._memory = memory
        self._resume = resume
        self.is_starved = False
        """True while a frame waits for memory to be received into."""
        self._frame_bytes = 0  # reserved for the frame that is being received
        self._answering_bytes = 0

    def received(self, sizes: Iterable[int], announced: int) -> None:
        """Count requests that have been received, and reserve memory for the frame that comes next (0: not known yet)."""
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
        """Count a request as the one that is being answered."""
        self._answering_bytes = size

    def end_answer(self) -> None:
        """Give back what the answered request took."""
        size, self._answering_bytes = self._answering_bytes, 0
        if size:
            self._memory.release(size)

    def close(self, queued_bytes: int) -> None:
        """Give back everything, `queued_bytes` of requests in the queue included: the connection has gone."""
        self._memory.forget(self)
        self._memory.release(self._frame_bytes + self._answering_bytes + queued_bytes)
        self._frame_bytes = self._answering_bytes = 0

    def _admitted(self, frame_bytes: int) -> None:
        self._frame_bytes = frame_bytes
        self.is_starved = False
        self._resume()
