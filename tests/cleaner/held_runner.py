"""A runner whose rounds are under way until the test lets them go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from diamant.cleaner.facts.filter_making import FactsTask
from diamant.cleaner.facts.segment_keys import file_segment_facts
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import CheckDone, CleanResult, never_done
from diamant.cleaner.runners.contract import SwapOutput
from diamant.cleaner.runners.inline import InlineRunner
from diamant.storage.env.env import Env
from diamant.storage.log.moves import EnvDirectory, Moves, carry_out


class HeldRunner:
    """Carries out plans when it is told to; until then a round is under way."""

    name = "held"

    def __init__(self, env: Env) -> None:
        self._inline = InlineRunner(env)
        self.plans: list[CleanPlan] = []
        self.go_on = asyncio.Event()
        self.is_one_by_one = False
        """Whether each plan has to be let go on."""
        self.is_stubborn = False
        """Whether rounds are not asked to stop until they go on."""
        self.errors: dict[str, Exception] = {}
        """What plans of these topics end with at once."""
        self.failures: list[Exception] = []
        """What plans end with at once, one each, before others are carried out."""
        self.is_closed = False
        self.progress_bytes = 0
        """What it is said to have read and written."""

    async def run(self, plan: CleanPlan, *, on_output: SwapOutput, check_done: CheckDone = never_done) -> CleanResult:
        """Wait, and ask whether to stop meanwhile."""
        if plan.topic in self.errors:
            raise self.errors[plan.topic]
        if self.failures:
            raise self.failures.pop(0)
        self.plans.append(plan)
        while not self.go_on.is_set() and not self.is_closed:
            if not self.is_stubborn:
                check_done()
            await asyncio.sleep(0)
        if self.is_one_by_one:
            self.go_on.clear()
        return await self._inline.run(plan, on_output=on_output, check_done=check_done)

    async def close(self) -> None:
        """Let everything go."""
        self.is_closed = True
        await self._inline.close()


class HeldWorker(HeldRunner):
    """A runner with a worker, whose work is done here. Its rounds go on at once, filters of segments when they may be made."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.go_on.set()
        self.worker_pid: int | None = None
        self.warm_ups = 0
        self.warm_up_error: Exception | None = None
        self.tasks: list[FactsTask] = []
        self.may_make = asyncio.Event()
        self.after: Callable[[FactsTask], object] = bool
        """Called with each task that is done."""
        self._files = env

    async def warm_up(self) -> None:
        """Count, and fail if there is an error."""
        self.warm_ups += 1
        if self.warm_up_error is not None:
            raise self.warm_up_error

    async def move(self, moves: Moves) -> None:
        """Carry them out here."""
        carry_out(EnvDirectory(self._files, moves.directory), moves)

    async def file_facts(self, task: FactsTask, check_done: CheckDone = never_done) -> None:
        """Wait, and file the facts."""
        self.tasks.append(task)
        while not self.may_make.is_set():
            check_done()
            await asyncio.sleep(0)
        file_segment_facts(self._files, task, check_done=check_done)
        self.after(task)
