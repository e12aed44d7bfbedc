"""Fetches that wait for data (Kafka's DelayedFetch and its purgatory).

A waiter keeps what it has read so far. An append to one of its logs marks that log dirty and, once per turn of the
loop, only the dirty ones are read again. So a consumer of a thousand partitions costs one read per append, and
several appends within one turn cost one check. A producer without consumers pays one dictionary lookup.

A fetch session waits for the same logs again and again. It has a `Watch` on them, which remembers what changed also between
two fetches, so that waiting once more does not cost anything per log.

Ends of waits are rounded up to a hundredth of the wait, so that many idle consumers share timers and turns of the loop.

After a notification a session gets no other for that log until it has read it. So appends cost
nothing for a session whose client is gone or slow: each of its logs notifies it once.

Bounds: one waiter per connection, since a connection's requests are handled one after the other; one watch per session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from math import ceil
from typing import Any, Protocol

from diamant.storage.log.log import Log


class DelayedOperation(Protocol):
    """A pending fetch, as the purgatory sees it."""

    def refresh(self, logs: Iterable[Log]) -> bool:
        """Read the partitions of these logs again; True when the fetch is complete."""
        ...

    def complete(self) -> None:
        """Answer with what there is now, unless that has been done."""
        ...


TICKS_OF_A_WAIT = 100
MIN_TICK_S = 0.001


class _Entry:
    """A waiter with its bookkeeping."""

    __slots__ = ("deadline_s", "dirty", "future", "logs", "waiter")

    def __init__(self, waiter: DelayedOperation, future: asyncio.Future[Any], logs: frozenset[Log]) -> None:
        self.waiter = waiter
        self.future = future
        self.logs = logs
        self.dirty: set[Log] = set()
        self.deadline_s = 0.0


class Watch:
    """Logs that are waited for again and again; made by `Purgatory.watch`."""

    __slots__ = ("_purgatory", "deadline_s", "dirty", "future", "logs", "waiter")

    def __init__(self, purgatory: Purgatory) -> None:
        self._purgatory = purgatory
        self.logs: set[Log] = set()
        self.dirty: set[Log] = set()
        """Logs that changed since they were last looked at."""
        self.waiter: DelayedOperation | None = None
        self.future: asyncio.Future[Any] | None = None
        self.deadline_s = 0.0

    def add(self, log: Log) -> None:
        """Watch one more log."""
        self.logs.add(log)
        self._purgatory.add_log(self, log)

    def remove(self, log: Log) -> None:
        """Watch a log no longer."""
        self.logs.discard(log)
        self.dirty.discard(log)
        self._purgatory.remove_log(self, log)

    def take_dirty(self) -> set[Log]:
        """Return the logs that changed since the last call; their next change counts again."""
        dirty, self.dirty = self.dirty, set()
        for log in dirty:
            self._purgatory.add_log(self, log)
        return dirty

    def wait(self, waiter: DelayedOperation, future: asyncio.Future[Any], max_wait_ms: int) -> None:
        """As `Purgatory.wait`, for the watched logs. Only one waits at a time."""
        assert self.future is None or self.future.done()
        self.waiter, self.future = waiter, future
        self._purgatory.wait_again(self, waiter, future, max_wait_ms)

    def close(self) -> None:
        """Watch nothing any more; who waits is answered."""
        if self.waiter is not None:
            self.waiter.complete()
        for log in list(self.logs):
            self.remove(log)


class Purgatory:
    """Waiters by the logs they wait for. Everything runs on the loop thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._by_log: dict[Log, set[_Entry | Watch]] = {}
        self._dirty: set[_Entry | Watch] = set()
        self._entries: set[_Entry | Watch] = set()
        self._expiring: dict[float, tuple[set[_Entry | Watch], asyncio.TimerHandle]] = {}
        """Waiters by the ends of their waits, in the loop's time, each with its timer; none without a waiter."""
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._entries)

    def wait(
        self, waiter: DelayedOperation, future: asyncio.Future[Any], logs: Iterable[Log], max_wait_ms: int
    ) -> None:
        """Hold `waiter` until `future` is done: by an append, after `max_wait_ms`, or cancelled with its connection."""
        if self._is_closed:
            waiter.complete()
            return
        entry = _Entry(waiter, future, frozenset(logs))
        self._entries.add(entry)
        for log in entry.logs:
            self.add_log(entry, log)
        future.add_done_callback(lambda _: self._remove(entry))
        self._expire_later(entry, max_wait_ms / 1000)

    def watch(self) -> Watch:
        """A watch on no log yet; to be closed."""
        return Watch(self)

    def add_log(self, entry: _Entry | Watch, log: Log) -> None:
        """Tell `entry` of the next change of a log."""
        self._by_log.setdefault(log, set()).add(entry)

    def remove_log(self, entry: _Entry | Watch, log: Log) -> None:
        """Do not tell `entry` of a log any more."""
        watching = self._by_log.get(log)
        if watching is not None:
            watching.discard(entry)
            if not watching:
                del self._by_log[log]

    def wait_again(self, watch: Watch, waiter: DelayedOperation, future: asyncio.Future[Any], max_wait_ms: int) -> None:
        """A watch's part of `Watch.wait`."""
        if self._is_closed:
            waiter.complete()
            return
        self._entries.add(watch)
        future.add_done_callback(lambda _: self._end_wait(watch, future))
        self._expire_later(watch, max_wait_ms / 1000)

    def wake(self, log: Log) -> None:
        """Something changed in `log`: more data, a moved start, deletion."""
        waiting = self._by_log.pop(log, None)
        if waiting is None:
            return
        if not self._dirty:
            self._loop.call_soon(self._refresh)
        for entry in waiting:
            entry.dirty.add(log)
        self._dirty |= waiting

    def is_watched(self, log: Log) -> bool:
        """True if a change of this log would notify a waiter or a watch."""
        return log in self._by_log

    def close(self) -> None:
        """Complete every waiter, and those that come later at once."""
        self._is_closed = True
        for entry in list(self._entries):
            if entry.waiter is not None:
                entry.waiter.complete()

    def _expire_later(self, entry: _Entry | Watch, wait_s: float) -> None:
        self._forget_deadline(entry)
        tick_s = max(MIN_TICK_S, wait_s / TICKS_OF_A_WAIT)
        deadline_s = entry.deadline_s = tick_s * ceil((self._loop.time() + wait_s) / tick_s)
        expiring = self._expiring.get(deadline_s)
        if expiring is None:
            expiring = self._expiring[deadline_s] = set(), self._loop.call_at(deadline_s, self._expire, deadline_s)
        expiring[0].add(entry)

    def _expire(self, deadline_s: float) -> None:
        entries, _ = self._expiring.pop(deadline_s)
        for entry in entries:
            if entry.waiter is None or entry.future is None:
                continue
            try:
                entry.waiter.complete()
            except Exception as error:
                entry.future.set_exception(error)  # as in `_refresh`

    def _forget_deadline(self, entry: _Entry | Watch) -> None:
        expiring = self._expiring.get(entry.deadline_s)
        if expiring is None:
            return
        entries, timer = expiring
        entries.discard(entry)
        if not entries:
            # A client chooses how long it waits, and may leave at once: what it asked for must not stay.
            timer.cancel()
            del self._expiring[entry.deadline_s]

    def _refresh(self) -> None:
        dirty, self._dirty = self._dirty, set()
        for entry in dirty:
            if entry.future is None or entry.waiter is None or entry.future.done():
                continue  # a watch without a waiter remembers what changed
            logs, entry.dirty = entry.dirty, set()
            for log in logs:
                self.add_log(entry, log)
            try:
                if entry.waiter.refresh(logs):
                    entry.waiter.complete()
            except Exception as error:
                # Goes the way of an exception in a handler: to this connection only.
                entry.future.set_exception(error)

    def _end_wait(self, watch: Watch, future: asyncio.Future[Any]) -> None:
        if watch.future is not future:
            return  # another waits already, since this was decided
        self._entries.discard(watch)
        self._forget_deadline(watch)
        watch.waiter = watch.future = None

    def _remove(self, entry: _Entry) -> None:
        self._entries.discard(entry)
        self._dirty.discard(entry)
        self._forget_deadline(entry)
        for log in entry.logs:
            self.remove_log(entry, log)
