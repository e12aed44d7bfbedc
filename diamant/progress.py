"""The progress of a long call. One thread (the loop's or a worker's) writes it; any may read it unless a `measure` is set."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

SHORTEST_S = 1.0
"""The shortest elapsed time after which a rate is estimated."""

Measure: TypeAlias = Callable[[], tuple[int, int]]
"""Returns the amount done and the total. Called on the loop thread."""


def pace(done: int, total: int | None, elapsed_s: float) -> tuple[float | None, float | None]:
    """Return the amount done per second, and the seconds left at this rate; each is None while unknown."""
    if elapsed_s < SHORTEST_S or done <= 0:
        return None, None
    rate = done / elapsed_s
    return rate, None if total is None else max(0, total - done) / rate


class Reading(NamedTuple):
    """A snapshot of the progress of the current stage."""

    stage: str
    """The stage in a few words, without record keys or values."""
    done: int
    total: int | None
    """None if not known yet."""
    unit: str
    rate_per_s: float | None = None
    """In `unit` per second of real time; None if unknown."""
    left_s: float | None = None
    """Remaining time at this rate; None if unknown."""


class Progress:
    """The progress of a call. `stage` is its current step in a few words, without record keys or values.

    `done` and `total` are counted in `unit`; `total` is None until known. `on_change` is called after each change, in the thread
    that made it. `job_id`: the id of the erasure or redaction once it exists; such a job continues even if the call ends.
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
        """Begin another stage. If `measure` is given, each `read` calls it, until `end_measure` or the next stage."""
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
        """Measure once more, keep the result and stop measuring."""
        self._look()
        self._measure = None
        self._tell()

    def read(self) -> Reading:
        """Return a snapshot of the progress. While there is a `measure`, this may only be called on the loop thread."""
        self._look()
        rate, left_s = pace(self.done, self.total, time.monotonic() - self._began_s)
        rates = (None if one is None else round(one, 1) for one in (rate, left_s))
        return Reading(self.stage, self.done, self.total, self.unit, *rates)

    def to_fields(self) -> dict[str, object]:
        """Return the snapshot of `read` as JSON fields."""
        return self.read()._asdict()

    def _look(self) -> None:
        if self._measure is not None:
            done, self.total = self._measure()
            self.done = max(self.done, done)  # a measure restarts at 0 in each round, but the progress must not go back

    def _tell(self) -> None:
        if self.on_change is not None:
            self.on_change(self)
