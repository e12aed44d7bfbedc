"""The contract of a runner, its errors, and the disk space that a round needs.

The errors that concern the log or the disk are in `rules/result.py` and `storage.errors`.

Disk space is checked before this machine runs a large round that other machines were meant to run.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeAlias, runtime_checkable

from diamant.cleaner.facts.filter_making import FactsTask
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import CheckDone, CleanResult, OutputSegment, never_done
from diamant.storage import names
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError
from diamant.storage.log.moves import Moves

SwapOutput: TypeAlias = Callable[[OutputSegment], Coroutine[Any, Any, None]]
"""Replaces the sources of an output with the output. Any error that it raises ends the round."""


MAX_INLINE_BYTES = 1024 * 1024
"""Plans up to this size run inline, which takes about a second in the worst case."""
REQUESTED_INLINE = 4
"""Requested plans up to this multiple of that size run inline if no worker is ready, because starting one would take longer."""


class Runner(Protocol):
    """Executes plans, at most one at a time for each partition."""

    name: str
    """Name of the runner in reports and metrics."""

    @property
    def progress_bytes(self) -> int:
        """Bytes that the current round has read and written, as far as known."""
        ...

    async def run(self, plan: CleanPlan, *, on_output: SwapOutput, check_done: CheckDone = never_done) -> CleanResult:
        """Execute `plan`; see `runners.inline` for the contract. `check_done` is called several times a second, from any thread.

        If the caller is cancelled, the round is stopped, and the call ends when the round has ended.
        """
        ...

    async def close(self) -> None:
        """Stop the work in progress and release all resources. Idempotent; do not call `run` afterwards."""
        ...


@runtime_checkable
class WorkerRunner(Runner, Protocol):
    """A runner with a worker process (`runners.process.ProcessRunner`)."""

    @property
    def worker_pid(self) -> int | None:
        """Process id of the worker, if there is one."""
        ...

    async def warm_up(self) -> None:
        """Start the worker and load its engine."""
        ...

    async def move(self, moves: Moves) -> None:
        """Let the worker execute the moves that `on_output` of the current round needs.

        Raises OSError if a move failed. Otherwise all moves are done on return, even if the caller is cancelled.
        """
        ...

    async def file_facts(self, task: FactsTask, check_done: CheckDone = never_done) -> None:
        """Store the facts of a segment with its key filter (`facts.filter_making`)."""
        ...


@runtime_checkable
class OffloadRunner(Runner, Protocol):
    """A runner that executes plans on other machines (`spark.runner.runner.SparkRunner`)."""

    progress_stage: str

    def suits(self, plan: CleanPlan) -> bool:
        """Return whether a plan is worth offloading."""
        ...

    def takes(self, plan: CleanPlan) -> bool:
        """Return whether a plan is worth offloading and can run now."""
        ...


def remove_cleaned_files(env: Env, plan: CleanPlan) -> None:
    """Remove the `.cleaned` files of a round that has ended. Blocks on disk I/O.

    A file that cannot be removed now is removed by the next round over the same segments, or at the next start.
    """
    last = plan.first_uncleanable_offset
    with suppress(OSError):
        for name in env.list_dir(plan.directory):
            parsed = names.parse_segment_file(name)
            if parsed is not None and parsed.stage == names.CLEANED_SUFFIX and parsed.offset < last:
                env.remove(f"{plan.directory}/{name}", missing_ok=True)


class RunnerFailed(StorageError):
    """A round failed through no fault of the log, because the worker died or has a bug."""


class NoRoom(RunnerFailed):
    """A round was not started on this machine because the disk may not have enough space."""


class MemoryLimit(RunnerFailed):
    """A round exceeded its memory limit."""


SPILL_BYTES_PER_BYTE = 0.5
"""Disk space that a local round may need per byte of log, in addition to its outputs: 32 bytes for a record of 64 bytes."""


def check_room(env: Env, plan: CleanPlan) -> None:
    """Raise NoRoom if the disk may not have enough space for a local round over `plan`. Blocks on disk I/O. Raises OSError."""
    size = sum(segment.size for segment in plan.segments)
    need = int(size * SPILL_BYTES_PER_BYTE) + plan.segment_bytes
    _, free = env.disk_usage(plan.directory)
    if free <= need:
        raise NoRoom(
            f"{plan.topic}-{plan.partition}: not cleaned on this machine: a round over {size} bytes may need {need} more "
            f"bytes of disk space, but only {free} are free"
        )
