"""The loop of the cleaner on a clock that the tests move: its cycles, rounds and status."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import Any

import pytest

from diamant.cleaner.rules.modes import KAFKA, PROMPT
from diamant.cleaner.service.metrics import recopy_percent
from diamant.cleaner.service.service_settings import ServiceSettings
from diamant.storage.config_key import LONG_MAX
from tests.cleaner.held_runner import HeldRunner
from tests.cleaner.service.several_logs import HOUR_MS, START_MS, SeveralLogs
from tests.waiting import wait_until

ONCE = {"min_cleanable_dirty_ratio": 0.0}


# -- what it does to a log ---------------------------------------------------------------------------------------------


async def test_writing_and_cleaning_in_turns(logs: SeveralLogs) -> None:
    """LogCleanerParameterizedIntegrationTest.cleanerTest: the last values stay at their offsets, the log shrinks each time,
    a batch may exceed the buffers, and a deleted partition's checkpoint is removed.
    """
    log = logs.add("t", segment_bytes=2048, **ONCE)
    service = await logs.start(mode=KAFKA, io_buffer_bytes=128)
    last: dict[str, int] = {}
    for turn in range(2):
        for index in range(300):
            if turn and not index:
                last["large"] = logs.data(log, "large=" + "x" * 1500, codec=4)
            key = f"k{index % 100}"
            last[key] = logs.data(log, f"{key}=v{turn}-{index}", codec=4)
        size = log.size
        await service.settled()
        assert log.size < size
        assert logs.checkpoints["t", 0] == log.active.base_offset
        cleaned = [(offset, key) for offset, key in logs.values(log) if offset < log.active.base_offset]
        assert len(cleaned) == len({key for _, key in cleaned})
        found = {key: offset for offset, key in logs.values(log)}
        assert found == last
    logs.delete(log)
    await service.settled()
    assert logs.checkpoints == {}


# -- when it looks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
async def test_when_nothing_is_due_it_looks_again_after_the_backoff(logs: SeveralLogs, mode: str) -> None:
    """The cleaner looks again not a millisecond sooner, by the clock of the Env."""
    log = logs.add("t", **ONCE)
    await logs.settled(mode=mode, backoff_ms=15_000)
    logs.fill(log, 5)
    logs.clock.advance_ms(14_999)
    for _ in range(50):
        await asyncio.sleep(0)
    assert logs.cleaned == []
    logs.clock.advance_ms(1)
    await wait_until(lambda: logs.cleaned == ["t"])


async def test_after_a_round_it_looks_again_at_once(logs: SeveralLogs) -> None:
    """All that is due is cleaned without a pause, the dirtiest first."""
    for topic, batches in (("small", 20), ("large", 30), ("medium", 25)):
        logs.filthy(topic, batches)
    logs.write_checkpoints(small=20, large=20, medium=20)
    await logs.start(mode=KAFKA, backoff_ms=HOUR_MS)
    await wait_until(lambda: len(logs.cleaned) == 2)
    assert logs.cleaned == ["large", "medium"]


@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
async def test_a_rolled_segment_is_looked_at_soon_in_mode_prompt(logs: SeveralLogs, mode: str) -> None:
    """It does not wait for the backoff, and several rolls share one cycle. Mode kafka waits for the backoff."""
    log = logs.add("t", **ONCE)
    service = await logs.start(mode=mode, backoff_ms=HOUR_MS)
    log.on_flush_due = service.rolled
    await service.settled()
    logs.fill(log, 10)
    logs.clock.advance_ms(1_000)
    if mode == KAFKA:
        for _ in range(20):
            await asyncio.sleep(0)
        assert logs.cleaned == []
        logs.clock.advance_ms(HOUR_MS)
    await wait_until(lambda: logs.cleaned == ["t"])
    assert logs.is_clean(log)


@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
async def test_without_the_cleaner_only_requests_are_served(logs: SeveralLogs, mode: str) -> None:
    """With log.cleaner.enable=false the cleaner serves requests and begins no round by itself."""
    log = logs.filthy("t", 20)
    service = await logs.settled(mode=mode, is_enabled=False)
    assert logs.cleaned == []
    report = await service.request(("t", 0))
    assert report.is_cleaned
    assert logs.is_clean(log)


async def test_threads_are_rounds_at_once(logs: SeveralLogs, held: HeldRunner) -> None:
    """At most `threads` rounds run at once, each at another log; a higher limit starts more at once."""
    for topic in "abc":
        logs.filthy(topic, 10)
    service = await logs.start(threads=2, new_process_runner=lambda: held)
    await wait_until(lambda: len(held.plans) == 2)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(held.plans) == 2
    service.reconfigure(ServiceSettings(threads=3))
    await wait_until(lambda: len(held.plans) == 3)
    assert sorted(plan.topic for plan in held.plans) == ["a", "b", "c"]
    held.go_on.set()
    await service.settled()
    assert sorted(logs.cleaned) == ["a", "b", "c"]


async def test_settings_reach_the_plan_and_change_while_it_runs(logs: SeveralLogs, held: HeldRunner) -> None:
    """The threads share buffer, load factor and rate. A round in progress keeps its settings."""
    logs.filthy("a", 10)
    settings: dict[str, Any] = {"threads": 2, "dedupe_buffer_bytes": 4 << 20, "io_buffer_bytes": 4096}
    service = await logs.start(
        **settings, load_factor=0.5, io_max_bytes_per_second=1000.0, new_process_runner=lambda: held
    )
    await wait_until(lambda: len(held.plans) == 1)
    plan = held.plans[0]
    assert (plan.map_max_entries, plan.map_memory_bytes) == ((2 << 20) // 24 // 2, 2 << 20)
    assert (plan.io_buffer_bytes, plan.io_max_bytes_per_second) == (1024, 500.0)
    service.reconfigure(ServiceSettings(**settings, io_max_bytes_per_second=10_000.0))
    logs.filthy("b", 10)
    await wait_until(lambda: len(held.plans) == 2)
    assert held.plans[1].io_max_bytes_per_second == 5000.0
    held.go_on.set()
    await service.settled()


async def test_a_shorter_backoff_counts_at_once(logs: SeveralLogs) -> None:
    """The new backoff limits the wait in progress (cleanerConfigUpdateTest)."""
    log = logs.add("t", **ONCE)
    service = await logs.settled(mode=KAFKA, backoff_ms=HOUR_MS)
    logs.fill(log, 5)
    service.reconfigure(ServiceSettings(mode=KAFKA, backoff_ms=100))
    logs.clock.advance_ms(100)
    await wait_until(lambda: logs.cleaned == ["t"])


async def test_many_logs_let_others_have_their_turn(logs: SeveralLogs) -> None:
    """A scan of all logs yields in between."""
    for partition in range(600):
        logs.add("t", partition=partition)
    service = await logs.start(mode=KAFKA)
    turns = 0
    settled = asyncio.ensure_future(service.settled())
    while not settled.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 5


def test_settings_have_kafkas_defaults() -> None:
    """They apply when the service is used without a broker."""
    settings = ServiceSettings().for_rounds(bytes(16))
    assert settings.map_max_entries == int(134_217_728 // 24 * 0.9)
    assert settings.io_buffer_bytes == 262_144


# -- what is told ------------------------------------------------------------------------------------------------------


async def test_the_status_has_kafkas_gauges(logs: SeveralLogs) -> None:
    """Status has Kafka's gauges and, per partition, the removed records and the rounds by runner."""
    logs.filthy("t", 20)
    logs.filthy("deleted", 20, cleanup_policy=frozenset({"delete"}))
    service = await logs.settled(mode=KAFKA)
    logs.clock.advance_ms(5_000)
    status = service.status()
    assert [one.topic for one in status.partitions] == ["t"]
    found = status.partitions[0]
    assert found.records_removed == {"superseded": 17}
    assert (found.rounds, found.last_cleaned_ms, found.dirty_ratio) == ({"inline": 1}, START_MS, 0.0)
    assert 0 < status.cleaner_recopy_percent < 50
    assert (status.time_since_last_run_ms, status.uncleanable_partitions_count) == (5_000, 0)
    assert status.io_bytes_total > 0


