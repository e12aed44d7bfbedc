"""`queued.max.request.bytes`: the memory that requests may take before connections are no longer read.

As in Kafka (SimpleMemoryPool) a frame is admitted as long as anything is left. So at most the limit and one request
more are in use, and every admitted request can be received and answered: there is no deadlock.
"""

from __future__ import annotations

from collections.abc import Callable


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
