"""The progress of what a command does by itself, as one line on standard error that replaces itself.

    12 %, 3.1 MiB, 1.2 MiB/s, 18s left

Only on a terminal, and from the first second on. Imports little: most commands are over by then.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType

FIRST_S, PAUSE_S = 1.0, 0.2
_CLEAR = "\r\x1b[K"


class LiveProgress:
    """A line that is taken away when the `with` ends. `is_shown`: not where the terminal shows what comes out of the command."""

    def __init__(self, *, is_shown: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._is_shown = is_shown and sys.stderr.isatty()
        self._began = clock()
        self._next = self._began + FIRST_S
        self._is_there = False

    def tell(self, done_bytes: int, share: float | None = None) -> None:
        """Show how much is done, and `share` of it all (0 to 1) if that is known."""
        now = self._clock()
        if not self._is_shown or now < self._next:
            return
        from diamant.broker.client.duration import duration_text
        from diamant.broker.commands.terminal.files import size_text

        elapsed_s = now - self._began
        parts = [size_text(done_bytes), f"{size_text(round(done_bytes / elapsed_s))}/s"]
        if share:
            left_s = round(elapsed_s * (1 - min(share, 1)) / share)
            parts = [
                f"{min(100, int(100 * share))} %",
                *parts,
                f"{duration_text(left_s * 1000) if left_s else '0s'} left",
            ]
        self.show(", ".join(parts))

    def show(self, text: str) -> None:
        """Show a text, at most every `PAUSE_S` and from `FIRST_S` on."""
        now = self._clock()
        if self._is_shown and now >= self._next:
            self._next, self._is_there = now + PAUSE_S, True
            print(_CLEAR + text, end="", file=sys.stderr, flush=True)

    def __enter__(self) -> LiveProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_there:
            print(_CLEAR, end="", file=sys.stderr, flush=True)
