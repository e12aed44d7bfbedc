"""The runner with a worker process (`worker`), which it starts for the first plan and stops when it is idle.

There is one worker, which executes one plan at a time; further plans wait. If it dies, the current round fails (RunnerFailed),
its `.cleaned` files are removed, and the next round starts a new worker. On its own, the worker writes only `.cleaned` files. The
broker swaps these outputs in, one by one, while the worker continues, and commands the worker to rename the files (`move`). If
the worker dies before it has answered, the broker renames them.

Everything runs on the loop thread, except the removal of files.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from diamant.cleaner.facts.filter_making import FactsTask
from diamant.cleaner.facts.key_filter import MAX_KEYS
from diamant.cleaner.rules.plan import KAFKA_MAP_ENTRY_BYTES, CleanPlan
from diamant.cleaner.rules.result import (
    CheckDone,
    CleaningAborted,
    CleanResult,
    CleanStats,
    OutputSegment,
    never_done,
    output_from_fields,
)
from diamant.cleaner.runners.child_process import ChildProcess, bootstrap, swap_to_the_end
from diamant.cleaner.runners.contract import RunnerFailed, SwapOutput, remove_cleaned_files
from diamant.cleaner.runners.worker_messages import MAX_LINE_BYTES, error_from, facts_task_fields
from diamant.json_types import JsonObject
from diamant.own_thread import wait_in_spite_of_cancelling
from diamant.storage.env.env import Env
from diamant.storage.log.moves import EnvDirectory, Moves, carry_out

logger = logging.getLogger(__name__)

MEMORY_OVERHEAD_BYTES = 512 * 1024 * 1024
"""Memory that a worker may use in addition to the map. It needs 65 MB for the interpreter and the engine, and twice the size of
the largest batch that the broker accepts (128 MiB decompressed), once to read it and once to write it; the rest is a reserve."""

IDLE_S = 60.0
"""Time after which an idle worker is stopped."""

NICENESS = 10

CANCEL_TIMEOUT_S = 5.0
"""Time after which a worker that has not ended a cancelled round is killed."""
STOP_TIMEOUT_S = 5.0
"""Time after which a worker that has not exited is killed."""
START_TIMEOUT_S = 60.0
MANY_SEGMENTS = 100
"""A plan with at least this number of segments is serialized in a thread."""
MOVE_TIMEOUT_S = 30.0
"""Time after which a worker that has not renamed the files of a few segments is killed."""
POLL_S = 0.1
"""Interval between calls of `check_done`."""

WORKER_PROGRAM = bootstrap("diamant.cleaner.runners.worker")


def memory_limit_bytes(plan: CleanPlan, overhead_bytes: int = MEMORY_OVERHEAD_BYTES) -> int:
    """Return a worker's memory limit for a plan: twice the map, because it is copied when it grows, plus the overhead."""
    map_bytes = plan.map_max_entries * KAFKA_MAP_ENTRY_BYTES if plan.is_kafka else plan.map_memory_bytes
    return 2 * map_bytes + overhead_bytes


async def no_swap(_output: OutputSegment) -> None:
    """Ignore the output."""


