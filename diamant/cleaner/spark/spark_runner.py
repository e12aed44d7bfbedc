"""Carries out plans on Spark: a driver process for each (`clean_driver`), whose outputs are looked at before they are swapped in.

    plan → file → driver → manifest → every file looked at (`staged_outputs`) → swapped in by the broker, one after the other

The staging place is a directory of the job's own: beside the segments, or below `diamant.cleaner.spark.staging`. Where that is
not a file system that executors share with the broker (s3:), the segments are copied there first. However a round ends, its
directory is removed; what a broker that was killed has left goes with the next round at the partition, or the next start.

A job that fails for a reason that is not the log's (no Java, no master, executors lost, a full staging place) is not tried again
for a while, `REST_FIRST_S` at first and twice as long each time, and the round goes to the local runner at once, if nothing was
swapped in yet and the disk has room for its spill file.

Everything here runs on the loop thread, but what blocks for the disk. The driver cannot harm the log: it writes to its place
only.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections import deque
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from diamant.cleaner.plan import CleanPlan
from diamant.cleaner.process_runner import _BOOTSTRAP, _to_the_end
from diamant.cleaner.result import CheckDone, CleaningAborted, CleanResult, OutputSegment, never_done
from diamant.cleaner.runner import Runner, SwapOutput, remove_cleaned_files, wait_in_spite_of_cancelling
from diamant.cleaner.runner_errors import RunnerFailed
from diamant.cleaner.spark.errors import SegmentChanged, SparkError
from diamant.cleaner.spark.locations import Location
from diamant.cleaner.spark.manifest import NAME, Manifest, error_of
from diamant.cleaner.spark.settings import SparkSettings, is_worth_it
from diamant.cleaner.spark.staged_outputs import take_over
from diamant.cleaner.spark.staging import new_place, remove_leftovers, remove_place, source_for
from diamant.cleaner.worker_messages import Message
from diamant.storage.env import Env

logger = logging.getLogger(__name__)

REST_FIRST_S = 60.0
"""Spark is left alone for so long after a job that failed; twice as long after each further one in a row."""
REST_MAX_S = 3600.0
STOP_TIMEOUT_S = 5.0
"""How long a driver that has told everything has to end by itself."""
POLL_S = 0.1
"""How often `check_done` is asked."""
MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longest message: a manifest names every output's files and sources, some 500 bytes each."""
SPILL_BYTES_PER_BYTE = 0.5
"""What a local round may need on disk for each byte of the log beside its outputs: 32 bytes per record of 64."""

_KEPT_STDERR_LINES = 20
_MAX_STDERR_LINE = 1000
_DRIVER_BOOTSTRAP = _BOOTSTRAP.replace("diamant.cleaner.worker", "diamant.cleaner.spark.clean_driver")


class SparkRunner:
    """See the module. `local` takes over what fails; without it the failure is the round's."""

    name = NAME

    def __init__(self, env: Env, settings: SparkSettings, local: Runner | None = None) -> None:
        self.settings = settings
        self.progress_bytes = 0
        """How much tasks of the job under way have read and written."""
        self.progress_step = ""
        """What the job under way is at; empty without one."""
        self.last_failure: str | None = None
        """Why the last job failed that did not succeed."""
        self._env = env
        self._local = local
        self._turn = asyncio.Lock()
        self._failures = 0
        self._rests_until_s = 0.0
        self._driver: _DriverProcess | None = None
        self._is_closed = False

    @property
    def driver_pid(self) -> int | None:
        """Process id of the driver, while there is one."""
        return None if self._driver is None else self._driver.pid

    @property
    def rests_for_s(self) -> float:
        """How long Spark is left alone from now on, after jobs that failed."""
        return max(0.0, self._rests_until_s - time.monotonic())

    def takes(self, plan: CleanPlan) -> bool:
        """Tell whether a plan that nobody has chosen a runner for is for this one."""
        return not self.rests_for_s and is_worth_it(plan, self.settings) and find_spec("pyspark") is not None

    async def run(self, plan: CleanPlan, *, on_output: SwapOutput, check_done: CheckDone = never_done) -> CleanResult:
        """Carry out `plan`; see the module and `runner`."""
        async with self._turn:
            swapped = 0

            async def swap(output: OutputSegment) -> None:
                nonlocal swapped
                await on_output(output)
                swapped += 1

            try:
                result = await self._run(plan, swap, check_done)
            except RunnerFailed as failure:
                if isinstance(failure, SegmentChanged):
                    raise
                self._rest(plan, failure)
                if self._local is None or swapped or not await asyncio.to_thread(self._has_room, plan):
                    raise
            else:
                self._failures = 0
                self.last_failure = None
                return result
        # Outside of the turn: a local round may take long, and other partitions need not wait for it.
        return await self._local.run(plan, on_output=on_output, check_done=check_done)

    async def close(self) -> None:
        """End the job under way. May be called twice."""
        self._is_closed = True
        async with self._turn:
            pass

    # -- a job -----------------------------------------------------------------------------------------------------------

    async def _run(self, plan: CleanPlan, on_output: SwapOutput, check_done: CheckDone) -> CleanResult:
        check_done()
        self.progress_bytes, self.progress_step = 0, "starting"
        place = new_place(plan, self.settings.staging)
        try:
            await asyncio.to_thread(remove_leftovers, plan, place)
            source = await asyncio.to_thread(source_for, self._env, plan, place, self._checked(check_done))
            manifest = await self._run_driver(plan, source, place, check_done)
            self.progress_step = "verifying"
            for staged in manifest.outputs:
                output = await asyncio.to_thread(take_over, self._env, plan, staged, place, self._checked(check_done))
                check_done()
                await _to_the_end(on_output, output)
            return manifest.result()
        except BaseException:
            sweep = asyncio.get_running_loop().run_in_executor(None, remove_cleaned_files, self._env, plan)
            await wait_in_spite_of_cancelling(sweep)
            raise
        finally:
            self.progress_step = ""
            removal = asyncio.get_running_loop().run_in_executor(None, remove_place, place)
            await wait_in_spite_of_cancelling(removal)

    def _checked(self, check_done: CheckDone) -> CheckDone:
        def check() -> None:
            if self._is_closed:
                raise CleaningAborted("the cleaner stops")
            check_done()

        return check

    async def _run_driver(self, plan: CleanPlan, source: Location, place: Location, check_done: CheckDone) -> Manifest:
        what = f"{plan.topic}-{plan.partition}"
        settings = self.settings
        with tempfile.TemporaryDirectory(prefix="diamant-driver-") as directory:
            text = await asyncio.to_thread(plan.to_json)
            fields = {
                "plan": text,
                "master": settings.master,
                "conf": dict(settings.conf),
                "source": [source.path, source.filesystem],
                "target": [place.path, place.filesystem],
            }
            job = f"{directory}/job.json"
            await asyncio.to_thread(_write_privately, job, json.dumps(fields))
            driver = self._driver = await _start_driver(job)
            try:
                while True:
                    message = await self._next(driver, check_done)
                    if message is None:
                        raise SparkError(f"{what}: {await driver.death()}")
                    match message["type"]:
                        case "progress":
                            self.progress_step, self.progress_bytes = message["step"], message["bytes"]
                        case "manifest":
                            return Manifest.from_fields(message["manifest"])
                        case "error":
                            raise error_of(message, what)
                        case _:
                            raise SparkError(f"{what}: unexpected message of the driver: {message['type']}")
            finally:
                self._driver = None
                ending = asyncio.get_running_loop().create_task(driver.end())
                await wait_in_spite_of_cancelling(ending)

    async def _next(self, driver: _DriverProcess, check_done: CheckDone) -> Message | None:
        while True:
            self._checked(check_done)()
            with suppress(TimeoutError):
                return await driver.receive(POLL_S)

    def _rest(self, plan: CleanPlan, failure: RunnerFailed) -> None:
        self._failures += 1
        rest_s = min(REST_MAX_S, REST_FIRST_S * 2 ** (self._failures - 1))
        self._rests_until_s = time.monotonic() + rest_s
        self.last_failure = str(failure)
        logger.warning(
            "%s-%d: Spark on %s failed, it is not tried again for %d s: %s",
            plan.topic,
            plan.partition,
            self.settings.master,
            rest_s,
            failure,
        )

    def _has_room(self, plan: CleanPlan) -> bool:
        """Tell whether the local runner has the room on disk that a round of this size may need at the most."""
        size = sum(segment.size for segment in plan.segments)
        _, free = self._env.disk_usage(plan.directory)
        return free > size * SPILL_BYTES_PER_BYTE + plan.segment_bytes


