"""Fetches that wait for data (Kafka's DelayedFetch and its purgatory).

A waiter keeps what it has read so far. An append to one of its logs marks that log dirty and, once per turn of the
loop, only the dirty ones are read again. So a consumer of a thousand partitions costs one read per append, and
several appends within one turn cost one check. A producer without consumers pays one dictionary lookup.

Bound: one waiter per connection, since a connection's requests are handled one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

from diamant.storage.log import Log


class Waiter(Protocol):
    """A fetch under way, as the purgatory sees it."""

    def refresh(self, logs: Iterable[Log]) -> bool:
        """Read the partitions of these logs again; True when the fetch is complete."""
        ...

    def complete(self) -> None:
        """Answer with what there is now, unless that has been done."""
        ...


class _Entry:
    """A waiter with its bookkeeping."""

    __slots__ = ("dirty", "future", "logs", "timer", "waiter")

    def __init__(self, waiter: Waiter, future: asyncio.Future[Any], logs: frozenset[Log]) -> None:
        self.waiter = waiter
        self.future = future
        self.logs = logs
        self.dirty: set[Log] = set()
        self.timer: asyncio.TimerHandle | None = None


class Purgatory:
    """Waiters by the logs they wait for. Everything runs on the loop thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._by_log: dict[Log, set[_Entry]] = {}
        self._dirty: set[_Entry] = set()
        self._entries: set[_Entry] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._entries)

    def wait(self, waiter: Waiter, future: asyncio.Future[Any], logs: Iterable[Log], max_wait_ms: int) -> None:
        """Hold `waiter` until `future` is done: by an append, after `max_wait_ms`, or cancelled with its connection."""
        if self._is_closed:
            waiter.complete()
            return
        entry = _Entry(waiter, future, frozenset(logs))
        self._entries.add(entry)
        for log in entry.logs:
            self._by_log.setdefault(log, set()).add(entry)
        future.add_done_callback(lambda _: self._remove(entry))
        entry.timer = self._loop.call_later(max_wait_ms / 1000, waiter.complete)

    def wake(self, log: Log) -> None:
        """Something changed in `log`: more data, a moved start, deletion."""
        waiting = self._by_log.get(log)
        if waiting is None:
            return
        if not self._dirty:
            self._loop.call_soon(self._refresh)
        for entry in waiting:
            entry.dirty.add(log)
        self._dirty |= waiting

    def close(self) -> None:
        """Complete every waiter, and those that come later at once."""
        self._is_closed = True
        for entry in list(self._entries):
            entry.waiter.complete()

    def _refresh(self) -> None:
        dirty, self._dirty = self._dirty, set()
        for entry in dirty:
            if entry.future.done():
                continue
            logs, entry.dirty = entry.dirty, set()
            try:
                is_complete = entry.waiter.refresh(logs)
            except Exception as error:
                # Goes the way of an exception in a handler: to this connection only.
                entry.future.set_exception(error)
                continue
            if is_complete:
                entry.waiter.complete()

    def _remove(self, entry: _Entry) -> None:
        self._entries.discard(entry)
        self._dirty.discard(entry)
        if entry.timer is not None:
            entry.timer.cancel()
        for log in entry.logs:
            waiting = self._by_log[log]
            waiting.discard(entry)
            if not waiting:
                del self._by_log[log]