class ProcessRunner:
    """Runs plans in a worker process. `memory_overhead_bytes`: see `memory_limit_bytes`; `idle_s`: see `IDLE_S`; `program`:
    Python source that the worker runs; `threads`: returns the number of cleaner threads, from which the worker's processors are
    chosen (`_place`); None: the worker may use any processor.
    """

    name = "process"

    def __init__(
        self,
        env: Env,
        *,
        memory_overhead_bytes: int = MEMORY_OVERHEAD_BYTES,
        idle_s: float = IDLE_S,
        niceness: int = NICENESS,
        cancel_timeout_s: float = CANCEL_TIMEOUT_S,
        program: str = WORKER_PROGRAM,
        threads: Callable[[], int] | None = None,
    ) -> None:
        self._program = program
        self._threads = threads
        self.progress_bytes = 0
        """Bytes that the current round has read and written, as far as known."""
        self._env = env
        self._memory_overhead_bytes = memory_overhead_bytes
        self._idle_s = idle_s
        self._niceness = niceness
        self._cancel_timeout_s = cancel_timeout_s
        self._turn = asyncio.Lock()
        self._round = 0
        self._worker: _WorkerProcess | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._retirement: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def worker_pid(self) -> int | None:
        """Process id of the worker, if there is one."""
        return None if self._worker is None else self._worker.pid

    async def warm_up(self) -> None:
        """Start a worker and load its engine, unless a worker is already running."""
        async with self._turn:
            try:
                await self._start()
            finally:
                self._rest()

    async def run(self, plan: CleanPlan, *, on_output: SwapOutput, check_done: CheckDone = never_done) -> CleanResult:
        """Execute `plan` in the worker, and return the result."""
        self.progress_bytes = 0
        async with self._turn:
            worker = await self._start()
            try:
                return await self._run(worker, plan, on_output, check_done)
            except BaseException:
                sweep = asyncio.get_running_loop().run_in_executor(None, remove_cleaned_files, self._env, plan)
                await wait_in_spite_of_cancelling(sweep)
                raise
            finally:
                self._rest()

    async def move(self, moves: Moves) -> None:
        """Let the worker of the current round execute `moves`. If it has died, dies or runs out of memory, execute them here.

        All moves are done on return, even if the caller is cancelled. Raises OSError if a move failed.
        """
        worker = self._worker
        assert worker is not None, "a round is in progress"
        worker.send({"type": "move", "moves": moves})
        try:
            answer = await worker.answer(MOVE_TIMEOUT_S)
        except TimeoutError:
            logger.warning("the cleaner's worker %d did not rename files in time; killing it", worker.pid)
            answer = None
        except asyncio.CancelledError:
            worker.kill_at_once()
            carry_out(EnvDirectory(self._env, moves.directory), moves)
            raise
        if answer is None:
            await worker.kill()
        elif answer["type"] == "moved":
            return
        elif isinstance(error := error_from(answer, f"{moves.directory}: renaming files"), OSError):
            raise error
        # The worker has died, or has run out of memory.
        carry_out(EnvDirectory(self._env, moves.directory), moves)

    async def file_facts(self, task: FactsTask, check_done: CheckDone = never_done) -> None:
        """Let the worker store the facts of a segment. Raises CorruptLog, OSError, MemoryLimit, RunnerFailed."""
        async with self._turn:
            worker = await self._start()
            try:
                # Memory for the hashes, as much again to sort them, and as much for the filter and its written copy.
                limit_bytes = self._memory_overhead_bytes + 3 * 8 * MAX_KEYS
                fields = {"type": "facts", "task": facts_task_fields(task), "memory_limit_bytes": limit_bytes}
                what = f"{task.directory}/{task.base_offset}"
                await self._command(worker, what, fields, no_swap, check_done)
            finally:
                self._rest()

    async def _run(
        self, worker: _WorkerProcess, plan: CleanPlan, on_output: SwapOutput, check_done: CheckDone
    ) -> CleanResult:
        outputs: list[OutputSegment] = []

        async def swap(output: OutputSegment) -> None:
            await on_output(output)
            outputs.append(replace(output, outline=None, facts=None))

        check_done()
        limit_bytes = memory_limit_bytes(plan, self._memory_overhead_bytes)
        # Serializing a plan of thousands of segments takes many milliseconds.
        text = plan.to_json() if len(plan.segments) < MANY_SEGMENTS else await asyncio.to_thread(plan.to_json)
        fields = {"type": "clean", "plan": text, "memory_limit_bytes": limit_bytes}
        result = await self._command(worker, f"{plan.topic}-{plan.partition}", fields, swap, check_done)
        return CleanResult(result["end_offset"], tuple(outputs), CleanStats(**result["stats"]), result["runner"])

    async def _command(
        self, worker: _WorkerProcess, what: str, fields: JsonObject, on_output: SwapOutput, check_done: CheckDone
    ) -> JsonObject:
        """Let the worker execute a command; return the fields of its result."""
        self._round += 1
        worker.send({**fields, "round": self._round})
        is_over = False
        try:
            while True:
                message = await self._next(worker, check_done)
                if message is None:
                    is_over = True
                    raise RunnerFailed(f"{what}: {await worker.death()}")
                match message["type"]:
                    case "progress":
                        self.progress_bytes = message["bytes"]
                    case "output":
                        await swap_to_the_end(on_output, output_from_fields(message["output"]))
                    case "result":
                        is_over = True
                        result: JsonObject = message["result"]
                        return result
                    case "error":
                        is_over = True
                        raise error_from(message, what)
                    case _:
                        raise RunnerFailed(f"{what}: unexpected message {message}")
        except BaseException:
            if not is_over:
                await self._end_round(worker)
            if worker.is_dead:
                await self._discard(worker)
            raise

    async def _next(self, worker: _WorkerProcess, check_done: CheckDone) -> JsonObject | None:
        """Return the worker's next message; None if the worker has ended. Polls `check_done` while waiting."""
        while True:
            check_done()
            if self._is_closed:
                raise CleaningAborted("the cleaner stops")
            with suppress(TimeoutError):
                return await worker.receive(POLL_S)

    async def _end_round(self, worker: _WorkerProcess) -> None:
        """Cancel the worker's round, and kill the worker if it does not react. Waits for that even if the caller is cancelled."""
        task = asyncio.get_running_loop().create_task(self._cancel(worker))
        await wait_in_spite_of_cancelling(task)

    async def _cancel(self, worker: _WorkerProcess) -> None:
        try:
            async with asyncio.timeout(self._cancel_timeout_s):
                worker.send({"type": "cancel", "round": self._round})
                while (message := await worker.receive()) is not None:
                    if message["type"] in ("result", "error"):
                        return
        except TimeoutError:
            logger.warning("the cleaner's worker %d did not end its round in time; killing it", worker.pid)
        await worker.kill()

    # -- the worker's life ---------------------------------------------------------------------------------------------

    async def _start(self) -> _WorkerProcess:
        """Return the worker; start it if necessary."""
        if self._is_closed:
            raise CleaningAborted("the cleaner stops")
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if self._retirement is not None:
            await asyncio.shield(self._retirement)
        if self._worker is not None and self._worker.is_dead:
            await self._discard(self._worker)
        if self._worker is None:
            self._worker = await _start_worker(self._program, self._niceness, self._place)
        else:
            self._place(self._worker.pid)
        return self._worker

    def _place(self, pid: int) -> None:
        if self._threads is not None:
            _place(pid, self._threads())

    def _rest(self) -> None:
        """Stop the worker when it has been idle for `idle_s`."""
        if self._worker is not None and not self._is_closed:
            self._idle_timer = asyncio.get_running_loop().call_later(self._idle_s, self._retire)

    def _retire(self) -> None:
        self._idle_timer = None
        worker, self._worker = self._worker, None
        if worker is not None:
            self._retirement = asyncio.get_running_loop().create_task(self._stop(worker))

    async def _stop(self, worker: _WorkerProcess) -> None:
        try:
            await worker.stop()
        finally:
            self._retirement = None

    async def _discard(self, worker: _WorkerProcess) -> None:
        """Kill a worker that must not be used again, and wait until it has exited, even if the caller is cancelled."""
        if self._worker is worker:
            self._worker = None
        await wait_in_spite_of_cancelling(asyncio.get_running_loop().create_task(worker.kill()))

    async def close(self) -> None:
        """Abort the current round and the waiting rounds, and stop the worker."""
        self._is_closed = True
        async with self._turn:
            if self._idle_timer is not None:
                self._idle_timer.cancel()
                self._idle_timer = None
            if self._retirement is not None:
                await asyncio.wait({self._retirement})
            worker, self._worker = self._worker, None
            if worker is not None:
                await worker.stop()


