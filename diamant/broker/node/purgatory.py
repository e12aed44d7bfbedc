"""Fetches that wait for data (Kafka's DelayedFetch and its purgatory).

A waiter keeps the data read so far. An append to one of its logs marks the log dirty. Once per turn of the
loop, only dirty logs are read again. So a consumer of a thousand partitions costs one read per append, and
several appends within one turn cost one check. A producer without consumers costs one dictionary lookup.

A waiter waits on a `Watch` of logs. The watch of a fetch session outlives the session's fetches and remembers the changes between
them, so that the next wait costs nothing per log.

Deadlines are rounded up, by at most a 25th of the wait and at most 20 ms. Idle consumers therefore share timers and turns of the
loop, and clients answered in one turn send their next requests together.

A log notifies a session only once until the session has read it. So appends cost nothing for a session whose client has left or
is slow.

Bounds: one waiter per connection, since a connection's requests are handled one after the other; one watch per waiter or session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from math import ceil
from typing import Protocol

from diamant.broker.network.api import Answer
from diamant.broker.network.pending_answer import Body, PendingAnswer
from diamant.storage.log.log import Log


class DelayedOperation(Protocol):
    """The part of a pending fetch that the purgatory uses."""

    def refresh(self, logs: Iterable[Log]) -> bool:
        """Read the partitions of these logs again; return whether the fetch is complete."""
        ...

    def encode(self) -> Body:
        """Return the answer with the data read so far."""
        ...


TICKS_OF_A_WAIT = 25
MIN_TICK_S = 0.001
MAX_TICK_S = 0.02


class Watch:
    """A set of watched logs. It lasts until `close` if `Purgatory.watch` created it, otherwise for one wait."""

    __slots__ = ("_answer", "_is_for_once", "_purgatory", "deadline_s", "dirty", "logs", "waiter")

    def __init__(self, purgatory: Purgatory, *, is_for_once: bool) -> None:
        self._purgatory = purgatory
        self._is_for_once = is_for_once
        self.logs: set[Log] = set()
        self.dirty: set[Log] = set()
        """Logs that changed since they were last read."""
        self.waiter: DelayedOperation | None = None
        self._answer: PendingAnswer | None = None
        self.deadline_s: float | None = None
        """The deadline of the current wait in the loop's time; None if there is no wait."""

    def add(self, log: Log) -> None:
        """Watch one more log."""
        self.logs.add(log)
        self._purgatory.add_log(self, log)

    def remove(self, log: Log) -> None:
        """Stop watching a log."""
        self.logs.discard(log)
        self.dirty.discard(log)
        self._purgatory.remove_log(self, log)

    def take_dirty(self) -> set[Log]:
        """Return the logs that changed since the last call, and watch for their next change."""
        dirty = self.dirty
        if dirty:
            self.dirty = set()
            for log in dirty:
                self._purgatory.add_log(self, log)
        return dirty

    def wait(self, waiter: DelayedOperation, max_wait_ms: int) -> Answer:
        """Return an answer that `waiter` gives once a change completes it, or after `max_wait_ms`. One waiter at a time."""
        assert self.waiter is None
        if self._purgatory.is_closed:
            return waiter.encode()
        self.waiter = waiter
        answer = self._answer = PendingAnswer(self._end_wait)
        self._purgatory.expire_later(self, max_wait_ms / 1000)
        return answer

    def complete(self) -> None:
        """Answer the waiter, if any, with its data so far."""
        waiter, answer = self.waiter, self._answer
        if waiter is None or answer is None:
            return
        self._end_wait()
        try:
            body = waiter.encode()
        except Exception as error:
            answer.give(None, error)  # affects only its own connection, like an exception in a handler
        else:
            answer.give(body)

    def refresh(self) -> None:
        """Let the waiter read the changed logs. If there is none, keep the changes for the next wait."""
        waiter, answer = self.waiter, self._answer
        if waiter is None or answer is None:
            return
        try:
            is_complete = waiter.refresh(self.take_dirty())
        except Exception as error:
            self._end_wait()
            answer.give(None, error)
            return
        if is_complete:
            self.complete()

    def close(self) -> None:
        """Stop watching, and answer pending waiters."""
        self.complete()
        for log in list(self.logs):
            self.remove(log)

    def _end_wait(self) -> None:
        self.waiter = self._answer = None
        if self.deadline_s is not None:
            self._purgatory.forget_deadline(self, self.deadline_s)
        if self._is_for_once:
            self.close()


