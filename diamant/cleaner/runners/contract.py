"""The contract of a runner, its errors, and the disk space that a round needs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import CheckDone, CleanResult, OutputSegment, never_done
from diamant.storage import names
from diamant.storage.env.env import Env

SwapOutput: TypeAlias = Callable[[OutputSegment], Awaitable[None]]
"""Puts an output in the place of its sources; whatever it raises ends the round."""


MAX_INLINE_BYTES = 1024 * 1024
"""Plans up to this size are for the inline runner: about a second of work in the worst case."""


class Runner(Protocol):
    """Carries out plans, one at a time for a partition."""

    name: str
    """What reports and metrics call it."""

    @property
    def progress_bytes(self) -> int:
        """How much the round under way has read and written, as far as known."""
        ...

    async def run(self, plan: CleanPlan, *, on_output: SwapOutput, check_done: CheckDone = never_done) -> CleanResult:
        """Carry out `plan`; see the module. `check_done` is called from any thread, several times a second.

        Cancelling the task ends the round; it returns when the round has ended.
        """
        ...

    async def close(self) -> None:
        """End what is under way and let go of everything. May be called twice; `run` must not be called any more."""
        ...


async def wait_in_spite_of_cancelling(future: asyncio.Future[Any]) -> None:
    """Wait until `future` is done, whatever comes of it, and take note of its error.

    For what must be over before its caller may go, even if the caller is cancelled meanwhile.
    """
    while not future.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({future})
    if not future.cancelled():
        future.exception()


def remove_cleaned_files(env: Env, plan: CleanPlan) -> None:
    """Remove the `.cleaned` files of a round that has ended; blocks for the disk.

    What cannot be removed goes with the next round over the same segments, or at the next start.
    """
    last = plan.first_uncleanable_offset
    with suppress(OSError):
        for name in env.list_dir(plan.directory):
            parsed = names.parse_segment_file(name)
            if parsed is not None and parsed.stage == names.CLEANED_SUFFIX and parsed.offset < last:
                env.remove(f"{plan.directory}/{name}", missing_ok=True)
