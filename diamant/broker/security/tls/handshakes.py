"""The TLS handshakes of a broker that have begun and are not done: their thread, their number, their time.

A handshake with an RSA key takes a processor half a millisecond and more, and clients come back all at once when a broker has
been restarted. So handshakes are computed in one thread of their own (OpenSSL releases the interpreter's lock); the loop only
moves bytes.

Bounds: `MAX_HANDSHAKES`, some 40 KiB each. With more, one that waits for its peer has to go: of the address that has most of
these, so that one address cannot push out others, the one that has waited longest. Those that wait for us never do, so that many
honest clients at the same time get through. `HANDSHAKE_TIMEOUT_S` for each as a whole.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

MAX_HANDSHAKES = 1000
"""At the same time, of all listeners."""

HANDSHAKE_TIMEOUT_S = 30.0
"""From the connection to the end of its handshake."""


class Handshake(Protocol):
    """One connection that is not secured yet."""

    address: str
    """Its peer's, without the port."""

    def advance(self) -> None:
        """Compute the next step; in the thread of handshakes."""

    def advanced(self) -> None:
        """Go by what `advance` found; on the loop."""

    def give_up(self, reason: str) -> None:
        """Close the connection; on the loop."""


class Handshakes:
    """Of one broker; its loop thread's."""

    def __init__(self, *, most: int = MAX_HANDSHAKES, timeout_s: float = HANDSHAKE_TIMEOUT_S) -> None:
        self._most = most
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._deadlines: dict[Handshake, float] = {}
        """Every one, the oldest first; by the loop's clock."""
        self._waiting: dict[str, dict[Handshake, None]] = {}
        """Those that wait for their peers, by address; the one that has waited longest first. No address is without one."""
        self._due: deque[Handshake] = deque()
        """Those that wait for the thread."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tls")
        self._is_working = False
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._deadlines)

    def begin(self, handshake: Handshake) -> bool:
        """Take in a new connection; False if there is no room, even without those that wait for their peers."""
        if self._is_closed:
            return False
        if len(self._deadlines) >= self._most:
            if not self._waiting:
                return False
            of_address = max(self._waiting.values(), key=len)  # 25 µs at worst, with as many addresses as handshakes
            longest = next(iter(of_address))
            self.end(longest)
            longest.give_up(f"its TLS handshake has to give way: more than {self._most} at the same time")
        self._deadlines[handshake] = self._loop.time() + self._timeout_s
        self.wait(handshake)
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._end_late)
        return True

    def step(self, handshake: Handshake) -> None:
        """Bytes of its peer are there: have the next step computed."""
        self._wait_no_more(handshake)
        self._due.append(handshake)
        if not (self._is_working or self._is_closed):
            self._work()

    def wait(self, handshake: Handshake) -> None:
        """It needs more bytes of its peer."""
        if handshake in self._deadlines:
            self._waiting.setdefault(handshake.address, {})[handshake] = None

    def end(self, handshake: Handshake) -> None:
        """It is done or given up; harmless a second time."""
        self._deadlines.pop(handshake, None)
        self._wait_no_more(handshake)

    def close(self) -> None:
        """Give up all of them, and take no more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due.clear()
        for handshake in list(self._deadlines):
            self.end(handshake)
            handshake.give_up("")
        self._thread.shutdown(wait=False)

    def _wait_no_more(self, handshake: Handshake) -> None:
        waiting = self._waiting.get(handshake.address)
        if waiting is not None:
            waiting.pop(handshake, None)
            if not waiting:
                del self._waiting[handshake.address]

    def _work(self) -> None:
        self._is_working = True
        self._loop.run_in_executor(self._thread, self._compute).add_done_callback(self._has_worked)

    def _compute(self) -> None:
        """In the thread: steps until there are none."""
        while True:
            try:
                handshake = self._due.popleft()
            except IndexError:
                return
            handshake.advance()
            self._loop.call_soon_threadsafe(handshake.advanced)

    def _has_worked(self, working: asyncio.Future[None]) -> None:
        self._is_working = False
        working.result()
        if self._due and not self._is_closed:  # came after the thread had looked for more
            self._work()

    def _end_late(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        for handshake, deadline_s in list(self._deadlines.items()):
            if deadline_s > now_s:
                self._timer = self._loop.call_at(deadline_s, self._end_late)
                return
            self.end(handshake)
            handshake.give_up(f"no TLS handshake within {self._timeout_s:g} s")
