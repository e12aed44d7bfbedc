"""The runner that executes a plan in a thread of the broker.

The contract of all runners: a runner passes each finished output to `on_output`, on the loop thread, one at a time and in
offset order. It continues when `on_output` has swapped the output in (see `segment_swap`). A round that fails, is cancelled
or is stopped by `check_done` leaves no `.cleaned` files; earlier swaps remain. Every runner raises the same errors:
CleaningAborted, CorruptLog, OutputOverflow, OSError (FileNotFoundError if retention has removed a source), and the errors of
`on_output`. A runner with a worker process also raises MemoryLimit and RunnerFailed.
"""

from __future__ import annotations

import asyncio
import threading

from diamant.cleaner.engines import plain_round
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import CheckDone, CleaningAborted, CleanResult, OutputSegment, never_done
from diamant.cleaner.rules.throttle import Throttle
from diamant.cleaner.runners.contract import SwapOutput, remove_cleaned_files
from diamant.own_thread import wait_in_spite_of_cancelling
from diamant.storage.env.env import Env


class InlineRunner:
    """Runs small plans with the plain engine, each immediately in a thread of the broker."""

    name = "inline"

    def __init__(self, env: Env, throttle: Throttle | None = None) -> None:
        """`throttle` is shared by all rounds in this process."""
        self._env = env
        self._throttle = Throttle() if throttle is None else throttle
        self.progress_bytes = 0
        self._is_closed = threading.Event()
        self._rounds: set[asyncio.Future[CleanResult]] = set()

    async def run(self, plan: CleanPlan, *, on_output: SwapOutput, check_done: CheckDone = never_done) -> CleanResult:
        """Execute `plan` in a thread, and return the result."""
        loop = asyncio.get_running_loop()
        stop = threading.Event()
        self._throttle.bytes_per_second = plan.io_max_bytes_per_second
        self.progress_bytes = 0

        def check() -> None:
            if stop.is_set() or self._is_closed.is_set():
                raise CleaningAborted(f"{plan.topic}-{plan.partition}: the round was stopped")
            check_done()

        def give(output: OutputSegment) -> None:
            check()
            asyncio.run_coroutine_threadsafe(on_output(output), loop).result()

        def throttle(count: int) -> None:
            self.progress_bytes += count
            self._throttle(count, check)

        def work() -> CleanResult:
            try:
                return plain_round.clean(self._env, plan, on_output=give, check_done=check, throttle=throttle)
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
        """Stop the rounds in progress at their next chunk, and wait until they have ended."""
        self._is_closed.set()
        if self._rounds:
            await asyncio.wait(list(self._rounds))
