"""Pausing a partition: a caller that stops waiting leaves no pause behind."""

from __future__ import annotations

import asyncio

import pytest

from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import CheckDone, CleanResult, never_done
from diamant.cleaner.runners.contract import SwapOutput
from diamant.cleaner.service.service import CleanerService
from diamant.storage.log.log import Log
from tests.cleaner.held_runner import HeldRunner
from tests.cleaner.service.several_logs import SeveralLogs
from tests.waiting import wait_until

TP = ("t", 0)


class StubbornRunner(HeldRunner):
    """A runner that ignores `check_done` until the test releases it."""

    async def run(self, plan: CleanPlan, *, on_output: SwapOutput, check_done: CheckDone = never_done) -> CleanResult:
        """Wait first."""
        self.plans.append(plan)
        await self.go_on.wait()
        return await self._inline.run(plan, on_output=on_output, check_done=check_done)


@pytest.fixture
def stubborn(logs: SeveralLogs) -> StubbornRunner:
    """A runner for all plans, even small ones."""
    logs.max_inline_bytes = -1
    return StubbornRunner(logs.env)


async def cleaned(logs: SeveralLogs, stubborn: StubbornRunner) -> tuple[Log, CleanerService]:
    """A log with a round in progress."""
    log = logs.filthy("t", 20)
    service = await logs.start(new_process_runner=lambda: stubborn)
    await wait_until(lambda: stubborn.plans != [])
    return log, service


@pytest.mark.parametrize("is_granted", [False, True])
async def test_a_pause_that_is_not_waited_for_any_more_is_taken_back(
    logs: SeveralLogs, stubborn: StubbornRunner, is_granted: bool
) -> None:
    """If the caller is cancelled during a round, or as the pause is granted at its end, the partition is cleaned as before."""
    log, service = await cleaned(logs, stubborn)
    pausing = asyncio.ensure_future(service.abort_and_pause(TP))
    await asyncio.sleep(0)
    told = service.states.on_paused
    assert told is not None

    def tell_and_cancel(partition: tuple[str, int]) -> None:
        told(partition)
        pausing.cancel()

    if is_granted:
        service.states.on_paused = tell_and_cancel
        stubborn.go_on.set()
    else:
        pausing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pausing
    assert is_granted or service.states.state(TP) == "aborted"
    stubborn.go_on.set()
    await service.settled()
    assert service.states.state(TP) == "none"
    assert logs.is_clean(log)


async def test_others_who_wait_for_the_same_pause_get_it(logs: SeveralLogs, stubborn: StubbornRunner) -> None:
    """If one of two callers is cancelled, the partition is still paused for the other until it resumes."""
    log, service = await cleaned(logs, stubborn)
    first, second = (asyncio.ensure_future(service.abort_and_pause(TP)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    stubborn.go_on.set()
    await second
    assert (first.cancelled(), service.states.state(TP)) == (True, "paused(1)")
    service.resume(TP)
    await service.settled()
    assert logs.is_clean(log)
