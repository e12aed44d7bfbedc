"""A slot for one of the concurrent rounds, with the round's task, its runners, and its share of the rate limit.

A slot corresponds to one of Kafka's `log.cleaner.threads`. Its round is a task of the event loop that waits for a runner.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from diamant.cleaner.facts.filter_making import FactsTask
from diamant.cleaner.rules.modes import INLINE, PROCESS, SPARK
from diamant.cleaner.rules.plan import CleanPlan, most_io_bytes
from diamant.cleaner.rules.result import CheckDone
from diamant.cleaner.rules.throttle import Throttle
from diamant.cleaner.runners.contract import MAX_INLINE_BYTES, REQUESTED_INLINE, OffloadRunner, Runner, WorkerRunner
from diamant.cleaner.runners.inline import InlineRunner
from diamant.cleaner.service.metrics import RoundStatus
from diamant.progress import Progress
from diamant.storage.env.env import Env

WORTH_READY = 16
"""Requested plans above `max_inline_bytes / WORTH_READY` run in the worker if it is ready, because that is faster."""


@dataclass(slots=True)
class RunningRound:
    """A round that a runner is executing."""

    plan: CleanPlan
    runner: Runner
    started_ms: int
    progress: Progress = field(default_factory=Progress)
    freed_bytes: int = 0
    """Number of bytes that need not be written, because the finished outputs are smaller than their sources."""

    def free(self, count: int) -> None:
        """Record an output that is `count` bytes smaller than its sources."""
        self.freed_bytes += count

    def status(self) -> RoundStatus:
        """Return the progress of the round."""
        total, io_bytes = sum(segment.size for segment in self.plan.segments), self.runner.progress_bytes
        all_io_bytes = max(1, most_io_bytes(self.plan) - self.freed_bytes)
        self.progress.stage = self.runner.progress_stage if isinstance(self.runner, OffloadRunner) else ""
        self.progress.unit = "bytes"
        self.progress.move_to(min(total, total * io_bytes // all_io_bytes), total)
        return RoundStatus(
            topic=self.plan.topic,
            partition=self.plan.partition,
            runner=self.runner.name,
            progress=self.progress.read(),
            io_bytes=io_bytes,
            started_ms=self.started_ms,
            first_offset=self.plan.segments[0].base_offset,
            end_offset=self.plan.first_uncleanable_offset,
        )


class CleanerSlot:
    """A slot with up to three runners, created on first use.

    `new_process_runner` creates the runner for plans larger than `max_inline_bytes`; without it, all plans run inline.
    `new_offload_runner` creates the runner for plans of at least `offload_from_bytes`, and for requests that name its engine;
    its argument is the runner to fall back to.
    """

    def __init__(
        self,
        index: int,
        env: Env,
        new_process_runner: Callable[[], Runner] | None,
        new_offload_runner: Callable[[Runner], Runner] | None = None,
        offload_from_bytes: float = math.inf,
        max_inline_bytes: int = MAX_INLINE_BYTES,
    ) -> None:
        self.index = index
        self._env = env
        self.throttle = Throttle()
        """Limits the byte rate of rounds in this process."""
        self._new_process_runner = new_process_runner
        self._inline = InlineRunner(env, throttle=self.throttle)
        self.process: Runner | None = None
        """The runner with a worker process; None until first needed."""
        self._new_offload_runner = new_offload_runner
        self._offload_from_bytes = offload_from_bytes
        self._max_inline_bytes = max_inline_bytes
        self.offload: Runner | None = None
        """The runner that executes plans on other machines; None until first needed."""
        self.running: RunningRound | None = None
        """The round that a runner is executing."""
        self.task: asyncio.Task[None] | None = None
        """The round in progress; None if the slot is free."""
        self._ready_pid: int | None = None
        """Process id of the last worker that is known to have loaded its engine."""

    @property
    def progress_bytes(self) -> int:
        """Bytes that the current round has read and written, as far as known."""
        return 0 if self.running is None else self.running.runner.progress_bytes

    def runner_for(self, plan: CleanPlan, *, is_requested: bool = False, engine: str | None = None) -> Runner:
        """Return the runner for a plan of this size. `is_requested`: a caller is waiting; `engine`: the engine it requested."""
        size = sum(segment.size for segment in plan.segments)
        if engine == INLINE:
            return self._inline
        if engine == PROCESS:
            return self._process_runner() or self._inline
        if engine == SPARK or size >= self._offload_from_bytes:
            offload = self._offload_runner()
            if offload is not None and (
                engine == SPARK or (isinstance(offload, OffloadRunner) and offload.takes(plan))
            ):
                return offload
        if (
            is_requested
            and self.process is not None
            and self._is_ready
            and size > self._max_inline_bytes // WORTH_READY
        ):
            return self.process
        limit = self._max_inline_bytes * (REQUESTED_INLINE if is_requested else 1)
        return self._inline if size <= limit else self._process_runner() or self._inline

    def is_fallback(self, runner: Runner, plan: CleanPlan) -> bool:
        """Return whether `plan` belongs on other machines, but `runner` has to execute it because they are not available now."""
        offload = self.offload
        return (
            runner is not offload
            and isinstance(offload, OffloadRunner)
            and sum(segment.size for segment in plan.segments) >= self._offload_from_bytes
            and offload.suits(plan)
        )

    async def warm_up(self) -> None:
        """Start the worker and load its engine, if the slot may have a worker."""
        runner = self._process_runner()
        if isinstance(runner, WorkerRunner):
            await runner.warm_up()
            self._ready_pid = runner.worker_pid

    async def file_facts(self, task: FactsTask, check_done: CheckDone) -> None:
        """Write the facts of a segment to a file, in the worker, or in a thread if the slot has no worker."""
        runner = self._process_runner()
        if isinstance(runner, WorkerRunner):
            await runner.file_facts(task, check_done)
        else:
            await asyncio.to_thread(_file_segment_facts, self._env, task, check_done)

    @property
    def _is_ready(self) -> bool:
        process = self.process
        return (
            isinstance(process, WorkerRunner)
            and process.worker_pid is not None
            and process.worker_pid == self._ready_pid
        )

    def note_ready(self, runner: Runner) -> None:
        """Record that a round of this runner succeeded, which shows that its worker has loaded the engine."""
        if isinstance(runner, WorkerRunner):
            self._ready_pid = runner.worker_pid

    def _process_runner(self) -> Runner | None:
        if self.process is None and self._new_process_runner is not None:
            self.process = self._new_process_runner()
        return self.process

    def _offload_runner(self) -> Runner | None:
        if self.offload is None and self._new_offload_runner is not None:
            self.offload = self._new_offload_runner(self._process_runner() or self._inline)
        return self.offload

    async def close(self) -> None:
        """Stop the round in progress, and close the runners."""
        task = self.task
        if self.offload is not None:
            await self.offload.close()
        await self._inline.close()
        if self.process is not None:
            await self.process.close()
        if task is not None:
            await asyncio.wait({task})


def _file_segment_facts(env: Env, task: FactsTask, check_done: CheckDone) -> None:
    from diamant.cleaner.facts.segment_keys import file_segment_facts

    file_segment_facts(env, task, check_done=check_done)


class Slots:
    """The slots of a cleaner, created on demand. The arguments are those of `CleanerSlot`."""

    def __init__(
        self,
        env: Env,
        new_process_runner: Callable[[], Runner] | None,
        new_offload_runner: Callable[[Runner], Runner] | None,
        offload_from_bytes: float,
        max_inline_bytes: int = MAX_INLINE_BYTES,
    ) -> None:
        self._env = env
        self._new_process_runner = new_process_runner
        self._new_offload_runner = new_offload_runner
        self._offload_from_bytes = offload_from_bytes
        self._max_inline_bytes = max_inline_bytes
        self._made: list[CleanerSlot] = []

    def free(self, count: int) -> CleanerSlot | None:
        """Return a free slot; None if `count` rounds are already in progress."""
        free = [slot for slot in self._made if slot.task is None]
        if len(self._made) - len(free) >= count:
            return None
        return free[0] if free else self._slot(len(self._made))

    def _slot(self, index: int) -> CleanerSlot:
        if index == len(self._made):
            runners = self._new_process_runner, self._new_offload_runner, self._offload_from_bytes
            self._made.append(CleanerSlot(index, self._env, *runners, self._max_inline_bytes))
        return self._made[index]

    @property
    def busy(self) -> int:
        """Number of rounds in progress."""
        return sum(slot.task is not None for slot in self._made)

    @property
    def is_busy(self) -> bool:
        """True if a round is in progress."""
        return self.busy > 0

    @property
    def progress_bytes(self) -> int:
        """Bytes that the rounds in progress have read and written, as far as known."""
        return sum(slot.progress_bytes for slot in self._made)

    @property
    def process_runners(self) -> list[WorkerRunner]:
        """The process runners that have been created so far."""
        return [slot.process for slot in self._made if isinstance(slot.process, WorkerRunner)]

    def status(self) -> list[RoundStatus]:
        """Return the progress of each round that a runner is executing."""
        return [slot.running.status() for slot in self._made if slot.running is not None]

    def limit(self, bytes_per_second: float) -> None:
        """Set the byte rate limit of each slot for rounds in this process, including those in progress."""
        for slot in self._made:
            slot.throttle.bytes_per_second = bytes_per_second

    async def warm_up(self) -> None:
        """Start the worker of the first slot, and load its engine."""
        await self._slot(0).warm_up()

    async def file_facts(self, task: FactsTask, check_done: CheckDone) -> None:
        """Write the facts of a segment to a file, in the worker of the first slot."""
        await self._slot(0).file_facts(task, check_done)

    async def close(self) -> None:
        """Stop the rounds in progress, and close the runners."""
        for slot in self._made:
            await slot.close()
