"""Deadlines of the cleaner's loop: lags, tombstones and markers, retention."""

from __future__ import annotations

import asyncio
import errno

import pytest

from diamant.cleaner.rules.modes import KAFKA, PROMPT
from tests.cleaner.held_runner import HeldRunner
from tests.cleaner.service.several_logs import HOUR_MS, SeveralLogs
from tests.waiting import wait_until

ONCE = {"min_cleanable_dirty_ratio": 0.0}


# -- lags --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
async def test_min_compaction_lag(logs: SeveralLogs, mode: str) -> None:
    """LogCleanerLagIntegrationTest: records younger than the lag are unchanged, older ones are cleaned."""
    log = logs.filthy("t", 20, min_compaction_lag_ms=HOUR_MS)
    before = logs.values(log)
    first_end = log.active.base_offset
    service = await logs.start(mode=mode)
    logs.clock.advance_ms(HOUR_MS // 2)
    await service.settled()
    assert logs.values(log) == before
    logs.clock.advance_ms(HOUR_MS // 2 + 1)
    logs.fill(log, 10)
    await service.settled()
    kept = [offset for offset, _ in logs.values(log)]
    assert kept[:3] == [17, 18, 19]
    assert kept[3:] == list(range(first_end, log.log_end_offset))
    assert logs.checkpoints["t", 0] >= first_end


async def test_max_compaction_lag(logs: SeveralLogs) -> None:
    """testMaxLogCompactionLag: with a ratio of 1 exactly the overdue segments are cleaned."""
    log = logs.filthy(
        "t", 20, min_cleanable_dirty_ratio=1.0, min_compaction_lag_ms=HOUR_MS, max_compaction_lag_ms=6 * HOUR_MS
    )
    service = await logs.start(mode=KAFKA)
    before = logs.values(log)
    logs.clock.advance_ms(3 * HOUR_MS)
    await service.settled()
    assert logs.values(log) == before
    logs.clock.advance_ms(3 * HOUR_MS + 2)
    logs.fill(log, 10)
    second = log.active.base_offset
    await service.settled()
    assert [offset for offset, _ in logs.values(log)] == [17, 18, 19, *range(20, 30)]
    logs.clock.advance_ms(6 * HOUR_MS + 2)
    await service.settled()
    assert [offset for offset, _ in logs.values(log)] == [27, 28, 29]
    assert logs.checkpoints["t", 0] == second


async def test_without_traffic_everything_superseded_goes_within_the_lag(logs: SeveralLogs) -> None:
    """KIP-354 holds: mode prompt closes the active segment by itself and cleans it as soon as it is due."""
    log = logs.add("t", max_compaction_lag_ms=HOUR_MS)
    service = await logs.settled(backoff_ms=10 * HOUR_MS)
    logs.write(log, "a=old | a=new b=1")
    await service.settled()
    logs.clock.advance_ms(HOUR_MS)
    await asyncio.sleep(0)
    assert len(logs.values(log)) == 3
    logs.clock.advance_ms(1)
    await wait_until(lambda: logs.cleaned == ["t"])
    assert logs.values(log) == [(1, "a"), (2, "b")]


async def test_a_deadline_that_goes_by_while_all_threads_are_busy(logs: SeveralLogs, held: HeldRunner) -> None:
    """The loop does not spin; the deadline is handled once a thread is free."""
    logs.filthy("busy", 20)
    log = logs.add("t", "a=old | a=new", max_compaction_lag_ms=HOUR_MS)
    service = await logs.start(backoff_ms=100 * HOUR_MS, new_process_runner=lambda: held)
    await wait_until(lambda: len(held.plans) == 1)
    logs.clock.advance_ms(HOUR_MS + 1)
    looks = 0
    real = service._cycle

    async def count(*, is_settling: bool) -> bool:
        nonlocal looks
        looks += 1
        return await real(is_settling=is_settling)

    service._cycle = count  # type: ignore[method-assign]
    for _ in range(200):
        await asyncio.sleep(0)
    assert looks < 5
    held.go_on.set()
    await wait_until(lambda: logs.values(log) == [(1, "a")])


# -- what expires ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "is_left"), [(KAFKA, True), (PROMPT, False)])
async def test_a_tombstone_goes_when_its_time_is_over(logs: SeveralLogs, mode: str, is_left: bool) -> None:
    """In mode prompt a round removes it without traffic. In Kafka it stays until another reason makes a round due."""
    log = logs.add("t", "a=1 | a= | b=1 | roll", delete_retention_ms=HOUR_MS, **ONCE)
    service = await logs.settled(mode=mode, backoff_ms=100 * HOUR_MS)
    assert [key for _, key in logs.values(log)] == ["a", "b"]
    logs.clock.advance_ms(HOUR_MS - 1)
    await service.settled()
    assert [key for _, key in logs.values(log)] == ["a", "b"]
    end = logs.checkpoints["t", 0]
    logs.clock.advance_ms(1)
    if is_left:
        await service.settled()
    else:
        await wait_until(lambda: [key for _, key in logs.values(log)] == ["b"])
        await service.settled()
    assert ([key for _, key in logs.values(log)] == ["a", "b"]) is is_left
    assert logs.checkpoints["t", 0] == end


# -- retention ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "deleted"), [({"delete"}, False), ({"compact", "delete"}, True), ({"compact"}, False), (set(), False)]
)
@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
async def test_retention_of_compacted_logs(logs: SeveralLogs, mode: str, policy: set[str], deleted: bool) -> None:
    """testLogsWithSegmentsToDelete…: the cleaner ignores logs of policy delete; policy compact alone keeps old records."""
    log = logs.filthy("t", 20, cleanup_policy=frozenset(policy), retention_ms=HOUR_MS)
    service = await logs.start(mode=mode)
    logs.clock.advance_ms(HOUR_MS + 1)
    await service.settled()
    assert (log.log_start_offset == log.log_end_offset) is deleted


async def test_retention_that_ends_half_way_is_reported(logs: SeveralLogs) -> None:
    """For the deleted segments, readers are woken, checkpoints are updated, and files are removed."""
    log = logs.filthy("t", 20, cleanup_policy=frozenset({"compact", "delete"}), retention_ms=HOUR_MS)
    told: list[int] = []
    service = await logs.start(mode=PROMPT, is_enabled=False, on_retained=lambda log: told.append(log.log_start_offset))
    stuck = log.segments[3]
    logs.env.fail("rename", stuck.path, errno.EIO)
    logs.clock.advance_ms(HOUR_MS + 1)
    await service.settled()
    assert log.log_start_offset == stuck.base_offset
    assert told[:1] == [stuck.base_offset]


@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
async def test_segments_below_the_log_start_go(logs: SeveralLogs, mode: str) -> None:
    """Segments below the log start are deleted whatever the policy (KAFKA-7400)."""
    log = logs.filthy("t", 20, min_cleanable_dirty_ratio=1.0)
    log.delete_records(12)
    await logs.settled(mode=mode)
    assert log.segments[0].base_offset == 11


@pytest.mark.parametrize(("mode", "is_deleted"), [(KAFKA, False), (PROMPT, True)])
async def test_retention_without_the_cleaner(logs: SeveralLogs, mode: str, is_deleted: bool) -> None:
    """In Kafka a compact,delete log then grows forever; mode prompt continues to delete."""
    log = logs.filthy("t", 20, cleanup_policy=frozenset({"compact", "delete"}), retention_ms=HOUR_MS)
    service = await logs.start(mode=mode, is_enabled=False)
    logs.clock.advance_ms(HOUR_MS + 1)
    await service.settled()
    assert (log.log_start_offset == log.log_end_offset) is is_deleted


async def test_a_log_is_compacted_first_and_deleted_later(logs: SeveralLogs) -> None:
    """With both policies, a log is first compacted, then deleted by retention (testCleansCombinedCompactAndDeleteTopic)."""
    policy = frozenset({"compact", "delete"})
    log = logs.filthy("t", 20, cleanup_policy=policy, retention_ms=100_000)
    service = await logs.settled(mode=KAFKA)
    assert [offset for offset, _ in logs.values(log)] == [17, 18, 19]
    logs.clock.advance_ms(200_000)
    await service.settled()
    assert (log.log_start_offset, len(log.segments)) == (20, 1)
    logs.fill(log, 20)
    await service.settled()
    assert [offset for offset, _ in logs.values(log)] == [37, 38, 39]


async def test_a_log_paused_by_another_is_neither_cleaned_nor_deleted(logs: SeveralLogs) -> None:
    """The log is cleaned once it is resumed (testLogsUnderCleanupIneligibleForCompaction)."""
    log = logs.filthy("t", 20, cleanup_policy=frozenset({"delete"}), retention_ms=HOUR_MS, **{})
    service = await logs.start()
    await service.abort_and_pause(("t", 0))
    logs.change(log, cleanup_policy=frozenset({"compact", "delete"}), min_cleanable_dirty_ratio=0.0)
    logs.clock.advance_ms(HOUR_MS + 1)
    await service.settled()
    assert (logs.cleaned, log.log_start_offset) == ([], 0)
    service.resume(("t", 0))
    await service.settled()
    assert log.log_start_offset == log.log_end_offset
