"""Who carries out a plan: the contract that all runners keep, and the one that works in a thread of the broker.

A runner gives each finished output to `on_output`, on the loop thread and one after the other, in the order of their offsets;
it goes on to the next when that has swapped it in (see `storage.replace`). A round that fails, is cancelled or told to stop
by `check_done` leaves no `.cleaned` files; outputs that were swapped stay so. Its error has the same type from every runner:
CleaningAborted, CorruptLog, OutputOverflow, OSError (FileNotFoundError if retention has removed a source), or what `on_output`
raised. A worker process adds MemoryLimit and RunnerFailed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

from diamant.cleaner.engines import plain_round as rewrite
from diamant.cleaner.engines.small_round import QuickRound
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import CheckDone, CleaningAborted, CleanResult, OutputSegment, never_done
from diamant.cleaner.rules.throttle import Throttle
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


class InlineRunner:
    """Works in a thread of the broker, with the plain engine: at once, for small plans, without compiler or process."""

    name = "inline"

    def __init__(self, env: Env, throttle: Throttle | None = None) -> None:
        """`throttle` is shared by whoever works in this process."""
        self._env = env
        self._throttle = Throttle() if throttle is None else throttle
        self.progress_bytes = 0
        self._is_closed = threading.Event()
        self._rounds: set[asyncio.Future[CleanResult]] = set()

    async def run(self, plan: CleanPlan, *, on_output: SwapOutput, check_done: CheckDone = never_done) -> CleanResult:
        """Carry out `plan` in a thread."""
        loop = asyncio.get_running_loop()
        stop = threading.Event()
        self._throttle.bytes_per_second = plan.io_max_bytes_per_second
        self.progress_bytes = 0

        def check() -> None:
            if stop.is_set() or self._is_closed.is_set():
                raise CleaningAborted(f"{plan.topic}-{plan.partition}: the round was told to stop")
            check_done()

        async def swap(output: OutputSegment) -> None:
            await on_output(output)

        def give(output: OutputSegment) -> None:
            check()
            asyncio.run_coroutine_threadsafe(swap(output), loop).result()

        def throttle(count: int) -> None:
            self.progress_bytes += count
            self._throttle(count, check)

        def work() -> CleanResult:
            try:
                return rewrite.clean(
                    self._env, plan, on_output=give, check_done=check, throttle=throttle, round_type=QuickRound
                )
            except BaseException:
                remove_cleaned_files(self._env, plan)
                raise

        round_ = loop.run_in_executor(None, work)
        self._rounds.add(round_)
        try:
            return await asyncio.shield(round_)
        except asyncio.CancelledError:
            stop.set()
            await wait_in_spite_of_cancelling(round_)
            raise
        finally:
            self._rounds.discard(round_)

    async def close(self) -> None:
        """Have the rounds under way end at their next chunk, and wait for that."""
        self._is_closed.set()
        if self._rounds:
            await asyncio.wait(list(self._rounds))


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