class _WorkerProcess:
    """A worker process, which is running or has ended."""

    def __init__(self, child: ChildProcess) -> None:
        self._child = child
        self._is_at_end = False
        self._held: deque[JsonObject] = deque()
        """Messages that arrived while an answer was awaited, at most one per output of the round."""

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_dead(self) -> bool:
        return self._is_at_end or self._child.has_ended

    def send(self, message: JsonObject) -> None:
        """Queue a message, which a running worker reads immediately. Otherwise it is lost, and `receive` returns None."""
        self._child.send(message)

    async def receive(self, timeout_s: float | None = None) -> JsonObject | None:
        """Return the next message; None if the worker has ended. Raises TimeoutError if none arrives in time."""
        if self._held:
            return self._held.popleft()
        message = await self._child.receive(timeout_s)
        if message is None:
            self._is_at_end = True
        return message

    async def answer(self, timeout_s: float) -> JsonObject | None:
        """Wait for the answer to moves; None if the worker has ended. Raises TimeoutError. Keeps other messages for `receive`."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while True:
            message = await self._child.receive(deadline_s - asyncio.get_running_loop().time())
            if message is None or message["type"] in ("moved", "not moved"):
                return message
            self._held.append(message)

    async def death(self) -> str:
        """Wait until a worker that sends no more messages has exited; return why it ended."""
        await self.kill()
        return self._child.obituary()

    async def stop(self) -> None:
        """Ask the worker to exit; kill it after `STOP_TIMEOUT_S`."""
        self._child.end_input()
        with suppress(TimeoutError):
            await self._child.wait(STOP_TIMEOUT_S)
        await self.kill()

    def kill_at_once(self) -> None:
        """Kill the worker, and block until it has exited, which takes microseconds, or until its disk I/O is complete."""
        self._is_at_end = True
        self._child.kill()
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    async def kill(self) -> None:
        """Kill the worker if it is still running; wait until it has exited and its output is read."""
        self._is_at_end = True
        # A worker that is already exiting is not killed, so that it can report its own exit status.
        if not self._child.is_silent:
            self._child.kill()
        try:
            await self._child.wait(STOP_TIMEOUT_S)
        except TimeoutError:
            self._child.kill()
            await self._child.wait()
        await self._child.read_rest()


async def _start_worker(program: str, niceness: int, place: Callable[[int], None]) -> _WorkerProcess:
    try:
        child = await ChildProcess.start(
            program,
            niceness=niceness,
            what="the cleaner's worker",
            name="worker",
            level=logging.WARNING,
            max_line_bytes=MAX_LINE_BYTES,
        )
    except (OSError, RuntimeError) as error:  # RuntimeError: the system refuses a thread
        raise RunnerFailed(f"the cleaner's worker cannot be started: {error}") from error
    worker = _WorkerProcess(child)
    # Choose the worker's processors before it imports anything, because threads that it starts inherit the choice.
    place(worker.pid)
    try:
        ready = await worker.receive(START_TIMEOUT_S)
    except BaseException as error:
        await wait_in_spite_of_cancelling(asyncio.get_running_loop().create_task(worker.kill()))
        if isinstance(error, TimeoutError):
            raise RunnerFailed(f"the cleaner's worker {worker.pid} was not ready in time") from error
        raise
    if ready is None:
        raise RunnerFailed(await worker.death())
    return worker


def _place(pid: int, threads: int) -> None:
    """Keep process `pid` off the first of this process's processors, unless the cleaner's `threads` need all of them.

    A low priority alone is not enough: while the scheduler moves a worker from processor to processor, a client that sends one
    message at a time sees a p99 latency 1.5 to 2 times that of an idle broker. Best effort, on Linux only. The choice applies to
    the main thread of the process, and to threads and processes that it starts from now on.
    """
    if hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        with suppress(OSError):
            os.sched_setaffinity(pid, allowed[1:] if threads < len(allowed) else allowed)
