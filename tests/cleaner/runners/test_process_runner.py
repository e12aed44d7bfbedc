"""Rounds in a worker process: the same outcome as in a thread, even if the process fails."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from diamant.cleaner.facts.facts_file import facts_path, read_facts
from diamant.cleaner.facts.filter_making import FactsTask
from diamant.cleaner.facts.key_filter import MIN_LOG_BYTES
from diamant.cleaner.facts.prompt_state import PromptLog
from diamant.cleaner.facts.segment_keys import file_segment_facts
from diamant.cleaner.rules.modes import KAFKA, PROMPT
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import CleaningAborted, OutputSegment
from diamant.cleaner.runners.child_priority import OOM_SCORE
from diamant.cleaner.runners.contract import MemoryLimit, RunnerFailed
from diamant.cleaner.runners.inline import InlineRunner
from diamant.cleaner.runners.process import WORKER_PROGRAM, ProcessRunner, memory_limit_bytes
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.storage.log.log import Log
from tests.cleaner.runners.rounds import START_MS, Swapper, latest, leftovers, load, make_log, plan_of, segment_files
from tests.waiting import wait_until

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the system has no such call")
WAIT_S = 60.0


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return make_log(tmp_path)


SLOW = WORKER_PROGRAM.replace(
    "from diamant.cleaner.runners.worker",
    "from functools import partial; import diamant.cleaner.runners.worker as worker; "
    "worker.Throttle = partial(worker.Throttle, check_interval_s=0.0); from diamant.cleaner.runners.worker",
)
"""The program of workers that keep to the speed limit from the first chunk on, not only after the check interval."""


@pytest.fixture(params=[pytest.param(WORKER_PROGRAM, id="worker")])
async def runner(log: Log, request: pytest.FixtureRequest) -> AsyncIterator[ProcessRunner]:
    """A runner whose workers have this program."""
    runner = ProcessRunner(log.env, program=request.param)
    yield runner
    await runner.close()
    assert runner.worker_pid is None


slowly = pytest.mark.parametrize("runner", [SLOW], indirect=True, ids=["slow"])


def slow_plan(log: Log, bytes_per_second: float = 200_000.0) -> CleanPlan:
    """Return a round that takes about 0.3 s per output, and little time before the first."""
    plan = plan_of(log, io_max_bytes_per_second=bytes_per_second)
    return replace(plan, first_dirty_offset=plan.segments[-1].base_offset)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def told_by_system(runner: ProcessRunner, file: str) -> bytes:
    """Return a file of the worker's in /proc."""
    return Path(f"/proc/{runner.worker_pid}/{file}").read_bytes()


def kill(runner: ProcessRunner) -> None:
    assert runner.worker_pid is not None
    os.kill(runner.worker_pid, signal.SIGKILL)


async def test_the_result_is_that_of_the_inline_runner(log: Log, runner: ProcessRunner, tmp_path: Path) -> None:
    """The files are equal byte for byte, and the result except times and the runner's name. One worker, started early, runs
    several rounds.
    """
    other = make_log(tmp_path / "other")
    inline = InlineRunner(other.env)
    await runner.warm_up()
    pids = {runner.worker_pid}
    for _ in range(2):
        log.roll()
        other.roll()
        expected = await inline.run(plan_of(other), on_output=Swapper(other))
        result = await runner.run(plan_of(log), on_output=Swapper(log))
        pids.add(runner.worker_pid)
        assert segment_files(log) == segment_files(other)
        assert (result.end_offset, result.runner) == (expected.end_offset, "process")
        assert [replace(output, modified_ms=0) for output in result.outputs] == [
            replace(output, modified_ms=0) for output in expected.outputs
        ]
        for name in ("bytes_read", "messages_read", "bytes_written", "messages_written", "removed", "removed_bytes"):
            assert getattr(result.stats, name) == getattr(expected.stats, name)
    assert len(pids) == 1
    assert not leftovers(log)
    await inline.close()


@LINUX
async def test_a_worker_takes_no_memory_for_each_processor(log: Log, runner: ProcessRunner) -> None:
    """Libraries might do so before the first round; with a dozen CPUs this would reach the limit."""
    await runner.run(plan_of(log), on_output=Swapper(log))
    (taken,) = re.findall(rb"VmData:\s*(\d+) kB", told_by_system(runner, "status"))
    assert int(taken) < 200 * 1024


