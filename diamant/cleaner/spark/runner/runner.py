"""Executes plans on Spark: a driver process runs each job (`driver`), and the broker verifies its outputs before the swap.

    plan → driver → manifest → verify each file (`staged_outputs`) → swap by the broker, one output at a time

Each job has its own staging location, in the partition's directory or below `diamant.cleaner.spark.staging`. If executors do not
share that file system with the broker (s3:), the segments are copied there first. The directory is removed at the end of the
round. If the broker is killed, the partition's next round or the broker's next start removes it.

If a job fails through no fault of the log, Spark is not used for a while (`turns`). The local runner takes over the round
immediately if no output has been swapped yet and the disk has room for its spill file (`check_room`). Faults of the log are
corrupt batches, outputs that overflow, and changed segments; the broker confirms them on its own disk. All other failures are
blamed on Spark or the staging location: no Java, no master, lost executors, a full or unreachable staging location, a disk that
executors do not see. If the broker's disk is at fault after all, the local runner reports it.

All waits are bounded: a driver is ended if its job does not start in time, or if it has no executor for too long
(`executor_watch`). After a successful job a driver may be kept for the next one (`diamant.cleaner.spark.driver.max.idle.ms`),
because a small job mostly waits for its session to start.

Everything runs on the loop thread, except disk I/O. The driver cannot harm the log: it writes only to the staging location and
to its own directories (`driver_scratch`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import ParamSpec, TypeVar

from diamant.cleaner.facts.quarantine import corrupt_base
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import (
    CheckDone,
    CleaningAborted,
    CleanResult,
    OutputOverflow,
    OutputSegment,
    never_done,
)
from diamant.cleaner.rules.throttle import Throttle
from diamant.cleaner.runners.child_process import bootstrap, swap_to_the_end
from diamant.cleaner.runners.contract import NoRoom, Runner, RunnerFailed, SwapOutput, check_room, remove_cleaned_files
from diamant.cleaner.runners.process import NICENESS
from diamant.cleaner.spark.clean.manifest import NAME, Manifest, StagedOutput, error_of
from diamant.cleaner.spark.clean.staged_outputs import check_manifest, take_over
from diamant.cleaner.spark.clean.staging import new_place, remove_leftovers, remove_place, source_for
from diamant.cleaner.spark.environment.locations import Location
from diamant.cleaner.spark.environment.spark_errors import SegmentChanged, SparkError, SparkUnavailable
from diamant.cleaner.spark.environment.spark_settings import SparkSettings, is_worth_it
from diamant.cleaner.spark.runner.driver_process import DriverProcess
from diamant.cleaner.spark.runner.driver_scratch import DriverScratch
from diamant.cleaner.spark.runner.turns import POLL_S, SparkTurns
from diamant.own_thread import wait_in_spite_of_cancelling
from diamant.protocol.batches.batch import crc_is_valid
from diamant.storage import names
from diamant.storage.env.env import Env
from diamant.storage.errors import CorruptLog, RecordTooLarge
from diamant.storage.segments.segment import scan_headers

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

START_TIMEOUT_S = 90.0
"""Maximum time until a driver reports the start of its job, not counting the wait for executors. Enough to start a JVM and a
session, or for Spark to give up on a master that does not answer (60 s)."""

LOCAL_START_TIMEOUT_S = 900.0
"""The same for `local[*]`. There is no master to wait for, but at low priority the driver gets little CPU on a busy machine."""

DRIVER_PROGRAM = bootstrap("diamant.cleaner.spark.runner.driver")


class SparkRunner:
    """Runs rounds on Spark. If a job fails, `local` takes over its round; if `local` is None, the round fails.

    `turns` is shared by all runners of a broker. A runner has one job and one driver at a time; the driver takes about 200 MB in
    addition to its JVM's heap. A runner has its own thread, so that long copies and throttling do not delay other runners.
    """

    name = NAME

    def __init__(
        self,
        env: Env,
        settings: SparkSettings,
        local: Runner | None = None,
        *,
        turns: SparkTurns | None = None,
        niceness: int = NICENESS,
        start_timeout_s: float | None = None,
        program: str = DRIVER_PROGRAM,
    ) -> None:
        """`program`: the Python source that the driver runs. `niceness` applies to `local[*]` only."""
        self._program = program
        self.settings = settings
        self.progress_stage = ""
        """The step of the current job; empty if there is no job."""
        self._env = env
        self._local = local
        self._turns = SparkTurns(settings) if turns is None else turns
        self._niceness = niceness
        if start_timeout_s is None:
            start_timeout_s = LOCAL_START_TIMEOUT_S if settings.is_local else START_TIMEOUT_S
        self._start_timeout_s = start_timeout_s + settings.executor_timeout_ms / 1000
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "spark")
        self._driver: DriverProcess | None = None
        self._is_closed = False
        self._job_bytes = 0
        """Bytes that tasks of the current job have read and written."""
        self._is_local_at_it = False

    @property
    def progress_bytes(self) -> int:
        """Bytes read and written by the current job, or by the local runner if that has taken over."""
        if self._is_local_at_it and self._local is not None:
            return self._local.progress_bytes
        return self._job_bytes

    @property
    def driver_pid(self) -> int | None:
        """Process id of the driver; None if there is no driver."""
        return None if self._driver is None else self._driver.pid

    @property
    def rests_for_s(self) -> float:
        """Remaining time of the pause after failed jobs."""
        return self._turns.rests_for_s

    @property
    def last_failure(self) -> str | None:
        """Reason of the last failure; None after a success."""
        return self._turns.last_failure

    def suits(self, plan: CleanPlan) -> bool:
        """Return whether this runner suits a plan for which no runner was requested."""
        return is_worth_it(plan, self.settings) and find_spec("pyspark") is not None

    def takes(self, plan: CleanPlan) -> bool:
        """Return whether a plan suits Spark and can run now: no other job occupies the machine, and none has failed recently."""
        return not self.rests_for_s and self._turns.is_free and self.suits(plan)

    async def run(self, plan: CleanPlan, *, on_output: SwapOutput, check_done: CheckDone = never_done) -> CleanResult:
        """Execute `plan`; see the module and `runners.contract`."""
        self._job_bytes, self._is_local_at_it = 0, False
        async with self._turn:
            swap = _CountedSwaps(on_output)
            try:
                async with self._turns.driver(self._checked(check_done)):
                    result = await self._run_in_session(plan, swap, check_done)
            except RunnerFailed as failure:
                if isinstance(failure, SegmentChanged):
                    raise
                self._rest(plan, failure)
                if self._local is None or swap.count:
                    raise
                try:
                    await self._in_thread(check_room, self._env, plan)
                except NoRoom as no_room:
                    raise NoRoom(f"{failure}\n{no_room}") from failure
            else:
                self._turns.succeeded()
                return result
        # Run a local round outside of the turn: it may take long, and must not delay other partitions.
        self._is_local_at_it = True
        return await self._local.run(plan, on_output=on_output, check_done=check_done)

    async def close(self) -> None:
        """End the job in progress and all idle drivers. Idempotent."""
        self._is_closed = True
        async with self._turn:
            await self._turns.end_idle()
        self._thread.shutdown(wait=False)  # the thread is idle

    # -- a job -----------------------------------------------------------------------------------------------------------

    async def _run_in_session(self, plan: CleanPlan, swap: _CountedSwaps, check_done: CheckDone) -> CleanResult:
        """Run a job with a kept driver. If there is none, or if it fails before tasks have read anything, use a new driver."""
        kept = await self._turns.take(self.settings)
        if kept is not None:
            try:
                return await self._run(kept, plan, swap, check_done)
            except SegmentChanged:
                raise
            except RunnerFailed as failure:
                # The idle driver may have ended or lost its executors. A failure after bytes were read is the job's own.
                if self._job_bytes:
                    raise
                logger.info("%s-%d: starting a new Spark driver: %s", plan.topic, plan.partition, failure)
        return await self._run(None, plan, swap, check_done)

    async def _run(
        self, kept: DriverProcess | None, plan: CleanPlan, on_output: SwapOutput, check_done: CheckDone
    ) -> CleanResult:
        self._checked(check_done)()
        self.progress_stage = "starting"
        place: Location | None = None
        is_swapping = False
        threads = _Threads(self._thread, self._checked(check_done))
        try:
            place = await threads.run(new_place, self._env, plan, self.settings.staging)
            await threads.run(remove_leftovers, self._env, plan, place)
            throttle = Throttle(plan.io_max_bytes_per_second)
            source = await threads.run(source_for, self._env, plan, place, threads.check, throttle)
            manifest = await self._run_driver(kept, plan, source, place, threads)
            self.progress_stage = "verifying"
            await threads.run(check_manifest, plan, manifest)
            for staged in manifest.outputs:
                output = await threads.run(take_over, self._env, plan, staged, place, threads.check, throttle)
                check_done()
                is_swapping = True
                await swap_to_the_end(on_output, output)
                is_swapping = False
            return manifest.result()
        except BaseException as error:
            sweep = self._in_thread(remove_cleaned_files, self._env, plan)
            await wait_in_spite_of_cancelling(sweep)
            if is_swapping or not isinstance(error, Exception):
                raise
            failure = await self._failure(plan, error)
            if failure is error:
                raise
            raise failure from error
        finally:
            self.progress_stage = ""
            if place is not None:
                removal = self._in_thread(remove_place, self._env, plan, place)
                await wait_in_spite_of_cancelling(removal)

    async def _failure(self, plan: CleanPlan, error: Exception) -> Exception:
        """Classify an error: return the log's own faults unchanged, and SparkError for all others."""
        if isinstance(error, CleaningAborted | OutputOverflow | RecordTooLarge):
            return error
        is_of_files = isinstance(error, OSError | SegmentChanged)
        if isinstance(error, RunnerFailed) and not is_of_files:
            return error
        what = f"{plan.topic}-{plan.partition}"
        if isinstance(error, CorruptLog):
            if not await self._in_thread(_is_whole, self._env, plan, error):
                return error
            return SparkError(
                f"{what}: an executor has read a corrupt batch that is whole on the broker's disk: {error}. Is the memory or "
                "disk of the executor's machine faulty, or does it see another file in place of the segment?"
            )
        if not is_of_files:
            return SparkError(f"{what}: the job on Spark failed: {type(error).__name__}: {error}")
        if not await self._in_thread(_is_as_planned, self._env, plan):
            return error
        where = self.settings.master if not self.settings.is_local else "this machine"
        return SparkError(
            f"{what}: {error}. The segments on the broker's disk are unchanged. Can the broker and the executors on {where} read "
            "and write the staging location, and do they see the same files there and in the data directory?"
        )

    def _checked(self, check_done: CheckDone) -> CheckDone:
        def check() -> None:
            if self._is_closed:
                raise CleaningAborted("the cleaner stops")
            check_done()

        return check

    async def _run_driver(
        self, kept: DriverProcess | None, plan: CleanPlan, source: Location, place: Location, threads: _Threads
    ) -> Manifest:
        job = {
            "plan": await threads.run(plan.to_json),
            "source": [source.path, source.filesystem],
            "target": [place.path, place.filesystem],
        }
        driver = self._driver = await self._start_driver(threads) if kept is None else kept
        try:
            driver.send_job(job)
            manifest = await self._listen(driver, plan, threads.check)
        except BaseException:
            await wait_in_spite_of_cancelling(asyncio.get_running_loop().create_task(driver.end()))
            raise
        finally:
            self._driver = None
        releasing = asyncio.get_running_loop().create_task(self._turns.release(driver))
        await wait_in_spite_of_cancelling(releasing)
        return manifest

    async def _start_driver(self, threads: _Threads) -> DriverProcess:
        scratch = DriverScratch(self.settings.conf)
        try:
            await threads.run(scratch.make)
            niceness = self._niceness if self.settings.is_local else 0
            return await DriverProcess.start(scratch, self.settings, self._program, niceness)
        except BaseException:
            await wait_in_spite_of_cancelling(self._in_thread(scratch.remove))
            raise

    def _in_thread(self, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, partial(call, *arguments, **named))

    async def _listen(self, driver: DriverProcess, plan: CleanPlan, check: CheckDone) -> Manifest:
        """Return the manifest from the driver, or raise the error that it reports."""
        what = f"{plan.topic}-{plan.partition}"
        deadline_s: float | None = time.monotonic() + self._start_timeout_s
        outputs: list[StagedOutput] = []
        while True:
            check()
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise SparkUnavailable(
                    f"{what}: no job began on {self.settings.master} within {self._start_timeout_s:g} s: does the master grant "
                    "executors?"
                )
            try:
                message = await driver.receive(POLL_S)
            except TimeoutError:
                continue
            deadline_s = None  # from now on the driver itself watches its executors
            if message is None:
                raise SparkError(f"{what}: {await driver.death()}")
            match message["type"]:
                case "progress":
                    self.progress_stage, self._job_bytes = message["stage"], message["bytes"]
                case "outputs":
                    outputs += map(StagedOutput.from_fields, message["outputs"])
                    if len(outputs) > len(plan.segments):
                        raise SparkError(
                            f"{what}: the job reports more outputs than the {len(plan.segments)} segments of the plan"
                        )
                case "manifest":
                    return replace(Manifest.from_fields(message["manifest"]), outputs=tuple(outputs))
                case "error":
                    raise error_of(message, what)
                case _:
                    raise SparkError(f"{what}: unexpected message from the driver: {message['type']}")

    def _rest(self, plan: CleanPlan, failure: RunnerFailed) -> None:
        rest_s = self._turns.failed(str(failure))
        logger.warning(
            "%s-%d: the job failed on Spark at %s; not using Spark for %d s: %s",
            plan.topic,
            plan.partition,
            self.settings.master,
            rest_s,
            failure,
        )