class Purgatory:
    """All watches, by log. Belongs to the loop thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._by_log: dict[Log, set[Watch]] = {}
        self._dirty: set[Watch] = set()
        self._expiring: dict[float, tuple[set[Watch], asyncio.TimerHandle]] = {}
        """By deadline, in the loop's time: the watches with a waiter, and the timer that they share."""
        self.is_closed = False

    def __len__(self) -> int:
        """Return the number of waiters."""
        return sum(len(watches) for watches, _ in self._expiring.values())

    def wait(self, waiter: DelayedOperation, logs: Iterable[Log], max_wait_ms: int) -> Answer:
        """Like `Watch.wait`, with a watch of these logs that lasts only for this wait."""
        watch = Watch(self, is_for_once=True)
        for log in logs:
            watch.add(log)
        return watch.wait(waiter, max_wait_ms)

    def watch(self) -> Watch:
        """Return a watch without logs. It lasts until the caller closes it."""
        return Watch(self, is_for_once=False)

    def add_log(self, watch: Watch, log: Log) -> None:
        """Notify `watch` of the next change of a log."""
        self._by_log.setdefault(log, set()).add(watch)

    def remove_log(self, watch: Watch, log: Log) -> None:
        """Stop notifying `watch` of a log."""
        watching = self._by_log.get(log)
        if watching is not None:
            watching.discard(watch)
            if not watching:
                del self._by_log[log]

    def wake(self, log: Log) -> None:
        """Notify the watches of a changed `log`: more data, a moved start, deletion."""
        watching = self._by_log.pop(log, None)
        if watching is None:
            return
        if not self._dirty:
            self._loop.call_soon(self._refresh)
        for watch in watching:
            watch.dirty.add(log)
        self._dirty |= watching

    def is_watched(self, log: Log) -> bool:
        """Return whether a change of this log would notify a watch."""
        return log in self._by_log

    def close(self) -> None:
        """Complete every waiter. Later waiters are completed immediately."""
        self.is_closed = True
        for watches, _ in list(self._expiring.values()):
            for watch in list(watches):
                watch.complete()

    def expire_later(self, watch: Watch, wait_s: float) -> None:
        """Complete the waiter of `watch` after `wait_s`, unless `forget_deadline` is called first."""
        tick_s = min(max(MIN_TICK_S, wait_s / TICKS_OF_A_WAIT), MAX_TICK_S)
        deadline_s = watch.deadline_s = tick_s * ceil((self._loop.time() + wait_s) / tick_s)
        expiring = self._expiring.get(deadline_s)
        if expiring is None:
            expiring = self._expiring[deadline_s] = set(), self._loop.call_at(deadline_s, self._expire, deadline_s)
        expiring[0].add(watch)

    def forget_deadline(self, watch: Watch, deadline_s: float) -> None:
        """Drop the deadline of `watch`, whose wait has ended early."""
        watch.deadline_s = None
        watches, timer = self._expiring[deadline_s]
        watches.remove(watch)
        if not watches:
            # A client may choose a distant deadline and disconnect immediately, so the timer must not outlive the wait.
            timer.cancel()
            del self._expiring[deadline_s]

    def _expire(self, deadline_s: float) -> None:
        watches, _ = self._expiring.pop(deadline_s)
        for watch in watches:
            watch.deadline_s = None
        for watch in watches:
            watch.complete()

    def _refresh(self) -> None:
        dirty, self._dirty = self._dirty, set()
        for watch in dirty:
            watch.refresh()
