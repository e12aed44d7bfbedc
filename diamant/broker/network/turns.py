"""The time of the loop's thread, shared among connections: the one that has used the least comes first.

Most requests are answered as they are read. A connection that has sent many at once is served for `SLICE_S`, then it waits for a
turn; so do all others once the requests of a turn of the loop have taken `TURN_S`. So a client with a small request waits for the
slices of a turn, not for the queues of other clients. Nor does it wait until thousands are closed whose peers end at once.

The order is that of start-time fair queueing: a connection's tag is the time that it has used, but not less than the tag that was
served last, so no connection saves time up.
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
"""The most time for requests in a turn of the loop. Once it is used up, the next turn restores it: a callback in every turn would
cost more. If a single request takes longer, the next turns have none: accepting a connection and reading its first request takes
several.
"""

SLICE_S = 0.002
"""The time of one connection until others have theirs."""

COUNTED_S = 0.0002
"""What takes less is not counted, which would cost more than it saves."""

MAX_COUNTED_S = 0.1
"""What is counted of one request at most. The rest was a machine busy with something else: if it counted, the connection would
wait as long for its next turn, and a request that its client resends on another one would be handled after that one.
"""

CLOSED_PER_TURN = 200
"""The most connections that are closed in one turn of the loop: idle ones, or those whose peers have closed them. Ten thousand
would take half a second; and while one is closed a peer can close several, so each turn would have more of them than the last.
"""

MAX_AT_ONCE = 2000
"""The topics, partitions or the like up to which a request is answered in one turn of the loop; more of them `in_slices`."""


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield items, and let others have their turn in between. The broker may change in between."""
    since_s = monotonic()
    for item in items:
        yield item
        if monotonic() - since_s > SLICE_S:
            await asyncio.sleep(0)
            since_s = monotonic()


class TakingTurns(Protocol):
    """The view of a connection."""

    used_s: float
    """Its tag."""

    def take_turn(self) -> None:
        """Handle queued requests for a slice."""

    def close(self) -> None:
        """Close it; idempotent."""


class Turns:
    """The turns of one server. Belongs to the loop thread."""

    __slots__ = ("_ended", "_is_due", "_loop", "_may_close", "_now_s", "_number", "_waiting", "left_s")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[tuple[float, int, TakingTurns]] = []
        self._number = 0
        self._now_s = 0.0  # the tag that was served last
        self.left_s = TURN_S
        """The time that is left; not above zero if it is used up."""
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
        """Have `take_turn` called when it is the connection's turn. Once until then."""
        self._number += 1
        heappush(self._waiting, (max(connection.used_s, self._now_s), self._number, connection))
        self._begin_soon()

    def closes_later(self, connection: TakingTurns) -> bool:
        """Tell whether a connection whose peer has ended is closed in a later turn; else its caller closes it now."""
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