class _CountedSwaps:
    """Passes outputs to the broker, and counts the swaps."""

    def __init__(self, on_output: SwapOutput) -> None:
        self.count = 0
        self._on_output = on_output

    async def __call__(self, output: OutputSegment) -> None:
        await self._on_output(output)
        self.count += 1


class _Threads:
    """Runs steps of a round in a thread. After a cancellation, the current step ends before the cleanup begins."""

    def __init__(self, thread: Executor, check_done: CheckDone) -> None:
        self._thread = thread
        self._check_done = check_done
        self._is_over = threading.Event()

    def check(self) -> None:
        """Raise CleaningAborted if the round must stop. Callable from any thread."""
        if self._is_over.is_set():
            raise CleaningAborted("the round was cancelled")
        self._check_done()

    async def run(self, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Run `call` in the thread, and return its result."""
        work = asyncio.get_running_loop().run_in_executor(self._thread, partial(call, *arguments, **named))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            self._is_over.set()
            await wait_in_spite_of_cancelling(work)
            raise


def _is_whole(env: Env, plan: CleanPlan, error: CorruptLog) -> bool:
    """Return whether a batch that an executor found corrupt is whole, with a valid CRC, on the broker's disk.

    Also True if the disk cannot be read, because the local runner will report that better. False for files other than segments.
    Blocks on disk I/O.
    """
    base_offset = corrupt_base(error)
    segment = next((one for one in plan.segments if one.base_offset == base_offset), None)
    if segment is None:
        return False
    try:
        file = env.open(names.log_file(plan.directory, segment.base_offset), read_only=True)
        try:
            end = 0
            for position, header in scan_headers(file, 0, segment.size):
                end = position + header.size
                if error.position < end:
                    return header.magic != 2 or crc_is_valid(file.pread(header.size, position), 0, header.size)
            return end == segment.size
        finally:
            file.close()
    except CorruptLog:
        return False
    except OSError:
        return True


def _is_as_planned(env: Env, plan: CleanPlan) -> bool:
    """Return whether the segments of a plan are unchanged. Blocks on disk I/O."""
    try:
        return all(
            env.file_size(names.log_file(plan.directory, segment.base_offset)) == segment.size
            for segment in plan.segments
        )
    except OSError:
        return False
