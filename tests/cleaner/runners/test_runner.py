"""Rounds in a thread of the broker, and what a worker process has in common with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from hashlib import sha512
from pathlib import Path
from uuid import UUID

import pytest

from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.planning import CleanerSettings, make_plan
from diamant.cleaner.rules.result import CleaningAborted, CleanResult, OutputSegment
from diamant.cleaner.runners.contract import Runner, remove_cleaned_files
from diamant.cleaner.runners.inline import InlineRunner
from diamant.cleaner.runners.process import ProcessRunner
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.header import Record
from diamant.protocol.batches.records import build_batch, iter_records
from diamant.storage.env.clock import SettableClock
from diamant.storage.env.env import RealEnv
from diamant.storage.errors import CorruptLog
from diamant.storage.log.append_checks import Validation
from diamant.storage.log.log import Log
from diamant.storage.log.segment_removal import delete_oldest
from diamant.storage.log.segment_swap import Replacement
from diamant.storage.recovery.open_log import create_log, load_log
from diamant.storage.segments.log_config import LogConfig

START_MS = 1_700_000_000_000
TOPIC_ID = UUID(int=7)
CONFIG = LogConfig(
    segment_bytes=20_000, index_interval_bytes=500, cleanup_policy=frozenset({"compact"}), file_delete_delay_ms=60_000
)
KEYS = 100


def make_log(directory: Path, batches: int = 150) -> Log:
    """A log of eleven segments. Each batch has one unique key, and nine of a hundred keys that recur."""
    env = RealEnv(SettableClock(START_MS))
    log = create_log(env, f"{directory}/t-0", "t", 0, TOPIC_ID, CONFIG, Validation(), producer_expiration_ms=86_400_000)
    log.on_files_removed = lambda paths, delay_ms: None
    for number in range(batches):
        value = sha512(b"%d" % number).digest() * 2
        keys = [b"only-%d" % number, *(b"key-%d" % ((number * 7 + at) % KEYS) for at in range(9))]
        records = [Record(at, START_MS + number, key, value) for at, key in enumerate(keys)]
        log.append_as_leader(memoryview(build_batch(records, codec=number % 10 // 9)))
    log.flush()
    return log


def load(log: Log) -> Log:
    return load_log(
        log.env, log.path, "t", 0, TOPIC_ID, CONFIG, Validation(), recovery_point=log.recovery_point,
        log_start_offset=0, is_clean=False, producer_expiration_ms=86_400_000,
    )  # fmt: skip


def plan_of(log: Log, **fields: object) -> CleanPlan:
    """A round over all segments but the active one; outputs are small, so that there are several."""
    plan = make_plan(log, 0, log.active.base_offset, START_MS, CleanerSettings(io_buffer_bytes=4096))
    return replace(plan, **({"segment_bytes": 45_000} | fields))  # type: ignore[arg-type]


def latest(log: Log) -> dict[bytes | None, bytes | None]:
    """The newest value of each key, which cleaning must not change."""
    found: dict[bytes | None, bytes | None] = {}
    for segment in log.segments:
        data = log.env.read_bytes(segment.path)
        for position, _ in iter_headers(data):
            found.update((record.key, record.value) for record in iter_records(data, position))
    return found


def segment_files(log: Log) -> dict[str, bytes]:
    """Every file of the segments in use."""
    return {
        path.name: path.read_bytes()
        for path in Path(log.path).iterdir()
        if path.suffix in (".log", ".index", ".timeindex", ".txnindex")
    }


def damage(log: Log, number: int) -> Path:
    """Flip one bit of a segment; a second call restores it."""
    path = Path(log.segments[number].path)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    return path


def leftovers(log: Log) -> list[str]:
    """Files of unfinished rounds."""
    return [path.name for path in Path(log.path).iterdir() if path.suffix in (".cleaned", ".swap")]


class Swapper:
    """Swaps outputs in, as the broker does, and notes them."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.outputs: list[OutputSegment] = []

    async def __call__(self, output: OutputSegment) -> None:
        replacement = Replacement(self.log, output.base_offset, output.source_base_offsets, size=output.size)
        await asyncio.to_thread(replacement.prepare)
        replacement.swap()
        self.outputs.append(output)
        await asyncio.to_thread(replacement.finish)


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


async def test_a_round_can_be_told_to_stop(log: Log, runner: InlineRunner) -> None:
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


async def test_corruption_is_told_with_its_place(log: Log, any_runner: Runner) -> None:
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
    """`.cleaned` files below the end of the plan are removed, all others kept; a missing directory is no error."""
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
