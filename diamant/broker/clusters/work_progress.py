"""The progress and the time limit of a compaction or erasure on a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from diamant.broker.clusters.fetching import Stretch

if TYPE_CHECKING:
    from diamant.json_types import OnProgress

SHOWN_S = 0.5


class TimeIsUp(Exception):
    """The caller's timeout has passed."""


class WorkProgress:
    """Reports progress (in the form of a broker's job) and notes to the caller. `check` raises TimeIsUp after `timeout_s`."""

    def __init__(
        self,
        timeout_s: float,
        on_progress: OnProgress | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_note: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.clock = clock
        self._deadline = clock() + timeout_s
        self._on_progress = on_progress
        self._on_note = on_note
        self._noted: set[str] = set()
        self._stage = ""
        self._began = 0.0
        self._shown = 0.0
        self._stretches: Sequence[Stretch] = ()
        self._total = 0

    def note(self, text: str) -> None:
        """Send the caller a sentence, unless it has been sent already."""
        if text not in self._noted:
            self._noted.add(text)
            self._on_note(text)

    def stage(self, name: str) -> None:
        """Begin a stage whose progress cannot be measured. Raises TimeIsUp."""
        self._stage, self._stretches, self._shown = name, (), 0.0
        self.check()

    def reading(self, name: str, stretches: Sequence[Stretch]) -> None:
        """Begin a stage that reads stretches; its progress is measured in offsets. Raises TimeIsUp."""
        self.stage(name)
        self._stretches = stretches
        self._total = sum(max(0, one.end_offset - one.next_offset) for one in stretches)
        self._began = self.clock()

    def check(self) -> None:
        """Report the progress, but at most once every `SHOWN_S` seconds. Raises TimeIsUp."""
        now = self.clock()
        if now > self._deadline:
            raise TimeIsUp
        if self._on_progress is None or now - self._shown < SHOWN_S:
            return
        self._shown = now
        left = sum(max(0, one.end_offset - one.next_offset) for one in self._stretches if not one.problem)
        done, elapsed_s = max(0, self._total - left), now - self._began
        rate = done / elapsed_s if self._stretches and done and elapsed_s > 1 else None
        self._on_progress(
            {
                "stage": self._stage,
                "done": done if self._stretches else 0,
                "total": self._total if self._stretches else None,
                "unit": "offsets" if self._stretches else "",
                "rate_per_s": rate,
                "left_s": None if not rate else left / rate,
            }
        )