@pytest.mark.parametrize(
    ("bytes_read", "bytes_written", "percent"),
    [(0, 0, 0), (0, 5, 500), (1000, 999, 99), (1000, 1000, 100), (3, 1, 33), (10**15, 10**15 // 4, 25)],
)
def test_the_recopied_share_is_rounded_down(bytes_read: int, bytes_written: int, percent: int) -> None:
    """The percentage is rounded down, as in Kafka's gauge; zero bytes read count as one."""
    assert recopy_percent(bytes_read, bytes_written) == percent


@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
async def test_overdue_is_shown(logs: SeveralLogs, mode: str) -> None:
    """A log that is not cleaned after its lag shows the delay, and the age of its oldest record."""
    log = logs.filthy("t", 20, max_compaction_lag_ms=HOUR_MS)
    logs.env.fail("append", "*.cleaned", OSError(errno.EIO, "Input/output error"))
    service = await logs.start(mode=mode)
    logs.clock.advance_ms(HOUR_MS + 10_000)
    await service.settled()
    logs.clock.advance_ms(2_000)
    found = service.status().partitions[0]
    assert (found.overdue_ms, found.compaction_lag_ms) == (12_000, HOUR_MS + 12_000)
    assert log.config.max_compaction_lag_ms == HOUR_MS


@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
@pytest.mark.parametrize("lag_ms", [LONG_MAX, 2 * HOUR_MS])
async def test_the_lag_is_the_age_of_the_oldest_record_that_no_round_has_been_over(
    logs: SeveralLogs, mode: str, lag_ms: int
) -> None:
    """With and without a longest lag, and in the active segment, too, only records that no round has covered have a lag."""
    log = logs.add("t", max_compaction_lag_ms=lag_ms, min_cleanable_dirty_ratio=1.0)
    service = await logs.settled(mode=mode)
    assert service.status().partitions[0].compaction_lag_ms == 0
    logs.data(log, "a=1")
    logs.clock.advance_ms(HOUR_MS)
    logs.data(log, "a=2")
    await service.settled()
    assert service.status().partitions[0].compaction_lag_ms == HOUR_MS
    log.roll()
    await service.settled()
    assert service.status().partitions[0].compaction_lag_ms == HOUR_MS
    await service.request(("t", 0))
    await service.settled()
    found = service.status().partitions[0]
    assert (found.compaction_lag_ms, found.overdue_ms) == (0, 0)
    logs.data(log, "a=3")
    await service.settled()
    logs.clock.advance_ms(5)
    assert service.status().partitions[0].compaction_lag_ms == 5


@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
async def test_the_ratio_of_overdue_bytes_is_shown(logs: SeveralLogs, mode: str) -> None:
    """The ratio is KIP-354's: bytes past the longest lag divided by clean and cleanable bytes. Logs that are held back are
    counted.
    """
    log = logs.add("t", max_compaction_lag_ms=HOUR_MS, min_cleanable_dirty_ratio=1.0)
    logs.add("held", "t7: a=1 | roll", max_compaction_lag_ms=HOUR_MS, min_cleanable_dirty_ratio=1.0)
    logs.env.fail("append", "*.cleaned", OSError(errno.EIO, "Input/output error"))
    for hour in range(4):
        logs.clock.set_ms(START_MS + hour * HOUR_MS // 2)
        logs.write(log, "k=v | roll")
    logs.clock.set_ms(START_MS + 2 * HOUR_MS)
    service = await logs.settled(mode=mode)
    status = service.status()
    assert [(one.topic, one.must_clean_ratio) for one in status.partitions] == [("held", 0.0), ("t", 0.5)]
    assert (status.must_clean_partitions, status.must_clean_ratio) == (2, 0.5)


@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
async def test_the_greatest_delay_is_of_the_last_scan_in_mode_prompt(logs: SeveralLogs, mode: str) -> None:
    """Kafka's gauge keeps its value from the last picked log."""
    logs.filthy("t", 20, max_compaction_lag_ms=HOUR_MS)
    logs.clock.advance_ms(HOUR_MS + 10_000)
    service = await logs.settled(mode=mode)
    await service.settled()
    assert logs.cleaned == ["t"]
    assert service.status().max_compaction_delay_secs == (10 if mode == KAFKA else 0)


@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
async def test_a_log_that_is_overdue_but_held_counts_for_the_greatest_delay(logs: SeveralLogs, mode: str) -> None:
    """LogCleanerManager.grabFilthiestCompactedLog: even if an open transaction leaves nothing to clean. In mode kafka, as in
    Kafka, only once another log is cleaned.
    """
    logs.add("held", "t7: a=1 | roll", max_compaction_lag_ms=HOUR_MS)
    logs.clock.advance_ms(HOUR_MS + 5_000)
    service = await logs.settled(mode=mode)
    assert service.status().max_compaction_delay_secs == (0 if mode == KAFKA else 5)
    logs.filthy("other", 20)
    await service.settled()
    assert logs.cleaned == ["other"]
    assert service.status().max_compaction_delay_secs == 5


async def test_a_full_map_takes_several_rounds_in_mode_kafka(
    logs: SeveralLogs, caplog: pytest.LogCaptureFixture
) -> None:
    """Each ends where the map was full, is followed by the next at once, and has its line in the log."""
    log = logs.add("t", **ONCE)
    logs.fill(log, 40, keys=20)
    with caplog.at_level(logging.INFO):
        await logs.settled(mode=KAFKA, dedupe_buffer_bytes=24 * 10, load_factor=0.9)
    assert len(logs.cleaned) > 2
    for told in ("t-0: cleaned by inline", "offset map is full"):
        assert told in caplog.text
    assert logs.checkpoints == {("t", 0): log.active.base_offset}
