"""Which rounds the loop of the cleaner gives to a worker process, and when one is made ready."""

from __future__ import annotations

import asyncio

import pytest

from diamant.cleaner.rules.result import CleaningAborted
from diamant.cleaner.runners.contract import MAX_INLINE_BYTES
from diamant.storage.env.env import Env
from tests.cleaner.held_runner import HeldRunner
from tests.cleaner.service.several_logs import SeveralLogs
from tests.waiting import wait_until

ONCE = {"min_cleanable_dirty_ratio": 0.0}


class WarmRunner(HeldRunner):
    """A runner with a worker."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.progress_bytes = 0
        self.worker_pid: int | None = None
        self.warm_ups = 0
        self.go_on.set()

    async def warm_up(self) -> str:
        """Count."""
        self.warm_ups += 1
        return "compiled"


@pytest.mark.parametrize("is_cached", [True, False])
async def test_a_worker_is_warmed_up_when_traffic_begins(
    logs: SeveralLogs, monkeypatch: pytest.MonkeyPatch, is_cached: bool
) -> None:
    """Once, and only for logs that are too large for a thread of the broker; another one compiles first if need be."""
    monkeypatch.setattr("diamant.cleaner.kernels.cache.is_cached", lambda: is_cached)
    log = logs.add("t")
    runners: list[WarmRunner] = []

    def new() -> WarmRunner:
        runners.append(WarmRunner(logs.env))
        return runners[-1]

    service = await logs.start(new_process_runner=new)
    logs.data(log, "k=v")
    service.saw_append(log)
    await service.settled()
    assert runners == []
    logs.data(log, "k=" + "v" * MAX_INLINE_BYTES)
    for _ in range(3):
        service.saw_append(log)
        await asyncio.sleep(0)
    await wait_until(lambda: sum(runner.warm_ups for runner in runners) == (1 if is_cached else 2))
    assert [runner.is_closed for runner in runners] == ([False] if is_cached else [True, False])


async def test_a_stop_while_a_worker_is_warmed_up_is_no_trouble(
    logs: SeveralLogs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As when a broker stops soon after its start: nothing in the log asks for attention."""
    monkeypatch.setattr("diamant.cleaner.kernels.cache.is_cached", lambda: True)

    async def stopped(self: WarmRunner) -> str:
        self.warm_ups += 1
        raise CleaningAborted("the cleaner stops")

    monkeypatch.setattr(WarmRunner, "warm_up", stopped)
    runner = WarmRunner(logs.env)
    log = logs.add("t")
    service = await logs.start(new_process_runner=lambda: runner)
    logs.data(log, "k=" + "v" * MAX_INLINE_BYTES)
    service.saw_append(log)
    await wait_until(lambda: runner.warm_ups == 1)
    await service.settled()
    assert "warmed up" not in caplog.text


async def test_large_plans_are_for_the_worker(logs: SeveralLogs) -> None:
    """Up to the limit a thread of the broker does it."""
    runner = WarmRunner(logs.env)
    log = logs.filthy("small", 10)
    large = logs.add("large", **ONCE)
    logs.fill(large, 6, size=MAX_INLINE_BYTES // 4)
    service = await logs.start(new_process_runner=lambda: runner)
    await service.settled()
    assert [plan.topic for plan in runner.plans] == ["large"]
    assert logs.is_clean(log)
    assert logs.is_clean(large)
