"""`diamant exec --any-compaction`: run a command under many schedules of compactions, each time with a new broker."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from typing import IO, Protocol

import click

from diamant.broker.broker import BlockingBroker
from diamant.broker.launch.child import SIGNALLED, TIMED_OUT
from diamant.broker.schedules.schedule import Schedule
from diamant.broker.schedules.schedule_history import History
from diamant.broker.schedules.schedule_search import RunOutcome, find_failing
from diamant.duration import duration_text
from diamant.progress import pace

ANY_COMPACTION = ("log.cleaner.enable=false", "log.cleanup.policy=compact")
"""Settings of the broker: its own cleaner is off, and topics are compacted."""


FIRST_RUN_S = 600.0
SHORTEST_LIMIT_S = 30.0
LIMIT_FACTOR = 10
MAX_TIMEOUTS = 5
"""The number of runs that may time out before the search for a smaller schedule ends."""


class RunOnce(Protocol):
    """A function that starts a broker on `data`, calls `prepare(broker)`, runs the command, and returns its exit code."""

    def __call__(
        self,
        data: str,
        prepare: Callable[[BlockingBroker], object] | None = None,
        output: IO[bytes] | None = None,
        limit_s: float | None = None,
    ) -> int: ...


class RunLimits:
    """The time limits of runs, so that even a command that never ends yields a result."""

    def __init__(self, given_s: float | None = None) -> None:
        """`given_s`: the limit of each run; None to derive it from the time that earlier runs took."""
        self._given_s = given_s
        self._longest_s: float | None = None
        self.timeouts = 0
        """The number of runs that timed out."""

    @property
    def limit_s(self) -> float:
        """The limit of the next run."""
        if self._given_s is not None:
            return self._given_s
        return FIRST_RUN_S if self._longest_s is None else max(SHORTEST_LIMIT_S, LIMIT_FACTOR * self._longest_s)

    def note(self, code: int, took_s: float) -> None:
        """Take a run that has ended into account for later limits."""
        if code == TIMED_OUT:
            self.timeouts += 1
        else:
            self._longest_s = max(took_s, self._longest_s or 0.0)


class _Ended(Exception):
    """Raised to stop the search if a signal has ended the command, or if a run has tested nothing."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _Runs:
    """The runs of one command."""

    def __init__(self, run_once: RunOnce, directory: str, examples: int, limits: RunLimits) -> None:
        self._run_once = run_once
        self._directory = directory
        self._examples = examples
        self._limits = limits
        self._count = 0
        self._began = time.monotonic()

    def run(self, schedule: Schedule, output: IO[bytes] | None = None) -> tuple[int, History]:
        """Run the command under a schedule; return its exit code and the history."""
        histories: list[History] = []
        data = os.path.join(self._directory, "data")
        limits, began_s = self._limits, time.monotonic()
        try:
            code = self._run_once(
                data, lambda broker: histories.append(broker.play(schedule)), output, limit_s=limits.limit_s
            )
        finally:
            shutil.rmtree(data, ignore_errors=True)
        limits.note(code, time.monotonic() - began_s)
        return code, histories[0]

    def carry_out(self, schedule: Schedule) -> RunOutcome:
        """Run the command once as part of the search. Shows the command's output only if a signal ended the command."""
        self._count += 1
        if sys.stderr.isatty():
            _, left_s = pace(self._count - 1, self._examples, time.monotonic() - self._began)
            left = "" if left_s is None else f", {duration_text(round(left_s) * 1000)} left at most"
            click.echo(f"\r{self._count} of {self._examples} runs{left}\x1b[K\r", err=True, nl=False)
        with tempfile.TemporaryFile() as output:
            code, history = self.run(schedule, output)
            if code > SIGNALLED:
                output.seek(0)
                click.echo(output.read(), nl=False)
                raise _Ended(code)
        if not code and history.why_untried() is not None:
            raise _Ended(0)
        return RunOutcome(code == 0, history.fetches)


def run_any_compaction(
    run_once: RunOnce, directory: str, examples: int, seed: int, limits: RunLimits, *, may_be_late: bool
) -> int:
    """Run the command under up to `examples` schedules, show the output of the last run, and return the exit code.

    The last run repeats the smallest failing schedule, or has no compaction. If it passes although an earlier run failed, or if
    it tested nothing, the exit code is 1.
    """
    runs = _Runs(run_once, directory, examples, limits)
    schedule: Schedule | None = None
    try:
        # Leave one of the runs for the end: one without compactions, if no schedule fails.
        schedule, count = find_failing(
            runs.carry_out,
            examples - 1,
            seed,
            may_be_late=may_be_late,
            is_over=lambda: limits.timeouts >= MAX_TIMEOUTS,
        )
    except _Ended as ended:
        if ended.code:
            return ended.code
    limit_s = limits.limit_s
    code, history = runs.run(schedule or Schedule())
    if code == TIMED_OUT:
        limit = duration_text(round(limit_s * 1000))
        click.echo(f"diamant exec: the command did not end within {limit} (--run-timeout)", err=True)
    if not code and (why := history.why_untried()) is not None:
        click.echo(f"diamant exec: {why}", err=True)
        return 1
    if schedule is None:
        if not code:
            click.echo(f"diamant exec: the command has passed under {examples} schedules of compactions", err=True)
        return code
    found = f"example {count} of --any-compaction {examples} --random-seed {seed}"
    if not code:
        click.echo(
            f"diamant exec: the command failed under {schedule} ({found}), and passed when it was repeated: it "
            "depends on something else, too",
            err=True,
        )
        return 1
    if schedule == Schedule():
        click.echo("diamant exec: the command fails without any compaction", err=True)
        return code
    click.echo(f"diamant exec: the command fails under {schedule} ({found}), and passes without:", err=True)
    for line in history.lines():
        click.echo(line, err=True)
    return code
