"""What moves of the clock wait for: a task that each of them runs, which may wait or fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from diamant.broker.node.scheduler import ScheduledTask, Scheduler


def run_when_settling(scheduler: Scheduler, name: str, run: Callable[[], Awaitable[object]]) -> None:
    """Add a task that runs whenever somebody waits for the scheduler to settle. In the scheduler's loop."""
    due: list[int] = []

    async def run_once() -> None:
        due.clear()
        await run()

    scheduler.add(ScheduledTask(name, lambda: min(due, default=None), run_once, lambda: due.append(0)))
