"""The contract of a runner, its errors, and the disk space that a round needs.

The errors here are those of a runner; see `rules/result.py` and `storage.errors` for those of the log and the disk.

The disk is checked when this machine takes over a large round that was meant for others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, TypeAlias, runtime_checkable

from diamant.cleaner.prompt.filter_making import FactsTask
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import CheckDone, CleanResult, OutputSegment, never_done
from diamant.storage import names
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError
from diamant.storage.log.moves import Moves

SwapOutput: TypeAlias = Callable[[OutputSegment], Awaitable[None]]
"""Puts an output in the place of its sources; whatever it raises ends the round."""


MAX_INLINE_BYTES = 1024 * 1024
"""Plans up to this size are for the inline runner: about a second of work in the worst case."""


class Runner(Protocol):
    """Carries out plans, one at a time for a partition."""

    name: str
    """The name in reports and metrics."""

    @property
    def progress_bytes(self) -> int:
        """Bytes that the current round has read and written, as far as known."""
        ...

    async def run(self, plan: CleanPlan, *, on_output: SwapOutput, check_done: CheckDone = never_done) -> CleanResult:
        """Carry out `plan`; see the module. `check_done` is called from any thread, several times a second.

        Cancelling the task ends the round; it returns when the round has ended.
        """
        ...

    async def close(self) -> None:
        """End the work in progress and release everything. May be called twice; `run` must not be called again."""
        ...


@runtime_checkable
class WorkerRunner(Runner, Protocol):
    """A runner with a worker process (`runners.process.ProcessRunner`)."""

    @property
    def worker_pid(self) -> int | None:
        """Process id of the worker, if there is one."""
        ...

    async def warm_up(self) -> None:
        """Make ready for work."""
        ...

    async def move(self, moves: Moves) -> None:
        """Have the worker carry out moves, for `on_output` of a round.

        OSError if one has failed; carried out otherwise, whatever happens, even if it is cancelled.
        """
        ...

    async def file_facts(self, task: FactsTask, check_done: CheckDone = never_done) -> None:
        """File the facts of a segment, with its filter (`prompt.filter_making`)."""
        ...


@runtime_checkable
class OffloadRunner(Runner, Protocol):
    """A runner that has plans carried out on other machines (`spark.runner.runner.SparkRunner`)."""

    progress_step: str

    def suits(self, plan: CleanPlan) -> bool:
        """Tell whether a plan is worth it."""
        ...

    def takes(self, plan: CleanPlan) -> bool:
        """Tell whether it is, and can be carried out now."""
        ...


async def wait_in_spite_of_cancelling(future: asyncio.Future[Any]) -> None:
    """Wait until `future` is done, whatever comes of it, and retrieve its error.

    For work that must be over before its caller returns, even if the caller is cancelled.
    """
    while not future.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({future})
    if not future.cancelled():
        future.exception()


def remove_cleaned_files(env: Env, plan: CleanPlan) -> None:
    """Remove the `.cleaned` files of a round that has ended; blocks for the disk.

    A file that cannot be removed goes with the next round over the same segments, or at the next start.
    """
    last = plan.first_uncleanable_offset
    with suppress(OSError):
        for name in env.list_dir(plan.directory):
            parsed = names.parse_segment_file(name)
            if parsed is not None and parsed.stage == names.CLEANED_SUFFIX and parsed.offset < last:
                env.remove(f"{plan.directory}/{name}", missing_ok=True)


class RunnerFailed(StorageError):
    """A round could not be carried out, and the log is not at fault: the worker died, or has a bug."""


class NoRoom(RunnerFailed):
    """A round was not begun on this machine, because its disk may not have the room for it."""


class MemoryLimit(RunnerFailed):
    """A round needed more memory than it may take."""


SPILL_BYTES_PER_BYTE = 0.5
"""Disk space that a local round may need for each byte of the log, beside its outputs: 32 bytes per record of 64."""


def check_room(env: Env, plan: CleanPlan) -> None:
    """Raise NoRoom if the disk has less room than a local round of this size may need at the most. OSError. Blocks."""
    size = sum(segment.size for segment in plan.segments)
    need = int(size * SPILL_BYTES_PER_BYTE) + plan.segment_bytes
    _, free = env.disk_usage(plan.directory)
    if free <= need:
        raise NoRoom(
            f"{plan.topic}-{plan.partition}: not cleaned on this machine, where a round over {size} bytes may need {need} bytes "
            f"of disk beside the log, and {free} are free"
        )
