"""The locks of a share partition, listed by the time at which they end, and by member.

A lock stays listed after its records were acknowledged or renewed, so callers must also check the runs.

Bound: twice the locks at the last rebuild, plus `_SPARE` and the locks of one request. Then the list is rebuilt from the runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import NamedTuple

from diamant.broker.groups.share.ranges import RecordState, Run

_SPARE = 1_024


class RecordLock(NamedTuple):
    """A lock on records of one batch in flight."""

    ends_ms: int
    first: int
    last: int


class RecordLocks:
    """The locks of one share partition; see the module."""

    __slots__ = ("_by_end", "_of_member", "_room")

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._by_end: list[RecordLock] = []
        self._of_member: dict[str, list[RecordLock]] = {}
        self._room = 0
        for run in runs:
            if run.state is RecordState.ACQUIRED:
                self.add(run)
        self._room = len(self._by_end) + _SPARE

    @property
    def is_full(self) -> bool:
        """Whether the list has to be rebuilt, because many of its locks may have ended."""
        return self._room <= 0

    def add(self, run: Run) -> None:
        """Add the lock of an acquired run."""
        lock = RecordLock(run.lock_ends_ms, run.first, run.last)
        heappush(self._by_end, lock)
        self._of_member.setdefault(run.member_id, []).append(lock)
        self._room -= 1

    @property
    def first(self) -> RecordLock | None:
        """The lock that ends first."""
        return self._by_end[0] if self._by_end else None

    def drop_first(self) -> RecordLock:
        """Remove and return the lock that ends first."""
        return heappop(self._by_end)

    def drop_member(self, member_id: str) -> list[RecordLock]:
        """Return the locks of a member, and remove them from the list by member."""
        return self._of_member.pop(member_id, [])
