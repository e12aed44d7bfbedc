"""What those hear who wait for a flush that does not come to its end."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.flusher import Flusher
from diamant.protocol.errors import ErrorCode
from diamant.storage.env import RealEnv
from diamant.storage.log import FlushPlan, Log
from tests.broker.wire import WireClient
from tests.storage.test_log import batch, make_log

ERRORS = [OSError("Input/output error"), MemoryError("none left"), RuntimeError("can't start new thread")]


def fail_flushes_of(log: Log, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have plans of this log fail, and those of others run."""
    run = FlushPlan.run

    def failing(plan: FlushPlan) -> None:
        if plan._log is log:
            raise error
        run(plan)

    monkeypatch.setattr(FlushPlan, "run", failing)


def two_logs(path: Path) -> tuple[Log, Log]:
    """Two logs with a record each that no flush has covered."""
    logs = []
    for name in ("a", "b"):
        (path / name).mkdir()
        logs.append(make_log(RealEnv(), path / name))
        logs[-1].append_as_leader(batch(b"x"))
    return logs[0], logs[1]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_flush_that_fails_for_whatever_reason(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its log refuses appends and its recovery point stays; the reason is told; logs that wait for theirs are synced."""
    bad, good = two_logs(tmp_path)
    fail_flushes_of(bad, error, monkeypatch)
    flusher = Flusher(asyncio.get_running_loop())
    with caplog.at_level(logging.ERROR):
        async with asyncio.timeout(20):
            await flusher.flushed([bad, good])
    assert str(error) in str(bad.write_failure)
    assert str(error) in caplog.text
    assert bad.recovery_point == 0
    assert good.write_failure is None
    assert good.recovery_point == good.log_end_offset == 1


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_nothing_is_acknowledged_that_was_not_synced(
    error: Exception, wire: WireClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With flush.messages=1 a record whose flush has failed is refused, and the next one too; other partitions go on."""
    await wire.create("t", 2, flush_messages="1")
    fail_flushes_of(broker.topics.log("t", 0), error, monkeypatch)
    for _ in range(2):
        assert (await wire.produce("t", [b"unsure"])).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert (await wire.produce("t", [b"safe"], partition=1)).error_code == ErrorCode.NONE
    assert broker.topics.log("t", 1).recovery_point == 1


async def test_a_flusher_that_is_cancelled_vouches_for_nothing(tmp_path: Path) -> None:
    """What was being flushed has failed, and what was waiting for its turn is flushed at the next request."""
    first, second = two_logs(tmp_path)
    flusher = Flusher(asyncio.get_running_loop())
    running, waiting = flusher.request(first), flusher.request(second)
    while flusher.is_due(first):
        await asyncio.sleep(0)
    assert flusher._task is not None
    flusher._task.cancel()
    async with asyncio.timeout(20):
        await running
        assert first.write_failure is not None
        assert not waiting.done()
        assert flusher.request(second) is waiting
        await waiting
    assert second.write_failure is None
    assert second.recovery_point == second.log_end_offset
