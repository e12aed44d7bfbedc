"""Rounds on Spark with the driver in its own process: the same outcome, even if the driver fails.

Most tests have a driver that runs the job without Spark (`fake_driver`): they test the broker's side.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diamant.cleaner.rules.result import CleaningAborted, CleanResult, OutputSegment
from diamant.cleaner.runners.child_priority import OOM_SCORE
from diamant.cleaner.runners.contract import NoRoom
from diamant.cleaner.runners.inline import InlineRunner
from diamant.cleaner.runners.process import NICENESS, ProcessRunner
from diamant.cleaner.service.cleaner_slot import CleanerSlot
from diamant.cleaner.spark.clean.job import CleanJob
from diamant.cleaner.spark.clean.manifest import Manifest, StagedOutput
from diamant.cleaner.spark.clean.staging import new_place
from diamant.cleaner.spark.environment.locations import Location
from diamant.cleaner.spark.environment.spark_errors import SegmentChanged, SparkError
from diamant.cleaner.spark.environment.spark_settings import SparkSettings, is_worth_it
from diamant.cleaner.spark.runner import driver, driver_scratch
from diamant.cleaner.spark.runner import runner as spark_runner
from diamant.cleaner.spark.runner.driver_scratch import DriverScratch
from diamant.cleaner.spark.runner.runner import DRIVER_PROGRAM, SparkRunner
from diamant.cleaner.spark.runner.turns import REST_FIRST_S, SparkTurns
from diamant.storage.env.env import RealEnv
from diamant.storage.errors import CorruptLog
from diamant.storage.log.log import Log
from tests.cleaner.runners.rounds import Swapper, damage, latest, leftovers, load, make_log, plan_of, segment_files
from tests.cleaner.spark.cluster import JAVA_OPTIONS
from tests.cleaner.spark.fake_driver import FAKE, MISCHIEF
from tests.cleaner.spark.one_process import OneProcess
from tests.waiting import wait_until

WAIT_S = 900.0
LOCAL = SparkSettings(master="local[2]")


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return make_log(tmp_path)


@pytest.fixture
def niceness() -> int:
    """None: beside the tests of other workers, a JVM of low priority may starve until the time limit."""
    return 0


@pytest.fixture
async def runner(log: Log, niceness: int, request: pytest.FixtureRequest) -> AsyncIterator[SparkRunner]:
    """A runner without a local runner; its driver does not use Spark unless the test has Java."""
    program = DRIVER_PROGRAM if "java" in request.fixturenames else FAKE
    runner = SparkRunner(log.env, LOCAL, program=program, niceness=niceness)
    yield runner
    await runner.close()
    assert runner.driver_pid is None


def directories(log: Log) -> list[str]:
    """Return the directories left at the staging location beside the segments."""
    return [path.name for path in Path(log.path).iterdir() if path.is_dir()]


def check_untouched(log: Log, before: dict[str, bytes]) -> None:
    """The log is unchanged, and no files are left."""
    assert segment_files(log) == before
    assert not leftovers(log)
    assert not directories(log)


async def check_result(log: Log, runner: SparkRunner, tmp_path: Path) -> None:
    other = make_log(tmp_path / "other")
    inline = InlineRunner(other.env)
    expected = await inline.run(plan_of(other), on_output=Swapper(other))
    result = await runner.run(plan_of(log), on_output=Swapper(log))
    assert segment_files(log) == segment_files(other)
    assert (result.end_offset, result.runner) == (expected.end_offset, "spark")
    assert [replace(output, modified_ms=0) for output in result.outputs] == [
        replace(output, modified_ms=0) for output in expected.outputs
    ]
    for name in ("bytes_read", "messages_read", "bytes_written", "messages_written", "removed", "removed_bytes"):
        assert getattr(result.stats, name) == getattr(expected.stats, name)
    assert latest(load(log)) == latest(log)
    assert not leftovers(log)
    assert not directories(log)
    await inline.close()


def is_group_alive(group_id: int) -> bool:
    """Return whether any process of the group exists."""
    try:
        os.killpg(group_id, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("niceness", [NICENESS])
@pytest.mark.usefixtures("java")
async def test_the_result_is_that_of_the_inline_runner(
    log: Log, runner: SparkRunner, tmp_path: Path, temporary_files: Path
) -> None:
    """The files are the same byte for byte, and so is the result apart from times and the runner's name; the driver and its JVM
    are gone.

    They have low priority, hide the configuration from other users, and leave nothing in the temporary directory.
    """
    conf = {
        "spark.x.secret": "= hunter\\ 2ü",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    }
    runner.settings = replace(runner.settings, conf=conf)
    round_ = asyncio.create_task(check_result(log, runner, tmp_path))
    await wait_until(lambda: round_.done() or runner.progress_stage in ("planning", "cleaning"), WAIT_S)
    assert not round_.done(), round_.result()
    pid = runner.driver_pid
    assert pid is not None
    # A process that it is starting has its arguments, too, at first.
    [jvm] = {one for one in arguments_of_processes() if f"-Djava.io.tmpdir={temporary_files}" in one}
    assert "-Xmx512m" in jvm
    assert not [one for one in arguments_of_processes() if "hunter" in one]
    assert os.getpriority(os.PRIO_PGRP, pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
    await round_
    await wait_until(lambda: not is_group_alive(pid), WAIT_S)
    assert runner.progress_bytes > 0
    assert not os.listdir(temporary_files)


def arguments_of_processes() -> list[str]:
    """Return the arguments of all processes, as every user of the machine sees them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


