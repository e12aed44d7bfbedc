"""Exchanges whose renames a worker process executes, with failures of the worker, the log and the directory during them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from diamant.cleaner.facts.filter_making import FactsTask
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import CheckDone, CleanResult, never_done
from diamant.cleaner.runners.contract import Runner, RunnerFailed, SwapOutput
from diamant.cleaner.runners.exchange import SwapHolds
from diamant.cleaner.runners.inline import InlineRunner
from diamant.cleaner.runners.process import WORKER_PROGRAM, ProcessRunner
from diamant.cleaner.service.rounds import swap_into
from diamant.storage.env.env import RealEnv
from diamant.storage.errors import StorageError
from diamant.storage.log.log import Log
from diamant.storage.log.moves import Moves
from diamant.storage.log.segment_removal import delete_oldest
from tests.cleaner.runners.rounds import Swapper, latest, leftovers, load, make_log, plan_of, segment_files
from tests.effort import some

# The changes of the first exchange, by number: three renames, then three for each of two sources, three again, a snapshot,
# and the sync.


def failing(changes: int, how: str) -> str:
    """Return the program of a worker that does what `how` says in place of the change that follows so many others."""
    return (
        WORKER_PROGRAM.replace(
            "from diamant.cleaner.runners.worker",
            "import os, signal, itertools, diamant.cleaner.runners.worker as held\n"
            "numbers = itertools.count()\n"
            "def ruin():\n"
            f"    {how}\n"
            "def counted(change):\n"
            f"    return lambda *names: ruin() if next(numbers) == {changes} else change(*names)\n"
            "for name in ('rename', 'remove', 'sync'):\n"
            "    setattr(held.HeldDirectory, name, counted(getattr(held.HeldDirectory, name)))\n"
            "from diamant.cleaner.runners.worker",
        )
        .replace("; import os", "\nimport os")
        .replace("; sys.exit", "\nsys.exit")
    )


KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
REFUSED = "raise OSError(5, 'Input/output error', 'a file')"


class CountingEnv(RealEnv):
    """Counts the renames by the broker itself."""

    renames = 0

    def rename(self, old: str, new: str) -> None:
        self.renames += 1
        super().rename(old, new)


class Watched:
    """A runner; `before` and `after` are called with each step of an exchange."""

    name = "process"

    def __init__(self, runner: ProcessRunner) -> None:
        self._runner = runner
        self.before: Callable[[Moves], object] = bool
        self.after: Callable[[Moves], object] = bool
        self.progress_bytes = 0
        self.steps = 0

    @property
    def worker_pid(self) -> int | None:
        return self._runner.worker_pid

    async def warm_up(self) -> None:
        await self._runner.warm_up()

    async def run(self, plan: CleanPlan, *, on_output: SwapOutput, check_done: CheckDone = never_done) -> CleanResult:
        return await self._runner.run(plan, on_output=on_output, check_done=check_done)

    async def move(self, moves: Moves) -> None:
        self.steps += 1
        self.before(moves)
        await self._runner.move(moves)
        self.after(moves)

    async def file_facts(self, task: FactsTask, check_done: CheckDone = never_done) -> None:
        await self._runner.file_facts(task, check_done)

    async def close(self) -> None:
        await self._runner.close()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Eleven segments, of which a round makes several."""
    return make_log(tmp_path)


@pytest.fixture
def blocking() -> Iterator[ThreadPoolExecutor]:
    """Threads for disk I/O."""
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture
async def runner(log: Log) -> AsyncIterator[Watched]:
    """A runner with a worker."""
    runner = Watched(ProcessRunner(log.env))
    yield runner
    await runner.close()


async def clean(log: Log, runner: Runner, blocking: ThreadPoolExecutor) -> CleanResult:
    """Run a round over the whole log, as the broker does."""
    plan = plan_of(log)
    return await runner.run(plan, on_output=swap_into(log, plan, runner, check_done=never_done, blocking=blocking))


async def test_nothing_is_replaced_in_a_log_that_is_held(
    log: Log, runner: Watched, blocking: ThreadPoolExecutor
) -> None:
    """The round writes its outputs, and each waits for the end of the hold. A hold on another log stops nothing."""
    holds, before, waits = SwapHolds(), segment_files(log), asyncio.Event()

    async def until_free(partition: tuple[str, int]) -> None:
        waits.set()
        await holds.released(partition)

    with holds.held([(log.topic, log.partition), ("other", 0)]):
        plan = plan_of(log)
        swap = swap_into(log, plan, runner, check_done=never_done, blocking=blocking, until_free=until_free)
        cleaning = asyncio.create_task(runner.run(plan, on_output=swap))
        await waits.wait()
        assert segment_files(log) == before
        assert leftovers(log) != []
    result = await cleaning
    assert result.outputs
    assert segment_files(log) != before
    assert leftovers(log) == []
    with holds.held([("other", 0)]):
        await holds.released((log.topic, log.partition))


