"""Pausing a partition: a caller that stops waiting leaves no pause behind."""

from __future__ import annotations

import asyncio

import pytest

from diamant.cleaner.service.service import CleanerService
from diamant.storage.log.log import Log
from tests.cleaner.held_runner import HeldRunner
from tests.cleaner.service.several_logs import SeveralLogs
from tests.waiting import wait_until

TP = ("t", 0)


async def cleaned(logs: SeveralLogs, held: HeldRunner) -> tuple[Log, CleanerService]:
    """Return a log with a round in progress, which does not stop before the test lets it go on."""
    held.is_stubborn = True
    log = logs.filthy("t", 20)
    service = await logs.start(new_process_runner=lambda: held)
    await wait_until(lambda: held.plans != [])
    return log, service


@pytest.mark.parametrize("is_granted", [False, True])
async def test_a_pause_that_is_not_waited_for_any_more_is_taken_back(
    logs: SeveralLogs, held: HeldRunner, is_granted: bool
) -> None:
    """If the caller is cancelled during a round, or as the pause is granted at its end, the partition is cleaned as before."""
    log, service = await cleaned(logs, held)
    pausing = asyncio.ensure_future(service.abort_and_pause(TP))
    await asyncio.sleep(0)
    told = service.states.on_paused
    assert told is not None

    def tell_and_cancel(partition: tuple[str, int]) -> None:
        told(partition)
        pausing.cancel()

    if is_granted:
        service.states.on_paused = tell_and_cancel
        held.go_on.set()
    else:
        pausing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pausing
    assert is_granted or service.states.state(TP) == "aborted"
    held.go_on.set()
    await service.settled()
    assert service.states.state(TP) == "none"
    assert logs.is_clean(log)


async def test_others_who_wait_for_the_same_pause_get_it(logs: SeveralLogs, held: HeldRunner) -> None:
    """If one of two callers is cancelled, the partition is still paused for the other until it resumes."""
    log, service = await cleaned(logs, held)
    first, second = (asyncio.ensure_future(service.abort_and_pause(TP)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    held.go_on.set()
    await second
    assert (first.cancelled(), service.states.state(TP)) == (True, "paused(1)")
    service.resume(TP)
    await service.settled()
    assert logs.is_clean(log)
