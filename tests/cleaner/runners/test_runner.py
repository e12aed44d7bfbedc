"""Rounds in a thread of the broker, and what a worker process has in common with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from diamant.cleaner.rules.result import CleaningAborted, CleanResult, OutputSegment
from diamant.cleaner.runners.contract import Runner, remove_cleaned_files
from diamant.cleaner.runners.inline import InlineRunner
from diamant.cleaner.runners.process import ProcessRunner
from diamant.storage.errors import CorruptLog
from diamant.storage.log.log import Log
from diamant.storage.log.segment_removal import delete_oldest
from tests.cleaner.runners.rounds import (
    Swapper,
    damage,
    latest,
    leftovers,
    load,
    make_log,
    plan_of,
)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return make_log(tmp_path)


@pytest.fixture
async def runner(log: Log) -> AsyncIterator[InlineRunner]:
    runner = InlineRunner(log.env)
    yield runner
    await runner.close()


@pytest.fixture(params=[InlineRunner, ProcessRunner])
async def any_runner(request: pytest.FixtureRequest, log: Log) -> AsyncIterator[Runner]:
    """A runner of each kind."""
    runner: Runner = request.param(log.env)
    yield runner
    await runner.close()


async def test_a_round_swaps_each_output_and_tells_what_it_did(log: Log, runner: InlineRunner) -> None:
    """Outputs are swapped one at a time while the round continues; every key keeps its newest value."""
    before = latest(log)
    count = len(log.segments)
    swap = Swapper(log)
    result = await runner.run(plan_of(log), on_output=swap)
    assert isinstance(result, CleanResult)
    assert result.outputs == tuple(swap.outputs)
    assert len(result.outputs) > 2
    assert result.runner == "inline"
    assert result.end_offset == log.active.base_offset
    assert len(log.segments) == len(result.outputs) + 1 < count
    assert latest(log) == latest(load(log)) == before
    assert not leftovers(log)


async def test_a_round_can_be_stopped(log: Log, runner: InlineRunner) -> None:
    """`check_done` ends a round after its first output. That output remains, and no other file."""
    before = latest(log)
    swap = Swapper(log)

    def check_done() -> None:
        if swap.outputs:
            raise CleaningAborted("stop")

    with pytest.raises(CleaningAborted, match="stop"):
        await runner.run(plan_of(log), on_output=swap, check_done=check_done)
    assert len(swap.outputs) == 1
    assert not leftovers(log)
    assert latest(log) == before


async def test_cancelling_returns_when_the_thread_has_ended(log: Log, runner: InlineRunner) -> None:
    """The canceller may then delete the directory: the thread no longer writes there."""
    has_begun = asyncio.Event()
    may_go_on = asyncio.Event()
    swap = Swapper(log)

    async def on_output(output: OutputSegment) -> None:
        has_begun.set()
        await may_go_on.wait()
        await swap(output)

    task = asyncio.create_task(runner.run(plan_of(log), on_output=on_output))
    await has_begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(swap.outputs) == 1
    assert not leftovers(log)


async def test_an_output_that_cannot_be_swapped_ends_the_round(log: Log, any_runner: Runner) -> None:
    """The error of `on_output` is that of the round; a later output must not be swapped without the earlier one."""
    calls = []

    async def on_output(output: OutputSegment) -> None:
        calls.append(output)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        await any_runner.run(plan_of(log), on_output=on_output)
    assert len(calls) == 1
    assert not leftovers(log)


async def test_corruption_is_reported_with_its_place(log: Log, any_runner: Runner) -> None:
    """A batch with a wrong byte ends the round with the path, and changes nothing; so does a source that retention removed."""
    path = damage(log, 3)
    with pytest.raises(CorruptLog, match=path.name) as caught:
        await any_runner.run(plan_of(log), on_output=Swapper(log))
    assert caught.value.path == str(path)
    damage(log, 3)
    plan = plan_of(log)
    delete_oldest(log, 2)
    with pytest.raises(FileNotFoundError, match=r"00000000000000000000\.log"):
        await any_runner.run(plan, on_output=Swapper(log))
    assert not leftovers(log)


async def test_closing_ends_what_is_under_way(log: Log) -> None:
    """A broker that stops does not wait for the end of a round, only of a chunk."""
    runner = InlineRunner(log.env)
    swap = Swapper(log)
    has_begun = asyncio.Event()

    async def on_output(output: OutputSegment) -> None:
        has_begun.set()
        await swap(output)

    task = asyncio.create_task(runner.run(plan_of(log, io_max_bytes_per_second=1000.0), on_output=on_output))
    await has_begun.wait()
    await runner.close()
    with pytest.raises(CleaningAborted):
        await task
    await runner.close()
    assert not leftovers(log)


def test_only_files_of_the_round_are_swept(log: Log) -> None:
    """`.cleaned` files below the end of the plan are removed, all others kept; a missing directory is not an error."""
    plan = plan_of(log)
    names = [f"{0:020d}.log.cleaned", f"{0:020d}.timeindex.cleaned"]
    others = ["x.cleaned", f"{plan.first_uncleanable_offset:020d}.log.cleaned", f"{0:020d}.log.deleted"]
    for name in [*names, *others]:
        (Path(log.path) / name).write_bytes(b"")
    remove_cleaned_files(log.env, plan)
    left = {path.name for path in Path(log.path).iterdir()}
    assert not left & set(names)
    assert left >= set(others)
    remove_cleaned_files(log.env, replace(plan, directory=log.path + "-gone"))