async def test_the_worker_renames(log: Log, runner: Watched, blocking: ThreadPoolExecutor, tmp_path: Path) -> None:
    """The broker renames nothing. The result equals that of renames by the broker, with two steps per exchange."""
    other = make_log(tmp_path / "other")
    swap = Swapper(other)
    direct = ProcessRunner(other.env)
    await direct.run(plan_of(other), on_output=swap)
    await direct.close()
    env = log.env = CountingEnv(log.env.clock)
    result = await clean(log, runner, blocking)
    assert env.renames == 0
    assert runner.steps == 2 * len(result.outputs) == 2 * len(swap.outputs)
    assert segment_files(log) == segment_files(other)
    assert env.list_dir(log.path) == env.list_dir(other.path)
    assert not log.is_exchanging


async def test_the_log_is_in_use_meanwhile(log: Log, runner: Watched, blocking: ThreadPoolExecutor) -> None:
    """Before and after each step all records can be read, and retention deletes no segment."""
    before = latest(log)
    bases = {segment.base_offset for segment in log.segments}

    def look(_moves: Moves) -> None:
        assert log.is_exchanging
        assert delete_oldest(log, 2) == 0
        for base in bases:
            assert log.read(base, 1 << 20, isolation_level=0, min_one_message=True).size > 0

    runner.before = look
    await clean(log, runner, blocking)
    assert runner.steps > 4
    assert latest(log) == latest(load(log)) == before


@pytest.mark.slow
@pytest.mark.parametrize("changes", some((0, 2, 3, 5, 8, 9, 11, 12, 13), every=4))
async def test_a_worker_killed_at_any_point_of_an_exchange(
    log: Log, blocking: ThreadPoolExecutor, changes: int
) -> None:
    """The broker completes the worker's moves: each exchange is whole, and the next round succeeds.

    The round fails, unless the worker had reported its end before.
    """
    before, count = latest(log), len(log.segments)
    runner = ProcessRunner(log.env, program=failing(changes, KILLED))
    with suppress(RunnerFailed):
        await clean(log, runner, blocking)
    await runner.close()
    assert not log.is_exchanging
    assert log.write_failure is None
    assert not leftovers(log)
    assert len(log.segments) < count
    assert latest(log) == latest(load(log)) == before
    inline = InlineRunner(log.env)
    await clean(log, inline, blocking)
    await inline.close()
    assert latest(log) == latest(load(log)) == before


@pytest.mark.slow
@pytest.mark.parametrize("changes", some((0, 2, 3, 9, 13), every=2))
async def test_a_worker_whose_disk_refuses_a_change(log: Log, blocking: ThreadPoolExecutor, changes: int) -> None:
    """The log is unchanged, or reads the new segment and refuses appends. After a restart it is complete in both cases."""
    before, count = latest(log), len(log.segments)
    runner = ProcessRunner(log.env, program=failing(changes, REFUSED))
    with pytest.raises(OSError, match="Input/output error"):
        await clean(log, runner, blocking)
    await runner.close()
    assert not log.is_exchanging
    assert (log.write_failure is None) == (len(log.segments) == count) == (changes < 3)
    assert latest(log) == before
    loaded = load(log)
    assert latest(loaded) == before
    assert not leftovers(loaded)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [1, 5, 12])
async def test_a_worker_without_memory_for_a_change(log: Log, blocking: ThreadPoolExecutor, changes: int) -> None:
    """The broker executes the moves that the worker could not, and the round continues."""
    before, count = latest(log), len(log.segments)
    runner = ProcessRunner(log.env, program=failing(changes, "raise MemoryError"))
    await clean(log, runner, blocking)
    await runner.close()
    assert log.write_failure is None
    assert not log.is_exchanging
    assert len(log.segments) < count
    assert latest(log) == latest(load(log)) == before
    assert not leftovers(log)


@pytest.mark.parametrize("step", [1, 2])
async def test_a_partition_deleted_and_recreated_meanwhile(
    log: Log, runner: Watched, blocking: ThreadPoolExecutor, step: int, tmp_path: Path
) -> None:
    """The worker's renames are for a directory that a new partition has replaced: it touches none of the new files."""
    new = make_log(tmp_path / "new", batches=30)
    expected = segment_files(new)

    def delete(_moves: Moves) -> None:
        if runner.steps == step:
            log.is_deleted = True
            Path(log.path).rename(f"{log.path}-deleted")
            shutil.copytree(new.path, log.path)

    runner.before = delete
    # A worker that is at the next group already may find in its directory what it does not expect.
    with pytest.raises((StorageError, OSError)):
        await clean(log, runner, blocking)
    assert runner.steps <= 2
    assert segment_files(log) == expected
    assert not log.is_exchanging
    assert log.write_failure is None


async def test_a_task_that_is_cancelled_leaves_nothing_half_done(
    log: Log, runner: Watched, blocking: ThreadPoolExecutor
) -> None:
    """An exchange that has begun is completed, by the broker if necessary."""
    before, count = latest(log), len(log.segments)
    tasks: set[asyncio.Task[object]] = set()

    def cancel(_moves: Moves) -> None:
        if runner.steps == 2:
            tasks.update(asyncio.all_tasks() - {test})
            for task in tasks:
                task.cancel()

    runner.before = cancel
    test = asyncio.current_task()
    assert test is not None
    round_ = asyncio.create_task(clean(log, runner, blocking))
    await asyncio.wait({round_})
    assert round_.cancelled()
    await asyncio.wait(tasks)
    assert not log.is_exchanging
    assert log.write_failure is None
    assert len(log.segments) < count
    assert latest(log) == latest(load(log)) == before
