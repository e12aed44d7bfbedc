"""Connections take turns in using the loop thread: the connection that has used the least time comes first.

Most requests are answered as soon as they are read. A connection that has sent many requests is served for `SLICE_S`, then it
waits for its next turn. Once requests have used `TURN_S` in one turn of the loop, all connections wait. So a client with a small
request waits for the slices of one turn, not for the queues of other clients. Nor does it wait until thousands of connections
have been closed because their peers closed them together.

The order is start-time fair queueing: a connection's tag is the time that it has used, but at least the tag that was served last,
so an idle connection does not save up time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from heapq import heappop, heappush
from time import monotonic
from typing import Protocol, TypeVar

T = TypeVar("T")

TURN_S = 0.005
"""The maximum time for requests in a turn of the loop. It is restored only after it has been used up, since a callback in every
turn would cost more. A request that takes longer also uses up the time of the following turns. This leaves time for new
connections, which need several turns until they are accepted and their first request is read.
"""

SLICE_S = 0.002
"""The time that a connection may use before others get their turn."""

COUNTED_S = 0.0002
"""Shorter times are not counted, since counting them would cost more than it saves."""

MAX_COUNTED_S = 0.1
"""The maximum time that is counted for one turn. If a turn takes longer, the machine was probably busy with something else. If
all the time were counted, the connection would wait that long for its next turn, and a request that its client resends on another
connection would be handled before the original.
"""

CLOSED_PER_TURN = 200
"""The maximum number of connections, idle or closed by their peers, that are closed in one turn of the loop. Closing ten thousand
takes half a second. While one is closed, peers can close several more, so without this limit each turn would close more of them.
"""

MAX_AT_ONCE = 2000
"""A request with more topics, partitions or similar elements is answered with `in_slices`, in several turns of the loop."""


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield items; after each `SLICE_S`, let other connections have a turn. The broker's state may change during these turns."""
    since_s = monotonic()
    for item in items:
        yield item
        if monotonic() - since_s > SLICE_S:
            await asyncio.sleep(0)
            since_s = monotonic()


class TakingTurns(Protocol):
    """The view that `Turns` has of a connection."""

    used_s: float
    """The connection's tag (see the module docstring)."""

    def take_turn(self) -> None:
        """Handle queued requests for at most a slice of time."""

    def close(self) -> None:
        """Close the connection. Idempotent."""


class Turns:
    """The turns of one server. Belongs to the loop thread."""

    __slots__ = ("_ended", "_is_due", "_loop", "_may_close", "_now_s", "_number", "_waiting", "left_s")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[tuple[float, int, TakingTurns]] = []
        self._number = 0
        self._now_s = 0.0  # the tag that was served last
        self.left_s = TURN_S
        """The time left for requests; zero or less if it is used up."""
        self._is_due = False
        self._ended: deque[TakingTurns] = deque()
        self._may_close = CLOSED_PER_TURN

    def used(self, connection: TakingTurns, seconds: float) -> None:
        """Count time that a connection has used."""
        seconds = min(seconds, MAX_COUNTED_S)
        connection.used_s = max(connection.used_s, self._now_s) + seconds
        self.left_s -= seconds
        if self.left_s <= 0:
            self._begin_soon()

    def wait(self, connection: TakingTurns) -> None:
        """Call the connection's `take_turn` when its turn comes. Do not call this again before that."""
        self._number += 1
        heappush(self._waiting, (max(connection.used_s, self._now_s), self._number, connection))
        self._begin_soon()

    def closes_later(self, connection: TakingTurns) -> bool:
        """Return True if a connection that its peer closed will be closed in a later turn; if False, the caller closes it now."""
        self._begin_soon()
        if self._may_close > 0:
            self._may_close -= 1
            return False
        self._ended.append(connection)
        return True

    def _begin_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._is_due = False
        self.left_s = min(TURN_S, self.left_s + TURN_S)
        while self._waiting and self.left_s > 0:
            self._now_s, _, connection = heappop(self._waiting)
            connection.take_turn()
        self._may_close = CLOSED_PER_TURN
        while self._ended and self._may_close > 0:
            self._may_close -= 1
            self._ended.popleft().close()
        if self._waiting or self.left_s <= 0 or self._ended:
            self._begin_soon()
