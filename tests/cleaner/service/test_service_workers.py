"""The choice of rounds for a worker process, and its early start."""

from __future__ import annotations

import asyncio

import pytest

from diamant.cleaner.rules.result import CleaningAborted
from diamant.cleaner.runners.contract import MAX_INLINE_BYTES
from diamant.cleaner.runners.worker_warmth import WorkerWarmth
from tests.cleaner.held_runner import HeldWorker
from tests.cleaner.service.several_logs import SeveralLogs
from tests.waiting import wait_until

ONCE = {"min_cleanable_dirty_ratio": 0.0}


async def test_a_worker_is_warmed_up_when_traffic_begins(logs: SeveralLogs) -> None:
    """Once, and only for logs that are too large for a thread of the broker."""
    log = logs.add("t")
    runner = HeldWorker(logs.env)
    warmth = WorkerWarmth(runner.warm_up)
    logs.data(log, "k=v")
    warmth.saw_append(log)
    await asyncio.sleep(0)
    assert runner.warm_ups == 0
    logs.data(log, "k=" + "v" * MAX_INLINE_BYTES)
    for _ in range(3):
        warmth.saw_append(log)
        await asyncio.sleep(0)
    await wait_until(lambda: runner.warm_ups == 1)
    await warmth.close()


async def test_a_worker_is_warmed_up_for_an_expected_request(logs: SeveralLogs) -> None:
    """If a requested round of the log's size would need one, and while the cleaner does not stop."""
    runner = HeldWorker(logs.env)
    small, large = logs.add("small"), logs.add("large")
    logs.fill(small, 4, size=MAX_INLINE_BYTES // 4)
    logs.fill(large, 5, size=MAX_INLINE_BYTES)
    service = await logs.start(new_process_runner=lambda: runner)
    before = runner.warm_ups
    service.warmth.expect_request(small)
    await asyncio.sleep(0)
    assert runner.warm_ups == before
    service.warmth.expect_request(large)
    await wait_until(lambda: runner.warm_ups == before + 1)
    await service.stop()
    service.warmth.expect_request(large)
    await asyncio.sleep(0)
    assert runner.warm_ups == before + 1


async def test_a_stop_while_a_worker_is_warmed_up_is_no_trouble(
    logs: SeveralLogs, caplog: pytest.LogCaptureFixture
) -> None:
    """As when a broker stops soon after its start: nothing is logged as a warning."""
    runner = HeldWorker(logs.env)
    runner.warm_up_error = CleaningAborted("the cleaner stops")
    log = logs.add("t")
    service = await logs.start(new_process_runner=lambda: runner)
    logs.data(log, "k=" + "v" * MAX_INLINE_BYTES)
    service.saw_append(log)
    await wait_until(lambda: runner.warm_ups == 1)
    await service.settled()
    assert "started early" not in caplog.text


async def test_large_plans_are_for_the_worker(logs: SeveralLogs) -> None:
    """Up to the limit a thread of the broker runs them."""
    runner = HeldWorker(logs.env)
    log = logs.filthy("small", 10)
    large = logs.add("large", **ONCE)
    logs.fill(large, 6, size=MAX_INLINE_BYTES // 4)
    await logs.settled(new_process_runner=lambda: runner)
    assert [plan.topic for plan in runner.plans] == ["large"]
    assert logs.is_clean(log)
    assert logs.is_clean(large)
