"""The limits of the runs of `diamant exec --any-compaction`, and the answer for a command that waits for ever."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from diamant.broker.broker import BlockingBroker
from diamant.broker.launch.any_compaction import MAX_TIMEOUTS, RunLimits, run_any_compaction
from diamant.broker.launch.child import TIMED_OUT
from diamant.broker.schedules.schedule import Schedule
from diamant.broker.schedules.schedule_history import Fetched, History
from diamant.broker.schedules.schedule_search import RunOutcome, find_failing
from tests.waiting import wait_until

CHILD = """
import os, sys
from diamant.broker.launch.child import run_child
sys.exit(run_child(["sh", "-c", sys.argv[1]], os.environ, limit_s=float(sys.argv[2])))
"""


class FakeBroker:
    """A broker that records the schedule it plays; its consumer fetches once."""

    def __init__(self) -> None:
        self.schedule = Schedule()

    def play(self, schedule: Schedule) -> History:
        self.schedule = schedule
        return History([Fetched("t-0", 0)])


class FakeRuns:
    """Runs of a command that waits for ever after a compaction."""

    def __init__(self) -> None:
        self.limits_s: list[float | None] = []

    def __call__(
        self,
        data: str,
        prepare: Callable[[BlockingBroker], object] | None = None,
        output: IO[bytes] | None = None,
        limit_s: float | None = None,
    ) -> int:
        broker = FakeBroker()
        assert prepare is not None
        prepare(broker)  # type: ignore[arg-type]
        self.limits_s.append(limit_s)
        return TIMED_OUT if broker.schedule.compactions else 0


def test_a_command_that_waits_for_ever_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The schedule is named, and the limit."""
    runs, limits = FakeRuns(), RunLimits(7.0)
    code = run_any_compaction(runs, str(tmp_path), 50, 0, limits, may_be_late=True)
    assert code == TIMED_OUT
    assert limits.timeouts <= MAX_TIMEOUTS + 1
    assert {*runs.limits_s} == {7.0}
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first == "diamant exec: the command did not end within 7s (--run-timeout)"
    assert second.startswith("diamant exec: the command fails under Schedule(compactions=")


def test_the_limit_follows_the_time_of_earlier_runs() -> None:
    """Ten minutes at first, then ten times the longest run that has ended, and at least half a minute."""
    limits = RunLimits()
    found = [limits.limit_s]
    for code, took_s in ((0, 0.5), (1, 20.0), (TIMED_OUT, 200.0), (0, 1.0)):
        limits.note(code, took_s)
        found.append(limits.limit_s)
    assert found == [600.0, 30.0, 200.0, 200.0, 200.0]


def test_the_search_for_a_smaller_schedule_can_be_ended() -> None:
    """Runs that end by their limit take long: after a few of them the last failing schedule is the answer."""
    tried: list[Schedule] = []

    def carry_out(schedule: Schedule) -> RunOutcome:
        tried.append(schedule)
        return RunOutcome(not schedule.compactions, 10)

    found = find_failing(carry_out, 50, 0, is_over=lambda: len(tried) >= 4)
    assert found.schedule in tried
    assert len(tried) == 4


@pytest.mark.slow
def test_a_run_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    """The limit ends a shell and what it has started, and the exit code is that of `timeout`."""
    told = tmp_path / "pid"
    script = f"sleep 600 & echo $! > {told}.new; mv {told}.new {told}; wait"
    for limit_s in ("0.5", "5", "50"):
        found = subprocess.run([sys.executable, "-c", CHILD, script, limit_s], check=False, timeout=240)
        assert found.returncode == TIMED_OUT
        if told.exists():  # else the machine is too busy for so short a limit
            break
    pid = int(told.read_text())
    asyncio.run(wait_until(lambda: not is_running(pid)))


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie, which nobody may collect in a container."""
    try:
        return (
            " Z " not in Path(f"/proc/{pid}/stat").read_text() if os.path.exists("/proc/self") else not os.kill(pid, 0)
        )
    except (FileNotFoundError, ProcessLookupError):
        return False