def _write_privately(path: str, text: str) -> None:
    Path(path).touch(0o600)
    Path(path).write_text(text, encoding="utf-8")


class _DriverProcess:
    """A driver that runs, or did."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._said: deque[str] = deque(maxlen=_KEPT_STDERR_LINES)
        self._stderr_reader = asyncio.get_running_loop().create_task(self._read_stderr(process.stderr))
        self._line: asyncio.Task[bytes] | None = None
        self._has_ended = False

    @property
    def pid(self) -> int:
        return self._process.pid

    async def receive(self, timeout_s: float) -> Message | None:
        """Return the next message, None at the driver's end; TimeoutError if none comes in time."""
        if self._line is None:
            self._line = asyncio.get_running_loop().create_task(self._stdout.readline())
        done, _ = await asyncio.wait({self._line}, timeout=timeout_s)
        if not done:
            raise TimeoutError
        line = self._line.result()
        self._line = None
        if not line.endswith(b"\n"):
            return None
        message: Message = json.loads(line)
        self._has_ended = message["type"] in ("manifest", "error")
        return message

    async def death(self) -> str:
        """Wait for the end of a driver whose messages have ended, and return what it died of."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), STOP_TIMEOUT_S)
        await self._wait()
        code = self._process.returncode
        how = f"exited with status {code}"
        if code is not None and code < 0:
            how = f"was killed by signal {-code} ({signal.strsignal(-code)})"
        said = "".join(f"\n{line}" for line in self._said)
        return f"the Spark driver {self.pid} {how}{said}"

    async def end(self) -> None:
        """Have the driver end, by force if it was not about to, and wait until it and its JVM are gone."""
        if self._has_ended:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), STOP_TIMEOUT_S)
        await self._wait()

    async def _wait(self) -> None:
        # The JVM is in the driver's session, and would see its end a moment later.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        await self._process.wait()
        await asyncio.wait({self._stderr_reader}, timeout=STOP_TIMEOUT_S)
        self._stderr_reader.cancel()
        if self._line is not None:
            await asyncio.wait({self._line}, timeout=STOP_TIMEOUT_S)
            self._line.cancel()
            self._line = None
        self._stdin.close()

    async def _read_stderr(self, stream: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await stream.readline()
            except ValueError:
                continue  # longer than the stream's limit
            if not line:
                return
            text = line.decode(errors="replace").rstrip()[:_MAX_STDERR_LINE]
            self._said.append(text)
            logger.info("driver %d: %s", self.pid, text)


async def _start_driver(job: str) -> _DriverProcess:
    place = str(Path(__file__).parents[3])
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-c", _DRIVER_BOOTSTRAP, place, "--parent", str(os.getpid()), job,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=MAX_LINE_BYTES,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise SparkError(f"the Spark driver cannot be started: {error}") from error
    return _DriverProcess(process)
