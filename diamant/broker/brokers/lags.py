"""Lagging followers: the high watermark of a partition at a broker that does not lead it.

Leader and followers share one log; a lagging follower shows clients less of it. If it lags in time, its high watermark is the one
that its leader had that long ago on the broker's clock; if it lags in records, it is lower than its leader's by their number.

Bounds: while a broker lags in time, `STEPS` + 1 remembered ends for each partition that was written to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from diamant.storage.env.clocks import Clock
from diamant.storage.log.log import Log

STEPS = 64
"""The number of steps into which the longest time lag is divided. A record may become visible up to one step late."""


class FollowerLag(NamedTuple):
    """How far a follower is behind its leader, in time or in records; the other field is 0."""

    time_ms: int = 0
    records: int = 0

    def __str__(self) -> str:
        return f"{self.time_ms} ms" if self.time_ms else f"{self.records} records"


class Lags:
    """The lags of the brokers. Belongs to the loop thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lags: dict[int, FollowerLag] = {}
        self._ends: dict[Log, deque[tuple[int, int]]] = {}
        """The high watermarks of each log, as (time of effect, offset), oldest first. Kept while a broker lags in time."""
        self._order = count()
        self._due: list[tuple[int, int, Log]] = []
        """A heap of the times at which more of a log becomes visible at a follower, as (time, order of insertion, log)."""

    def of(self, broker_id: int) -> FollowerLag | None:
        """Return a broker's lag; None if it has none."""
        return self._lags.get(broker_id)

    def set(self, broker_id: int, lag: FollowerLag | None, logs: Iterable[Log]) -> None:
        """Set a broker's lag, or end it if `lag` is None. `logs`: all logs; records that they have now stay visible."""
        self._lags.pop(broker_id, None)
        if lag is not None:
            self._lags[broker_id] = lag
        if not self._longest_ms:
            self._ends.clear()
            self._due.clear()
        for log in logs if self._longest_ms else ():
            self._ends.setdefault(log, deque([(0, log.high_watermark)]))

    def end(self, broker_id: int, log: Log) -> int | None:
        """Return the high watermark of a log at a follower; None if the follower does not lag, so that the leader's applies."""
        lag = self._lags.get(broker_id)
        if lag is None:
            return None
        if lag.records:
            return max(log.high_watermark - lag.records, log.log_start_offset)
        until_ms = self._clock.now_ms() - lag.time_ms
        end = next((end for from_ms, end in reversed(self._ends.get(log, ())) if from_ms <= until_ms), 0)
        return max(end, log.log_start_offset)

    def changed(self, log: Log) -> None:
        """Remember the new high watermark of a log that was written to."""
        if not self._lags or not self._longest_ms:
            return
        now_ms = self._clock.now_ms()
        step_ms = max(self._longest_ms // STEPS, 1)
        from_ms = -(-now_ms // step_ms) * step_ms
        ends = self._ends.setdefault(log, deque([(0, 0)]))
        if ends[-1][1] == log.high_watermark:
            return
        if ends[-1][0] == from_ms:
            ends.pop()
        else:
            for lag in self._lags.values():
                if lag.time_ms:
                    heappush(self._due, (from_ms + lag.time_ms, next(self._order), log))
        ends.append((from_ms, log.high_watermark))
        while len(ends) > 1 and ends[1][0] + self._longest_ms <= now_ms:
            ends.popleft()

    def due_ms(self) -> int | None:
        """Return the next time at which more of a log becomes visible at a follower; None if nothing is pending."""
        return self._due[0][0] if self._due else None

    def take_due(self) -> Iterator[Log]:
        """Yield the logs of which more has become visible at a follower, and remove them from the heap."""
        while self._due and self._due[0][0] <= self._clock.now_ms():
            yield heappop(self._due)[2]

    @property
    def _longest_ms(self) -> int:
        return max((lag.time_ms for lag in self._lags.values()), default=0)
