"""How far a long call has come. Who does the work writes it, on the loop thread or on one other; whoever asks reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Progress:
    """`stage` is what is being done, in a few words without keys or values; `done` of `total` are counted in `unit`.

    A `total` of None: nobody knows yet. `on_change` is called after each change, in the thread that made it.
    `undertaking`: the id of the erasure or redaction that goes on whatever becomes of the call, once it is one.
    """

    __slots__ = ("done", "on_change", "stage", "total", "undertaking", "unit")

    def __init__(self, on_change: Callable[[Progress], object] | None = None) -> None:
        self.stage = ""
        self.done = 0
        self.total: int | None = None
        self.unit = ""
        self.undertaking: str | None = None
        self.on_change = on_change

    def begin(self, stage: str, total: int | None = None, unit: str = "") -> None:
        """Go on to another stage."""
        self.stage, self.done, self.total, self.unit = stage, 0, total, unit
        self._tell()

    def advance(self, count: int = 1) -> None:
        """Count so much more as done."""
        self.done += count
        self._tell()

    def move_to(self, done: int, total: int | None = None) -> None:
        """Say how much is done altogether, and of how much if that is known now."""
        self.done = done
        if total is not None:
            self.total = total
        self._tell()

    def to_fields(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"stage": self.stage, "done": self.done, "total": self.total, "unit": self.unit}

    def _tell(self) -> None:
        if self.on_change is not None:
            self.on_change(self)
