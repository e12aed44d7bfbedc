"""A loop whose time the test moves: for what asks a loop for the time and for timers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Any


@dataclass
class SettableTimer:
    """A timer of `SettableLoop`, which drops it when it is cancelled or has run."""

    loop: SettableLoop
    when_s: float
    callback: partial[object]

    def when(self) -> float:
        return self.when_s

    def cancel(self) -> None:
        self.loop.pending.remove(self)

    def run(self) -> None:
        """Run out."""
        self.cancel()
        self.callback()


@dataclass
class SettableLoop:
    """`pending`: its timers; `made`: how many there have been. What is called soon is called by the running loop."""

    now_s: float = 1000.0
    pending: list[SettableTimer] = field(default_factory=list)
    made: int = 0

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, callback: Any, *arguments: Any) -> Any:
        self.made += 1
        self.pending.append(SettableTimer(self, when, partial(callback, *arguments)))
        return self.pending[-1]

    def call_soon(self, callback: Any, *arguments: Any) -> None:
        asyncio.get_running_loop().call_soon(callback, *arguments)

    def pass_s(self, duration_s: float) -> None:
        """Move the time, and let timers run out in their order."""
        end_s = self.now_s + duration_s
        while due := [timer for timer in self.pending if timer.when_s <= end_s]:
            timer = min(due, key=SettableTimer.when)
            self.now_s = max(self.now_s, timer.when_s)
            timer.run()
        self.now_s = end_s
