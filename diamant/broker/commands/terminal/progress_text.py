"""The progress of a job or a cleaning round as text, and a command's own progress as a line that updates in place.

    12 %, 3.1 MiB, 1.2 MiB/s, 18s left

Imports little, because a command for a cluster takes only a tenth of a second.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from diamant.duration import duration_text

FIRST_S, PAUSE_S = 1.0, 0.2
_CLEAR = "\r\x1b[K"


def progress_text(progress: Mapping[str, Any]) -> str:
    """Describe a job's progress: its stage and, once known, the percentage done, the rate and the time left."""
    from diamant.words import size_text

    stage, done, total, unit = (progress[name] for name in ("stage", "done", "total", "unit"))
    if not done:
        return f"{stage} ..."
    rate, left_s = progress["rate_per_s"], progress["left_s"]
    parts = [f"{100 * done // total} %"] if total else []
    if unit == "bytes":
        parts.append(f"{size_text(done)} of {size_text(total)}" if total else size_text(done))
        if rate is not None:
            parts.append(f"{size_text(round(rate))}/s")
    elif not total:
        parts.append(f"{done:,} {unit}")
    if left_s is not None:
        parts.append(f"{duration_text(round(left_s) * 1000)} left" if left_s >= 1 else "0s left")
    return f"{stage} {', '.join(parts)}"


def round_text(one: Mapping[str, Any]) -> str:
    """Describe the progress of a cleaning round."""
    progress = one["progress"]
    stage = f", {progress['stage']}" if progress["stage"] else ""
    return progress_text({**progress, "stage": f"{one['topic']}-{one['partition']} by {one['runner']}{stage}:"})


class LiveProgress:
    """A progress line, cleared at the end of the `with`. Use `is_shown=False` if the output itself goes to the terminal.

    `total_bytes`: the total for `advance`; 0 if unknown.
    """

    def __init__(
        self, total_bytes: int = 0, *, is_shown: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._clock = clock
        self._is_shown = is_shown and sys.stderr.isatty()
        self._began = clock()
        self._next = self._began + FIRST_S
        self._is_there = False

    def advance(self, count: int) -> None:
        """Count `count` more bytes as done."""
        self._done_bytes += count
        self.show_bytes(self._done_bytes, self._done_bytes / self._total_bytes if self._total_bytes else None)

    def show_bytes(self, done_bytes: int, share: float | None = None) -> None:
        """Show the number of bytes done and, if known, `share`, which is the fraction of the total (0 to 1)."""
        now = self._clock()
        if not self._is_shown or now < self._next:
            return
        from diamant.words import size_text

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
        """Replace the line with `text`. Shows nothing during the first `FIRST_S`, then at most one text per `PAUSE_S`."""
        now = self._clock()
        if self._is_shown and now >= self._next:
            self._next, self._is_there = now + PAUSE_S, True
            print(_CLEAR + text, end="", file=sys.stderr, flush=True)

    def hide(self) -> None:
        """Clear the line before other output."""
        if self._is_there:
            print(_CLEAR, end="", file=sys.stderr, flush=True)
            self._is_there = False

    def __enter__(self) -> LiveProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.hide()