async def test_facts_come_with_the_outputs(runner: ProcessRunner, tmp_path: Path) -> None:
    """The broker knows expiries and filters of the outputs without reading a file; in mode kafka there are none."""
    log = make_log(tmp_path / "large", batches=0, segment_bytes=MIN_LOG_BYTES // 4)
    for key in range(20):
        log.append_as_leader(memoryview(build_batch([Record(0, START_MS, b"%d" % key, bytes(MIN_LOG_BYTES // 18))])))
    log.roll()
    known = PromptLog(log)
    for has_facts in (True, False):
        swapper = Swapper(log)
        plan = plan_of(log, segment_bytes=log.config.segment_bytes, mode=PROMPT if has_facts else KAFKA)
        await runner.run(replace(plan, first_dirty_offset=0), on_output=swapper)
        for output in swapper.outputs:
            known.note_swapped_in(output)
        bases = [one.base_offset for one in log.segments[:-1]]
        assert len(bases) > 1
        assert [base for base, _ in known.unknown(log.active.base_offset)] == ([] if has_facts else bases)
        assert [one.base_offset for one in known.without_filter()] == ([] if has_facts else bases)
        if has_facts:
            filed = [read_facts(log.env, log.path, one.base_offset, one.size) for one in log.segments[:-1]]
            assert known.facts.of(log, log.active.base_offset) == filed


async def test_a_worker_files_the_facts_of_a_segment(log: Log, runner: ProcessRunner) -> None:
    """A worker files facts as a thread does. A stopped task leaves no partial file, and the worker remains for the next one."""
    segment = log.segments[0]
    task = FactsTask(log.path, segment.base_offset, segment.size, bytes(16), 1e9)
    path = facts_path(log.path, segment.base_offset)
    file_segment_facts(log.env, task)
    expected = log.env.read_bytes(path)
    log.env.remove(path)

    def stop() -> None:
        if runner.worker_pid is not None:
            raise CleaningAborted("not now")

    with pytest.raises(CleaningAborted):
        await runner.file_facts(replace(task, io_max_bytes_per_second=1.0), stop)
    assert not log.env.exists(path) or log.env.read_bytes(path) == expected  # it may have been done by then
    pid = runner.worker_pid
    await runner.file_facts(task)
    assert log.env.read_bytes(path) == expected
    assert runner.worker_pid == pid
    with pytest.raises(FileNotFoundError):
        await runner.file_facts(replace(task, base_offset=1))


@pytest.mark.parametrize(
    "outputs_before", [pytest.param(0, marks=pytest.mark.slow), 1, pytest.param(3, marks=pytest.mark.slow)]
)
@slowly
async def test_a_worker_killed_at_any_moment_loses_nothing(
    log: Log, runner: ProcessRunner, outputs_before: int
) -> None:
    """SIGKILL at several points of a round: it fails with a clear error, the log is whole, and the next round succeeds."""
    before = latest(log)
    swap = Swapper(log)

    async def on_output(output: OutputSegment) -> None:
        await swap(output)
        if len(swap.outputs) == outputs_before:
            kill(runner)

    task = asyncio.create_task(runner.run(slow_plan(log), on_output=on_output))
    if outputs_before == 0:
        await wait_until(lambda: runner.worker_pid is not None and (task.done() or bool(leftovers(log))))
        kill(runner)
    with pytest.raises(RunnerFailed, match=r"t-0: the cleaner's worker \d+ was killed by signal 9"):
        await task
    # What it had handed over before it died is still taken.
    assert len(swap.outputs) >= outputs_before
    assert not leftovers(log)
    assert latest(log) == latest(load(log)) == before
    result = await runner.run(plan_of(log), on_output=Swapper(log))
    assert result.end_offset == log.active.base_offset
    assert latest(log) == latest(load(log)) == before


async def test_a_worker_killed_together_with_its_broker_leaves_garbage_that_a_start_removes(log: Log) -> None:
    """The `.cleaned` files remain until the next start opens the directory and removes them."""
    before = latest(log)
    runner = ProcessRunner(log.env, program=SLOW)
    task = asyncio.create_task(runner.run(slow_plan(log), on_output=Swapper(log)))
    await wait_until(lambda: bool(leftovers(log)))
    copied = Path(log.path).parent / "t-0-as-it-was"
    kill(runner)
    shutil.copytree(log.path, copied)
    with pytest.raises(RunnerFailed):
        await task
    await runner.close()
    log.path = str(copied)
    loaded = load(log)
    assert latest(loaded) == before
    assert not leftovers(loaded)


@pytest.mark.slow
@slowly
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_round_that_is_ended_leaves_the_worker(log: Log, runner: ProcessRunner, is_cancelled: bool) -> None:
    """If `check_done` or the task ends the round, the worker writes nothing more, and is kept for the next round."""
    swap = Swapper(log)

    def check_done() -> None:
        if swap.outputs and not is_cancelled:
            raise CleaningAborted("stop")

    task = asyncio.create_task(runner.run(slow_plan(log), on_output=swap, check_done=check_done))
    await wait_until(lambda: bool(leftovers(log)))
    pid = runner.worker_pid
    if is_cancelled:
        task.cancel()
    with pytest.raises(asyncio.CancelledError if is_cancelled else CleaningAborted):
        await task
    assert is_cancelled or len(swap.outputs) == 1
    assert not leftovers(log)
    before = latest(log)
    await runner.run(plan_of(log), on_output=Swapper(log))
    assert (runner.worker_pid, latest(log)) == (pid, before)


@pytest.mark.slow
async def test_a_worker_that_does_not_hear_is_killed(log: Log) -> None:
    """A stopped process cannot end its round: after the timeout it is killed, and the next round has another one."""
    runner = ProcessRunner(log.env, cancel_timeout_s=0.1, program=SLOW)
    task = asyncio.create_task(runner.run(slow_plan(log), on_output=Swapper(log)))
    await wait_until(lambda: bool(leftovers(log)))
    pid = runner.worker_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_running(pid)
    assert not leftovers(log)
    await runner.run(plan_of(log), on_output=Swapper(log))
    assert runner.worker_pid != pid
    await runner.close()


@pytest.mark.slow
@LINUX
async def test_a_round_over_its_memory_limit_says_so(log: Log) -> None:
    """A batch that decompresses to more than the worker's limit fails the round; worker and broker continue."""
    records = [Record(0, START_MS, b"big", bytes(50_000_000))]
    log.config = replace(log.config, max_message_bytes=1 << 20)
    log.append_as_leader(memoryview(build_batch(records, codec=4)))
    log.roll()
    before = latest(log)
    runner = ProcessRunner(log.env, memory_overhead_bytes=60_000_000)
    plan = plan_of(log, map_memory_bytes=1_000_000)
    with pytest.raises(MemoryLimit, match=r"t-0: the worker needs more than its limit of 62000000 bytes"):
        await runner.run(plan, on_output=Swapper(log))
    pid = runner.worker_pid
    assert not leftovers(log)
    await runner.run(plan_of(log, first_uncleanable_offset=log.segments[2].base_offset, segments=plan.segments[:2]),
                     on_output=Swapper(log))  # fmt: skip
    assert runner.worker_pid == pid
    assert latest(log) == before
    await runner.close()


def test_the_memory_limit_follows_the_plan(log: Log) -> None:
    """The limit is twice the memory of the map (mode prompt) or of its entries (mode kafka), and the overhead."""
    prompt = plan_of(log, map_memory_bytes=1000)
    assert memory_limit_bytes(prompt, 5) == 2005
    assert memory_limit_bytes(replace(prompt, mode=KAFKA, map_max_entries=10), 5) == 485


async def test_another_error_in_a_worker_is_reported(log: Log, runner: ProcessRunner) -> None:
    """Another error is reported as a failure of the worker."""
    with pytest.raises(RunnerFailed, match="the worker failed"):
        await runner.run(replace(plan_of(log), delete_retention_ms="all"), on_output=Swapper(log))  # type: ignore[arg-type]
    assert not leftovers(log)


@pytest.mark.slow
async def test_rounds_wait_for_their_turn(log: Log, runner: ProcessRunner, tmp_path: Path) -> None:
    """One worker cleans one partition at a time, in the order of the calls."""
    other = make_log(tmp_path / "other")
    first, second = await asyncio.gather(
        runner.run(plan_of(log), on_output=Swapper(log)), runner.run(plan_of(other), on_output=Swapper(other))
    )
    assert first.outputs
    assert second.stats.start_s >= first.stats.end_s
    assert segment_files(log) == segment_files(other)


@pytest.mark.slow
async def test_an_idle_worker_goes_and_a_new_one_comes(log: Log) -> None:
    """Without work a worker exits by itself after the idle time; the next round starts another."""
    runner = ProcessRunner(log.env, idle_s=0.0)
    await runner.run(plan_of(log), on_output=Swapper(log))
    pid = runner.worker_pid or -1
    await wait_until(lambda: runner.worker_pid is None)
    await runner.run(plan_of(log), on_output=Swapper(log))
    assert not is_running(pid)
    await runner.close()


@pytest.mark.slow
async def test_closing_aborts_rounds(log: Log) -> None:
    """The round in progress and the waiting one fail, and the worker has exited."""
    runner = ProcessRunner(log.env, program=SLOW)
    plan = slow_plan(log)
    tasks = [asyncio.create_task(runner.run(plan, on_output=Swapper(log))) for _ in range(2)]
    await wait_until(lambda: bool(leftovers(log)))
    pid = runner.worker_pid or -1
    await runner.close()
    for task in tasks:
        with pytest.raises(CleaningAborted):
            await task
    assert not is_running(pid)
    assert not leftovers(log)
    await runner.close()
    with pytest.raises(CleaningAborted):
        await runner.run(plan, on_output=Swapper(log))


def session_niceness(pid: int) -> int | None:
    """The nice value of a process's session among sessions; None where the system shares processors without regard to them."""
    try:
        said = Path(f"/proc/{pid}/autogroup").read_text()
    except FileNotFoundError:
        return None
    return int(said.rpartition("nice ")[2]) if "nice " in said else None


@pytest.mark.slow
@LINUX
async def test_a_worker_gives_way(log: Log, runner: ProcessRunner) -> None:
    """A worker has low CPU priority, as a process and as a session, low disk priority, a high OOM score, and its own process
    group.
    """
    await runner.run(plan_of(log), on_output=Swapper(log))
    pid = runner.worker_pid
    assert pid is not None
    score = await asyncio.to_thread(Path(f"/proc/{pid}/oom_score_adj").read_text)
    assert int(score) >= OOM_SCORE
    niceness = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)
    assert os.getpriority(os.PRIO_PROCESS, pid) == niceness
    assert session_niceness(pid) in (niceness, None)
    assert os.getpgid(pid) == pid
    if shutil.which("ionice"):
        said = await asyncio.to_thread(subprocess.check_output, ["ionice", "-p", str(pid)], text=True)
        assert said.strip() == "best-effort: prio 7"


@pytest.mark.slow
@LINUX
async def test_a_worker_leaves_a_processor_to_the_broker(log: Log) -> None:
    """A worker keeps off the first processor unless the threads need them all; a change counts from the next work on."""
    allowed = sorted(os.sched_getaffinity(0))
    threads = [1, len(allowed)]
    runner = ProcessRunner(log.env, threads=lambda: threads.pop(0))
    for expected in (allowed[1:] or allowed, allowed):
        await runner.warm_up()
        assert runner.worker_pid is not None
        assert sorted(os.sched_getaffinity(runner.worker_pid)) == expected
    await runner.close()


@LINUX
@pytest.mark.slow
async def test_a_worker_ends_with_its_broker(log: Log, tmp_path: Path) -> None:
    """If the broker is killed during a round, so is its worker, which cannot disturb the next broker."""
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from diamant.cleaner.runners.process import ProcessRunner\n"
        "from tests.cleaner.runners.rounds import Swapper, make_log, plan_of\n"
        "async def main():\n"
        "    log = make_log(Path(sys.argv[1]))\n"
        "    runner = ProcessRunner(log.env)\n"
        "    round_ = asyncio.create_task(\n"
        "        runner.run(plan_of(log, io_max_bytes_per_second=10_000.0), on_output=Swapper(log)))\n"
        "    while runner.worker_pid is None: await asyncio.sleep(0.01)\n"
        "    print(runner.worker_pid, flush=True)\n"
        "    await round_\n"
        "asyncio.run(main())\n"
    )
    broker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(tmp_path / "data"), stdout=asyncio.subprocess.PIPE
    )
    assert broker.stdout is not None
    pid = int(await asyncio.wait_for(broker.stdout.readline(), WAIT_S))
    assert is_running(pid)
    broker.kill()
    await broker.wait()
    await wait_until(lambda: not is_running(pid))


async def test_a_worker_that_cannot_begin_is_reported(log: Log, tmp_path: Path) -> None:
    """The error contains the worker's standard error; the next round may succeed."""
    mark = tmp_path / "mark"
    mark.touch()
    fails_once = f"import os, sys; os.path.exists({str(mark)!r}) and sys.exit('no such thing'); {WORKER_PROGRAM}"
    runner = ProcessRunner(log.env, program=fails_once)
    with pytest.raises(RunnerFailed, match="exited with status 1\nno such thing"):
        await runner.run(plan_of(log), on_output=Swapper(log))
    mark.unlink()
    await runner.run(plan_of(log), on_output=Swapper(log))
    await runner.close()


async def test_a_worker_whose_thread_the_system_refuses_is_reported(
    log: Log, runner: ProcessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round fails as with any worker that cannot be started: asyncio may need a thread that waits for the process."""

    async def refuse(*_: object, **__: object) -> NoReturn:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "create_subprocess_exec", refuse)
        with pytest.raises(RunnerFailed, match="cannot be started: can't start new thread"):
            await runner.run(plan_of(log), on_output=Swapper(log))
