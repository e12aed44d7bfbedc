"""The progress, rate and remaining time of a round."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from diamant.cleaner.rules.modes import KAFKA, PROMPT
from diamant.cleaner.runners.inline import InlineRunner
from diamant.cleaner.service.cleaner_slot import RunningRound
from diamant.cleaner.service.rounds import swap_into
from diamant.progress import pace
from tests.cleaner.cleaner_log import START_MS, CleanerLog
from tests.cleaner.held_runner import HeldRunner
from tests.cleaner.service.several_logs import SeveralLogs
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("done", "total", "elapsed_s", "expected"),
    [
        (50, 100, 0.5, (None, None)),
        (0, 100, 10.0, (None, None)),
        (50, 100, 10.0, (5.0, 10.0)),
        (50, None, 10.0, (5.0, None)),
        (150, 100, 10.0, (15.0, 0.0)),
    ],
)
def test_rate_and_time_left(
    done: int, total: int | None, elapsed_s: float, expected: tuple[float | None, float | None]
) -> None:
    """Known once enough is done for an estimate; an operation beyond its total has no time left."""
    assert pace(done, total, elapsed_s) == expected


@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
@pytest.mark.parametrize("values", [1, 20], ids=["nothing goes", "most goes"])
async def test_a_round_that_is_over_has_done_all_of_its_log(mode: str, values: int) -> None:
    """The plan and the outputs determine the total I/O, so progress reaches the whole log exactly at the end."""
    log = CleanerLog()
    for number in range(100):
        log.data(f"key-{number // values}", producer=1)
        if number % 10 == 9:
            log.roll()
    log.log.flush()
    plan, runner = log.plan(first_dirty=0, mode=mode), InlineRunner(log.env)
    round_ = RunningRound(plan, runner, START_MS)
    before = sum(segment.size for segment in plan.segments)
    assert round_.status().progress[1:3] == (0, before)
    seen = []
    with ThreadPoolExecutor(2) as blocking:

        def check() -> None:
            seen.append(round_.status().progress.done)

        swap = swap_into(log.log, plan, runner, check_done=check, blocking=blocking, on_freed=round_.free)
        await runner.run(plan, on_output=swap, check_done=check)
    await runner.close()
    assert round_.status().progress.done == before
    assert seen == sorted(seen)
    assert len(set(seen)) > 3


async def test_a_round_under_way_is_reported_and_counted_once(logs: SeveralLogs, held: HeldRunner) -> None:
    """In progress it shows its share of the log and its bytes; once finished, its bytes count once, as the round's."""
    log = logs.filthy("t", 20)
    service = await logs.start(new_process_runner=lambda: held)
    await wait_until(lambda: bool(held.plans))
    held.progress_bytes = 300
    [found] = service.slots.status()
    size = sum(segment.size for segment in log.segments[:-1])
    assert (found.topic, found.progress.total, found.io_bytes) == ("t", size, 300)
    assert found.progress.done == size * 300 // (3 * size)
    assert service.status().in_progress == (found,) or service.status().in_progress[0].progress.done == 100
    assert service.status().io_bytes_total == 300
    held.go_on.set()
    await service.settled()
    assert service.slots.status() == []
    counted = service.status().io_bytes_total
    assert counted > 0
    assert counted == service._metrics._io_bytes
