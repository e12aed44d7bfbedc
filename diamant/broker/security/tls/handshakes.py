"""The TLS handshakes in progress: their thread, their limit and their timeout.

A handshake with an RSA key takes at least half a millisecond of processor time, and after a restart of the broker all clients
reconnect at once. So one thread computes the handshakes (OpenSSL releases the interpreter's lock), and the loop only moves bytes.

Bounds: `MAX_HANDSHAKES` of about 40 KiB each, and `HANDSHAKE_TIMEOUT_S` for a whole handshake. Beyond the limit, a handshake that
waits for its peer is evicted: of the address with the most such handshakes, the one that has waited longest. So one address
cannot evict the handshakes of others. A handshake that waits for the broker is never evicted, so that a rush of honest clients
gets through.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

MAX_HANDSHAKES = 1000
"""The maximum number of handshakes in progress, for all listeners together."""

HANDSHAKE_TIMEOUT_S = 30.0
"""The maximum time from accepting a connection to the end of its handshake."""


class Handshake(Protocol):
    """A connection whose handshake is in progress."""

    address: str
    """The address of the peer, without the port."""

    def advance(self) -> None:
        """Compute the next step. Runs in the handshake thread."""

    def advanced(self) -> None:
        """Act on the result of `advance`. Runs on the loop."""

    def give_up(self, reason: str) -> None:
        """Close the connection. Runs on the loop."""


class Handshakes:
    """The handshakes of one broker. Belongs to the loop thread."""

    def __init__(self, *, most: int = MAX_HANDSHAKES, timeout_s: float = HANDSHAKE_TIMEOUT_S) -> None:
        self._most = most
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._deadlines: dict[Handshake, float] = {}
        """All handshakes, oldest first. Deadlines are on the loop's clock."""
        self._waiting: dict[str, dict[Handshake, None]] = {}
        """The handshakes that wait for their peers, by address, longest wait first. Addresses without any are removed."""
        self._due: deque[Handshake] = deque()
        """The handshakes that wait for the thread."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tls")
        self._is_working = False
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._deadlines)

    def begin(self, handshake: Handshake) -> bool:
        """Register a new connection. False if the limit is reached and no handshake can be evicted."""
        if self._is_closed:
            return False
        if len(self._deadlines) >= self._most:
            if not self._waiting:
                return False
            of_address = max(self._waiting.values(), key=len)  # at most 25 µs, if each handshake has its own address
            longest = next(iter(of_address))
            self.end(longest)
            longest.give_up(f"its TLS handshake was evicted: more than {self._most} at the same time")
        self._deadlines[handshake] = self._loop.time() + self._timeout_s
        self.wait(handshake)
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._end_late)
        return True

    def step(self, handshake: Handshake) -> None:
        """Schedule the next step after bytes from the peer have arrived."""
        self._wait_no_more(handshake)
        self._due.append(handshake)
        if not (self._is_working or self._is_closed):
            self._work()

    def wait(self, handshake: Handshake) -> None:
        """Record that a handshake needs more bytes from its peer."""
        if handshake in self._deadlines:
            self._waiting.setdefault(handshake.address, {})[handshake] = None

    def end(self, handshake: Handshake) -> None:
        """Remove a handshake that is done or aborted. Idempotent."""
        self._deadlines.pop(handshake, None)
        self._wait_no_more(handshake)

    def close(self) -> None:
        """Abort all handshakes and refuse new ones."""
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
        # The flag is set last: if the system refuses a thread, the next step tries again.
        self._loop.run_in_executor(self._thread, self._compute).add_done_callback(self._has_worked)
        self._is_working = True

    def _compute(self) -> None:
        """Compute steps until none is pending. Runs in the handshake thread."""
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
        if self._due and not self._is_closed:  # steps were added after the thread had found none
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
