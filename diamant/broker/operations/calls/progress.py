"""The progress of a long call. One thread writes it, the loop's or a worker's; any thread may read it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeAlias

from diamant.cleaner.rules.pace import pace

Measure: TypeAlias = Callable[[], tuple[int, int]]
"""Returns the amounts done and in total. Called on the loop thread."""


class Progress:
    """`stage` names the current step in a few words, without keys or values. `done` of `total` are counted in `unit`.

    A `total` of None: not known yet. `on_change` is called after each change, in the thread that made it.
    `job_id`: the id of the erasure or redaction, once there is one; such a job continues without the call.
    """

    __slots__ = ("_began_s", "_measure", "done", "job_id", "on_change", "stage", "total", "unit")

    def __init__(self, on_change: Callable[[Progress], object] | None = None) -> None:
        self.stage = ""
        self.done = 0
        self.total: int | None = None
        self.unit = ""
        self.job_id: str | None = None
        self.on_change = on_change
        self._measure: Measure | None = None
        self._began_s = time.monotonic()

    def begin(self, stage: str, total: int | None = None, unit: str = "", *, measure: Measure | None = None) -> None:
        """Begin another stage. Each reading calls `measure`, if given, until `end_measure` or the next stage."""
        self.stage, self.done, self.total, self.unit = stage, 0, total, unit
        self._measure, self._began_s = measure, time.monotonic()
        self._tell()

    def advance(self, count: int = 1) -> None:
        """Add `count` to the amount done."""
        self.done += count
        self._tell()

    def move_to(self, done: int, total: int | None = None) -> None:
        """Set the amount done, and the total if it is known now."""
        self.done = done
        if total is not None:
            self.total = total
        self._tell()

    def end_measure(self) -> None:
        """Keep the last measured amounts and stop measuring."""
        self._look()
        self._measure = None
        self._tell()

    def to_fields(self) -> dict[str, Any]:
        """Return the JSON fields. `rate_per_s` (in `unit`) and `left_s` concern this stage, in real time; None if not known."""
        self._look()
        rate, left_s = pace(self.done, self.total, time.monotonic() - self._began_s)
        return {
            "stage": self.stage,
            "done": self.done,
            "total": self.total,
            "unit": self.unit,
            "rate_per_s": None if rate is None else round(rate, 1),
            "left_s": None if left_s is None else round(left_s, 1),
        }

    def _look(self) -> None:
        if self._measure is not None:
            done, self.total = self._measure()
            self.done = max(self.done, done)  # each further round starts at 0

    def _tell(self) -> None:
        if self.on_change is not None:
            self.on_change(self)