@pytest.mark.slow
async def test_outputs_on_another_file_system_are_copied(log: Log, tmp_path: Path) -> None:
    """Where a staged file cannot be moved beside the segments it is copied; the staging location is empty afterwards."""
    staging = tmp_path / "staging"
    staging.mkdir()

    class Apart(RealEnv):
        def rename(self, old: str, new: str) -> None:
            if Path(old).is_relative_to(staging):
                raise OSError(18, "Invalid cross-device link", old)
            super().rename(old, new)

    runner = SparkRunner(Apart(), replace(LOCAL, staging=staging.as_uri()), program=FAKE)
    await check_result(log, runner, tmp_path)
    assert not os.listdir(staging)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mischief", "message"),
    [
        ("die", "killed by signal 9"),
        ("flip", "CRC-32C"),
        ("lose", "is gone"),
        ("miscount", "records"),
        ("forget", "has outputs for"),
        ("unseen", "do they see the same files"),
        ("stale", "do they see the same files"),
        ("litter", "killed by signal 9"),
        ("corrupt", "is whole on the broker's disk"),
        ("full", "No space left on device"),
        ("read-only", "Read-only file system"),
    ],
)
async def test_an_output_that_differs_from_the_jobs_report_is_not_swapped_in(
    log: Log,
    runner: SparkRunner,
    mischief: str,
    message: str,
    tmp_path: Path,
    temporary_files: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The round fails with the reason, the old files are in place, and no others are left."""
    local = tmp_path / "local"
    runner.settings = replace(runner.settings, conf={"spark.local.dir": str(local)})
    before = segment_files(log)
    monkeypatch.setenv(MISCHIEF, mischief)
    with pytest.raises(SparkError, match=message):
        await runner.run(plan_of(log), on_output=Swapper(log))
    check_untouched(log, before)
    assert [*os.listdir(temporary_files), *os.listdir(local)] == []
    assert runner.rests_for_s > 0
    assert message in str(runner.last_failure)


@pytest.mark.slow
async def test_the_round_after_a_failed_one_works(
    log: Log, runner: SparkRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure is forgotten."""
    monkeypatch.setenv(MISCHIEF, "die")
    with pytest.raises(SparkError):
        await runner.run(plan_of(log), on_output=Swapper(log))
    monkeypatch.delenv(MISCHIEF)
    assert (await runner.run(plan_of(log), on_output=Swapper(log))).runner == "spark"
    assert runner.last_failure is None


@pytest.mark.slow
@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("is_writing", [False, True], ids=["once it has begun", "once an output is there"])
async def test_a_driver_is_killed_amid_a_round(
    log: Log, runner: SparkRunner, tmp_path: Path, temporary_files: Path, is_writing: bool
) -> None:
    """SIGKILL to a driver of Spark, not to its JVM: the files are the old ones, or the new ones if it was done before. Nothing of
    it is left, neither processes nor directories, and the next round has the result of the inline runner.
    """
    runner.settings = replace(LOCAL, conf={"spark.driver.extraJavaOptions": JAVA_OPTIONS})
    old, values = segment_files(log), latest(log)
    round_ = asyncio.create_task(runner.run(plan_of(log), on_output=Swapper(log)))
    await wait_until(
        lambda: (
            round_.done() or (bool(outputs(log)) if is_writing else runner.progress_stage in ("planning", "cleaning"))
        ),
        WAIT_S,
    )
    pid = runner.driver_pid
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    try:
        await round_
    except SparkError:
        check_untouched(log, old)
        await check_result(log, runner, tmp_path)
    assert latest(load(log)) == values
    if pid is not None:
        await wait_until(lambda: not is_group_alive(pid), WAIT_S)
    assert not os.listdir(temporary_files)


@pytest.mark.slow
async def test_a_driver_is_kept_for_the_next_round(log: Log, tmp_path: Path, temporary_files: Path) -> None:
    """If configured, runners with the same settings use a driver in turn, and the last one to close ends it."""
    settings = replace(LOCAL, driver_max_idle_ms=600_000)
    other = make_log(tmp_path / "other")
    turns = SparkTurns(settings)
    first = SparkRunner(log.env, settings, turns=turns, program=FAKE)
    second = SparkRunner(other.env, settings, turns=turns, program=FAKE)
    used = []
    for runner, one in ((first, log), (second, other), (first, log)):
        pids = set()
        # Asked all the time, also while a driver is at work.
        result = await runner.run(plan_of(one), on_output=Swapper(one), check_done=lambda: pids.add(runner.driver_pid))  # noqa: B023
        assert result.runner == "spark"
        assert not leftovers(one)
        assert not directories(one)
        used.append(pids - {None})
    (pid,) = used[0]
    assert used == [{pid}] * 3
    assert len(os.listdir(temporary_files)) == 1
    await first.close()
    await second.close()
    assert pid is not None
    assert not is_group_alive(pid)
    assert not os.listdir(temporary_files)


@pytest.mark.slow
async def test_a_kept_driver_ends_when_its_time_is_over(log: Log, temporary_files: Path) -> None:
    """The driver's directories are removed, and nothing is logged."""
    runner = SparkRunner(log.env, replace(LOCAL, driver_max_idle_ms=1), program=FAKE)
    await runner.run(plan_of(log), on_output=Swapper(log))
    await wait_until(lambda: not os.listdir(temporary_files), WAIT_S)
    assert (await runner.run(plan_of(log), on_output=Swapper(log))).runner == "spark"
    await runner.close()


@pytest.mark.slow
@pytest.mark.parametrize("is_noticed", [True, False])
async def test_a_round_whose_kept_driver_is_gone_has_a_new_one(
    log: Log, temporary_files: Path, is_noticed: bool
) -> None:
    """If the kept driver was killed while idle, noticed or not, a new one runs the job, without a pause for Spark."""
    runner = SparkRunner(log.env, replace(LOCAL, driver_max_idle_ms=600_000), program=FAKE)
    round_ = asyncio.create_task(runner.run(plan_of(log), on_output=Swapper(log)))
    await wait_until(lambda: runner.driver_pid is not None or round_.done(), WAIT_S)
    pid = runner.driver_pid
    assert pid is not None
    await round_
    os.killpg(pid, signal.SIGKILL)
    if is_noticed:
        await wait_until(lambda: not is_group_alive(pid), WAIT_S)
    assert (await runner.run(plan_of(log), on_output=Swapper(log))).runner == "spark"
    assert runner.rests_for_s == 0
    assert len(os.listdir(temporary_files)) == 1
    await runner.close()


@pytest.mark.slow
async def test_a_driver_whose_job_failed_is_not_kept(
    log: Log, temporary_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure may be the driver's own fault."""
    runner = SparkRunner(log.env, replace(LOCAL, driver_max_idle_ms=600_000), program=FAKE)
    monkeypatch.setenv(MISCHIEF, "full")
    with pytest.raises(SparkError, match="No space left on device"):
        await runner.run(plan_of(log), on_output=Swapper(log))
    assert not os.listdir(temporary_files)
    await runner.close()


@pytest.mark.slow
async def test_a_local_runner_takes_over_and_spark_rests(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The death of a driver only delays the round. Then no plan is sent to Spark for a while, longer each time."""
    monkeypatch.setenv(MISCHIEF, "die")
    inline = InlineRunner(log.env)
    runner = SparkRunner(log.env, replace(LOCAL, min_bytes=0, master="local[1000]"), inline, program=FAKE)
    assert (await runner.run(plan_of(log), on_output=Swapper(log))).runner == "inline"
    first_rest_s = runner.rests_for_s
    assert 0 < first_rest_s <= REST_FIRST_S
    assert not runner.takes(plan_of(log))
    log.roll()
    await runner.run(plan_of(log), on_output=Swapper(log))
    assert runner.rests_for_s > first_rest_s
    assert not leftovers(log)
    assert not directories(log)
    await runner.close()
    await inline.close()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["file/below", "missing/below"])
async def test_a_staging_place_that_cannot_be_reached_is_spark_s_fault(log: Log, tmp_path: Path, place: str) -> None:
    """A local runner runs the round, and Spark pauses. No directories are created where a disk may not be mounted."""
    (tmp_path / "file").write_text("no directory")
    inline = InlineRunner(log.env)
    staging = (tmp_path / place).as_uri()
    runner = SparkRunner(log.env, replace(LOCAL, staging=staging), inline)
    assert (await runner.run(plan_of(log), on_output=Swapper(log))).runner == "inline"
    assert runner.rests_for_s > 0
    assert "do they see the same files" in str(runner.last_failure)
    assert not (tmp_path / "missing").exists()
    await runner.close()
    await inline.close()


@pytest.mark.slow
@pytest.mark.parametrize(("master", "niceness"), [("local[2]", NICENESS), ("spark://127.0.0.1:7077", 0)])
async def test_only_a_driver_that_does_the_work_has_low_priority(
    log: Log, monkeypatch: pytest.MonkeyPatch, master: str, niceness: int
) -> None:
    """The driver of a cluster coordinates: niced, it would keep the executors waiting on a busy machine."""
    monkeypatch.setenv(MISCHIEF, "mute")
    runner = SparkRunner(log.env, replace(LOCAL, master=master, staging=f"file://{log.path}"), program=FAKE)
    round_ = asyncio.create_task(runner.run(plan_of(log), on_output=Swapper(log)))

    def has_set_its_priority() -> bool:
        # A child raises this score right after its nice value.
        pid = runner.driver_pid
        return pid is not None and int(Path(f"/proc/{pid}/oom_score_adj").read_text()) >= OOM_SCORE

    await wait_until(has_set_its_priority, WAIT_S)
    assert runner.driver_pid is not None
    assert os.getpriority(os.PRIO_PROCESS, runner.driver_pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + niceness)
    round_.cancel()
    with suppress(asyncio.CancelledError):
        await round_
    await runner.close()


@pytest.mark.slow
async def test_a_driver_that_never_begins_is_given_up(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A master may accept an application without resources: after a timeout a local runner runs the round."""
    monkeypatch.setenv(MISCHIEF, "mute")
    inline = InlineRunner(log.env)
    settings = replace(LOCAL, executor_timeout_ms=300)
    runner = SparkRunner(log.env, settings, inline, start_timeout_s=0.2, program=FAKE)
    assert (await runner.run(plan_of(log), on_output=Swapper(log))).runner == "inline"
    assert "no job began on local[2] within 0.5 s" in str(runner.last_failure)
    await runner.close()
    await inline.close()


@pytest.mark.slow
async def test_a_job_of_which_no_task_ends_is_given_up(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark does not notice an executor that waits for a disk forever: a local runner runs the round."""
    monkeypatch.setenv(MISCHIEF, "stall")
    inline = InlineRunner(log.env)
    runner = SparkRunner(log.env, LOCAL, inline, program=FAKE)
    assert (await runner.run(plan_of(log), on_output=Swapper(log))).runner == "inline"
    assert "no task on local[2] has ended for 0.5 s (rewrite)" in str(runner.last_failure)
    assert runner.driver_pid is None
    assert not leftovers(log)
    assert not directories(log)
    await runner.close()
    await inline.close()


@pytest.mark.slow
async def test_a_partition_that_is_deleted_meanwhile_does_not_come_back(
    log: Log, runner: SparkRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks create only their own directories at the job's place. The error is the log's, and Spark does not pause."""
    monkeypatch.setenv(MISCHIEF, "delete")
    with pytest.raises(FileNotFoundError):
        await runner.run(plan_of(log), on_output=Swapper(log))
    assert not log.env.exists(log.path)
    assert runner.rests_for_s == 0


@pytest.mark.slow
async def test_one_driver_at_a_time_has_the_machine(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With local[N] a second runner of the broker accepts no plans during a job, and waits if one is requested."""
    monkeypatch.setenv(MISCHIEF, "hang")
    turns = SparkTurns(LOCAL)
    first = SparkRunner(log.env, replace(LOCAL, min_bytes=0), turns=turns, program=FAKE)
    other = make_log(tmp_path / "other")
    second = SparkRunner(other.env, replace(LOCAL, min_bytes=0, master="local[64]"), turns=turns, program=FAKE)
    plan = plan_of(other)
    huge = replace(plan, segments=(replace(plan.segments[0], size=1 << 40),))
    assert second.takes(huge)
    round_ = asyncio.create_task(first.run(plan_of(log), on_output=Swapper(log)))
    await wait_until(lambda: first.driver_pid is not None, WAIT_S)
    assert not second.takes(huge)
    waiting = asyncio.create_task(second.run(plan, on_output=Swapper(other)))
    await wait_until(lambda: bool(outputs(log)), WAIT_S)
    assert second.driver_pid is None
    monkeypatch.delenv(MISCHIEF)
    round_.cancel()
    assert (await waiting).runner == "spark"
    assert round_.cancelled()
    await second.close()
    assert turns.is_free
    assert SparkTurns(replace(LOCAL, master="spark://h:1")).is_free


def home_of(scratch: DriverScratch) -> Path:
    """Return the directory of a driver, in the temporary one."""
    return Path(scratch.environment["TMPDIR"]).parent


@pytest.mark.usefixtures("temporary_files")
def test_the_next_driver_removes_leftovers_of_a_killed_brokers_driver(tmp_path: Path) -> None:
    """Directories with a free lock are removed, wherever they are; those of running drivers stay."""
    conf = {"spark.local.dir": str(tmp_path / "local")}
    running, killed, following = DriverScratch(conf), DriverScratch(conf), DriverScratch({})
    running.make()
    killed.make()
    os.close(killed._lock)
    following.make()
    assert not home_of(killed).exists()
    assert os.listdir(tmp_path / "local") == [home_of(running).name]
    for one in (running, following):
        one.remove()
    assert [*(tmp_path / "local").iterdir(), *(tmp_path / "temporary").iterdir()] == []


def test_a_driver_s_directories_that_are_being_made_are_not_abandoned(temporary_files: Path) -> None:
    """An empty lock file may be about to be locked; after a minute it is abandoned."""
    lock = temporary_files / "diamant-driver-x" / "lock"
    lock.parent.mkdir()
    lock.touch()
    driver_scratch._remove_abandoned()
    assert lock.exists()
    os.utime(lock, (0, 0))
    driver_scratch._remove_abandoned()
    assert not lock.parent.exists()


def test_a_driver_s_directory_that_is_gone_is_not_made_again(
    temporary_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its lock it would never be removed."""
    scratch = DriverScratch({})
    flock = fcntl.flock

    def remove_first(descriptor: int, how: int) -> None:
        for home in temporary_files.iterdir():
            shutil.rmtree(home)
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with pytest.raises(FileNotFoundError):
        scratch.make()
    scratch.remove()
    assert not list(temporary_files.iterdir())


@pytest.mark.slow
def test_a_manifest_is_reported_in_parts(log: Log, tmp_path: Path) -> None:
    """Each part is short, and together they have all outputs in order."""
    manifest = CleanJob(OneProcess(), plan_of(log), source=Location(log.path), target=Location(f"{tmp_path}/job")).run()
    *parts, end = json.loads(json.dumps(list(driver.messages(manifest, outputs_together=2))))
    assert len(manifest.outputs) > 2
    assert max(len(part["outputs"]) for part in parts) == 2
    outputs = [StagedOutput.from_fields(one) for part in parts for one in part["outputs"]]
    assert replace(Manifest.from_fields(end["manifest"]), outputs=tuple(outputs)) == manifest
    assert len(list(driver.messages(manifest, sources_together=1))) == len(manifest.outputs) + 1


@pytest.mark.slow
async def test_a_round_leaves_the_loop_s_threads_to_others(log: Log, runner: SparkRunner) -> None:
    """Throttled copies may take minutes, and have a thread of their own."""

    class Nobodys(ThreadPoolExecutor):
        def submit(self, *arguments: Any, **named: Any) -> Any:
            raise AssertionError("the loop's threads are asked")

    async def refuse(_: OutputSegment) -> None:
        raise CleaningAborted("the partition was deleted")

    asyncio.get_running_loop().set_default_executor(Nobodys())
    with pytest.raises(CleaningAborted, match="the partition was deleted"):
        await runner.run(plan_of(log), on_output=refuse)


@pytest.mark.slow
async def test_without_room_on_the_disk_nobody_takes_over(log: Log) -> None:
    """A round that does not fit on this disk fails with Spark's reason and this one. A dead master is reported at once."""

    class Full(RealEnv):
        def disk_usage(self, path: str) -> tuple[int, int]:
            return 10**12, 10_000

    inline = InlineRunner(Full())
    runner = SparkRunner(Full(), SparkSettings(master="spark://127.0.0.1:1"), inline)
    before = segment_files(log)
    with pytest.raises(
        NoRoom, match=r"no Spark master answers at spark://127\.0\.0\.1:1[^$]*may need \d+ more bytes of disk"
    ):
        await runner.run(plan_of(log), on_output=Swapper(log))
    check_untouched(log, before)
    await runner.close()
    await inline.close()


@pytest.mark.slow
async def test_a_round_can_be_stopped(log: Log, runner: SparkRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped by `check_done`, by cancelling or by closing, the driver has exited, and no files are left."""
    monkeypatch.setenv(MISCHIEF, "hang")
    before = segment_files(log)
    is_over = False

    def check_done() -> None:
        if is_over:
            raise CleaningAborted("stop")

    for how in ("check", "cancel", "close"):
        round_: asyncio.Task[CleanResult] = asyncio.create_task(
            runner.run(plan_of(log), on_output=Swapper(log), check_done=check_done)
        )
        await wait_until(
            lambda: any(Path(log.path).glob("diamant-staging-*/*/*.txnindex.cleaned")) or bool(outputs(log)), WAIT_S
        )
        if how == "check":
            is_over = True
        elif how == "cancel":
            is_over = False
            round_.cancel()
        else:
            await runner.close()
        with pytest.raises((CleaningAborted, asyncio.CancelledError)):
            await round_
        is_over = False
        check_untouched(log, before)
        assert runner.rests_for_s == 0


async def test_a_cancelled_round_ends_its_thread_before_it_tidies_up(
    log: Log, runner: SparkRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread copies segments to a remote place: files that it still writes are removed, too."""
    started = threading.Event()

    def copy(_env: object, _plan: object, place: Location, check_done: Callable[[], None], _: object) -> Location:
        place.make_directory()
        started.set()
        try:
            while True:
                check_done()
        except CleaningAborted:
            place.child("segments").write_bytes(b"values")
            raise

    monkeypatch.setattr(spark_runner, "source_for", copy)
    before = segment_files(log)
    round_ = asyncio.create_task(runner.run(plan_of(log), on_output=Swapper(log)))
    await wait_until(started.is_set, WAIT_S)
    round_.cancel()
    with pytest.raises(asyncio.CancelledError):
        await round_
    check_untouched(log, before)


def outputs(log: Log) -> list[Path]:
    """Files at the staging location."""
    return list(Path(log.path).glob("diamant-staging-*/*/*.log.cleaned"))


@pytest.mark.slow
async def test_the_logs_own_faults_are_reported_as_by_any_runner(log: Log, runner: SparkRunner) -> None:
    """A corrupt batch, a changed segment, and a segment that retention has removed are reported as such; Spark does not pause
    for them.
    """
    before = segment_files(log)
    path = damage(log, 2)
    with pytest.raises(CorruptLog) as corrupt:
        await runner.run(plan_of(log), on_output=Swapper(log))
    assert (corrupt.value.path, corrupt.value.position) == (str(path), 0)
    damage(log, 2)
    plan = plan_of(log)
    changed = replace(plan, segments=(replace(plan.segments[0], size=plan.segments[0].size - 1), *plan.segments[1:]))
    with pytest.raises(SegmentChanged, match="has changed since the plan was made"):
        await runner.run(changed, on_output=Swapper(log))
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(FileNotFoundError) as gone:
        await runner.run(plan, on_output=Swapper(log))
    assert gone.value.filename == str(path)
    path.write_bytes(content)
    check_untouched(log, before)
    assert runner.rests_for_s == 0


@pytest.mark.slow
async def test_a_failed_swap_ends_the_round(log: Log, runner: SparkRunner) -> None:
    """The broker's error for an output, such as a deleted partition, is the round's error."""

    async def refuse(_: OutputSegment) -> None:
        raise CleaningAborted("the partition was deleted")

    before = segment_files(log)
    with pytest.raises(CleaningAborted, match="the partition was deleted"):
        await runner.run(plan_of(log), on_output=refuse)
    check_untouched(log, before)


@pytest.mark.slow
async def test_the_next_round_and_the_next_start_remove_leftovers_of_a_killed_broker(
    log: Log, runner: SparkRunner
) -> None:
    """Only places of earlier jobs at this partition are removed; opening the log removes all places beside it."""
    stray = Path(new_place(log.env, plan_of(log), "").path)
    others = stray.with_name("diamant-staging-0123456789abcdef-00000000")
    for place in (stray, others):
        (place / "00000000-1").mkdir(parents=True)
        (place / "00000000-1" / "00000000000000000000.log.cleaned").write_bytes(b"values")
    await runner.run(plan_of(log), on_output=Swapper(log))
    assert directories(log) == [others.name]
    load(log)
    assert not directories(log)


async def test_a_staging_place_that_means_nothing_is_refused(log: Log) -> None:
    """The error has the invalid text, and nothing is started."""
    runner = SparkRunner(log.env, replace(LOCAL, staging="ftp://host/place"))
    with pytest.raises(SparkError, match=r"the staging location cannot be used: .*ftp"):
        await runner.run(plan_of(log), on_output=Swapper(log))
    await runner.close()


def test_spark_is_chosen_for_what_is_large_and_sooner_done_there(log: Log) -> None:
    """Size and cores decide; a cluster is assumed to be faster; -1 means never."""
    plan = plan_of(log)
    huge = replace(plan, segments=(replace(plan.segments[0], size=1 << 40),))
    settings = SparkSettings(min_bytes=1 << 30)
    for master, is_chosen in (
        ("local", False),
        ("local[1]", False),
        ("local[64]", True),
        ("spark://h:1", True),
        ("yarn", True),
    ):
        assert is_worth_it(huge, replace(settings, master=master)) is is_chosen
    assert not is_worth_it(plan, replace(settings, master="spark://h:1"))
    for field in ("untouched", "quarantined"):
        spared = replace(huge, **{field: frozenset({plan.segments[0].base_offset})})  # type: ignore[arg-type]
        assert not is_worth_it(spared, replace(settings, master="spark://h:1"))
    assert not is_worth_it(huge, replace(settings, master="spark://h:1", min_bytes=-1))
    assert not is_worth_it(huge, replace(settings, master="spark://h:1", conf={"spark.cores.max": "2"}))


@pytest.mark.slow
async def test_the_fallback_for_spark_is_known(log: Log) -> None:
    """A local runner with a plan that suits Spark is a fallback while Spark pauses; with other plans it is not."""
    turns = SparkTurns(LOCAL)
    settings = SparkSettings(master="spark://h:1", min_bytes=1 << 30)
    thread = CleanerSlot(
        0, log.env, None, lambda local: SparkRunner(log.env, settings, local, turns=turns), offload_from_bytes=1 << 30
    )
    plan = plan_of(log)
    huge = replace(plan, segments=(replace(plan.segments[0], size=1 << 40),))
    chosen = thread.runner_for(huge)
    assert (chosen.name, thread.is_fallback(chosen, huge)) == ("spark", False)
    turns.failed("lost")
    chosen = thread.runner_for(huge)
    assert (chosen.name, thread.is_fallback(chosen, huge)) == ("inline", True)
    assert not thread.is_fallback(chosen, plan)
    await thread.close()


async def test_a_runner_can_be_asked_for_by_name(log: Log) -> None:
    """A named runner takes any size; if Spark is not available, the usual runners are used."""
    asked: list[object] = []

    def spark(local: object) -> SparkRunner:
        asked.append(local)
        return SparkRunner(log.env, LOCAL)

    thread = CleanerSlot(0, log.env, lambda: ProcessRunner(log.env), spark, offload_from_bytes=1 << 30)
    plan = plan_of(log)
    assert [thread.runner_for(plan, engine=name).name for name in ("spark", "process", "inline", None)] == [
        "spark",
        "process",
        "inline",
        "inline",
    ]
    assert [getattr(local, "name", None) for local in asked] == ["process"]
    assert CleanerSlot(0, log.env, None).runner_for(plan, engine="spark").name == "inline"
    await thread.close()
