"""Jobs that have lost their executors are ended, and no others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from diamant.cleaner.spark.session.executor_watch import ExecutorWatch
from diamant.cleaner.spark.session.session import reason_of


class Context:
    """The part of a SparkContext that the watch uses."""

    master = "spark://h:1"

    def __init__(self) -> None:
        self.jobs = [0]
        self.executors = 0
        self.cancelled = 0
        status = SimpleNamespace(size=lambda: 1 + self.executors)  # the driver is in it
        self._jsc = SimpleNamespace(sc=lambda: SimpleNamespace(getExecutorMemoryStatus=lambda: status))

    def statusTracker(self) -> Any:
        return SimpleNamespace(getActiveJobsIds=lambda: self.jobs)

    def cancelAllJobs(self) -> None:
        self.cancelled += 1


def test_jobs_end_when_there_was_no_executor_for_so_long() -> None:
    """The time restarts whenever there was an executor, or no job; the reason says what to do."""
    now_s = [0.0]
    context = Context()
    watch = ExecutorWatch(context, 10_000, clock=lambda: now_s[0])
    context._diamant_watch = watch  # type: ignore[attr-defined]

    def look_at(*seconds: float) -> None:
        for now_s[0] in seconds:
            watch.look()

    look_at(0, 9)
    context.executors = 1
    look_at(11)
    context.executors = 0
    look_at(12, 21.9)
    context.jobs = []
    look_at(23)
    context.jobs = [1]
    look_at(24, 33.9)
    assert (context.cancelled, watch.reason) == (0, None)
    assert reason_of(context, ValueError("x")) == "x"
    look_at(34)
    assert context.cancelled == 1
    assert str(watch.reason).startswith("there was no executor for 10 s on spark://h:1: are there workers")
    assert reason_of(context, ValueError("x")) == watch.reason
