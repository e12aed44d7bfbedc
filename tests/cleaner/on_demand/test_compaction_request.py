"""Compactions of one partition on demand: their waits, their reports, and their errors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from diamant.cleaner.on_demand.compaction import OnStage, PartitionJob, no_stage
from diamant.cleaner.on_demand.header_counts import CountedLogs, LogCounts, SegmentCounts
from diamant.cleaner.on_demand.report import (
    DELETED,
    MIN_COMPACTION_LAG,
    NOT_COMPACTED,
    OPEN_TRANSACTION,
    QUARANTINED,
    STOPPING,
    TOMBSTONES_GONE,
    UNCLEANABLE,
    PartitionCompaction,
)
from diamant.cleaner.on_demand.request import CompactRequest
from diamant.cleaner.rules.modes import KAFKA, MODES, PROMPT
from diamant.cleaner.service.service import CleanerService
from diamant.protocol.batches.batch import iter_headers
from diamant.storage.log.log import Log
from diamant.storage.segments.segment import Segment
from tests.cleaner.held_runner import HeldRunner
from tests.cleaner.service.several_logs import HOUR_MS, START_MS, SeveralLogs
from tests.waiting import wait_until

DAY_MS = 24 * HOUR_MS
PART = ("t", 0)


class Cleaner(NamedTuple):
    """A cleaner, with the record counts that all calls share."""

    service: CleanerService
    counts: CountedLogs


async def compactor(logs: SeveralLogs, **settings: Any) -> Cleaner:
    """Return a cleaner that does nothing by itself."""
    settings.setdefault("is_enabled", False)
    service = await logs.start(**settings)
    return Cleaner(service, CountedLogs(service.blocking))


async def compact(made: Cleaner, log: Log, on_stage: OnStage = no_stage, **options: Any) -> PartitionCompaction:
    """Compact with a generous timeout."""
    async with asyncio.timeout(60):
        request = CompactRequest(log.topic, log.partition, **options)
        return await PartitionJob(made.service, made.counts, log, request, on_stage).run()


async def begun(
    logs: SeveralLogs, held: HeldRunner, log: Log, **settings: Any
) -> tuple[Cleaner, asyncio.Future[PartitionCompaction]]:
    """A call whose round is running until the runner is released."""
    made = await compactor(logs, new_process_runner=lambda: held, **settings)
    call = asyncio.ensure_future(compact(made, log))
    await wait_until(lambda: bool(held.plans))
    return made, call


def count(logs: SeveralLogs, log: Log) -> tuple[int, int]:
    """Return the numbers of records and of markers."""
    found = [0, 0]
    for segment in log.segments:
        for _, header in iter_headers(logs.env.read_bytes(segment.path)[: segment.size]):
            found[header.is_control] += header.record_count
    return found[0], found[1]


def keys(logs: SeveralLogs, log: Log) -> list[str]:
    """Return the keys of all records, in order."""
    return [key for _, key in logs.values(log)]


# -- what it does ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_one_small_active_segment_is_cleaned(logs: SeveralLogs, mode: str) -> None:
    """New records far below any dirty ratio or size are closed off, cleaned and reported."""
    log = logs.add("t")
    for value in range(10):
        logs.data(log, f"a=v{value}", f"b=v{value}")
    made = await compactor(logs, mode=mode)
    report = await compact(made, log)
    assert keys(logs, log) == ["a", "b"]
    assert report.is_clean
    assert (report.first_dirty_offset, report.cleaned_to_offset, report.asked_offset) == (0, 20, 20)
    assert (report.records_before, report.records_after) == (20, 2)
    assert report.removed == {"superseded": 18}
    assert report.kept == {"live": 2, "tombstones": 0, "markers": 0}
    assert (report.rounds, report.runners) == (1, ("inline",))
    assert report.bytes_after < report.bytes_before
    assert (report.segments_before, report.segments_after) == (1, 1)
    assert log.active.base_offset == 20
    assert logs.checkpoints == {PART: 20}


@pytest.mark.parametrize("mode", MODES)
async def test_a_clean_log_needs_no_round(logs: SeveralLogs, mode: str) -> None:
    """A second call, and one for an empty log, return without a round and without a new segment."""
    log, empty = logs.filthy("t", 20), logs.add("empty")
    made = await compactor(logs, mode=mode)
    await compact(made, log)
    segments = list(log.segments)
    for one in (log, empty):
        report = await compact(made, one)
        assert report.is_clean
        assert (report.rounds, report.removed) == (0, {})
    assert log.segments == segments
    assert len(empty.segments) == 1


@pytest.mark.parametrize("mode", MODES)
async def test_markers_are_counted_apart_from_records(logs: SeveralLogs, mode: str) -> None:
    """Markers that stay, that expire, that are below the log start, or that are held back have counts of their own."""
    log = logs.add("t", delete_retention_ms=HOUR_MS)
    made = await compactor(logs, mode=mode)
    producer = {"producer_id": 7, "producer_epoch": 0, "is_transactional": True}
    for turn in range(3):
        logs.data(log, "a=1", base_sequence=turn, **producer)
        logs.marker(log, 7, is_commit=True)
    report = await compact(made, log)
    assert (report.records_before, report.records_after, report.removed) == (3, 1, {"superseded": 2})
    assert (report.markers_before, report.markers_after) == (3, 3)
    logs.clock.advance_ms(HOUR_MS)
    logs.data(log, "b=1", base_sequence=3, **producer)
    logs.marker(log, 7, is_commit=True)
    logs.data(log, "c=1", base_sequence=4, **producer)
    logs.write(log, "commit 7 | roll")
    logs.data(log, "d=1", base_sequence=5, **producer)
    log.delete_records(8)
    report = await compact(made, log)
    assert report.held_back is not None
    assert report.kept is not None
    assert (report.records_after, report.markers_after) == (report.kept["live"] + 1, report.kept["markers"])
    removed_markers = report.removed.get("markers", 0)
    assert report.markers_after == report.markers_before - removed_markers
    assert report.records_before == report.records_after + sum(report.removed.values()) - removed_markers
    if mode == PROMPT:
        assert report.removed == {"below_log_start": 2, "markers": 4}


# -- what holds back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_an_open_transaction_is_respected_and_named(logs: SeveralLogs, mode: str) -> None:
    """Nothing from its first segment on is touched, even by force; the report has producer, offsets and records."""
    log = logs.add("t", "a=1 | a=2 | roll | t7: a=3 | a=4")
    made = await compactor(logs, mode=mode)
    report = await compact(made, log, force=True)
    held_back = report.held_back
    assert held_back is not None
    assert (held_back.reason, held_back.producer_id, held_back.transaction_first_offset) == (OPEN_TRANSACTION, 7, 2)
    assert (held_back.first_offset, held_back.end_offset) == (2, 4)
    assert not report.is_clean
    assert report.error is None
    assert report.kept == {"live": 1, "tombstones": 0, "markers": 0, "open_transaction": 2}
    assert [offset for offset, _ in logs.values(log)] == [1, 2, 3]
    logs.marker(log, 7, is_commit=True)
    report = await compact(made, log)
    assert report.is_clean
    assert [offset for offset, _ in logs.values(log)] == [3]


async def test_the_shortest_lag_holds_back_unless_forced(logs: SeveralLogs) -> None:
    """min.compaction.lag.ms holds records back up to the reported millisecond, unless the call forces them."""
    log = logs.add("t", "a=1 | a=2", min_compaction_lag_ms=HOUR_MS)
    made = await compactor(logs)
    report = await compact(made, log)
    assert report.rounds == 0
    assert report.held_back is not None
    assert (report.held_back.reason, report.held_back.until_ms) == (MIN_COMPACTION_LAG, START_MS + HOUR_MS)
    assert report.kept == {"live": 0, "tombstones": 0, "markers": 0, "min_compaction_lag": 2}
    logs.clock.set_ms(START_MS + HOUR_MS - 1)
    assert not (await compact(made, log)).is_clean
    logs.clock.set_ms(START_MS + HOUR_MS)
    assert (await compact(made, log)).is_clean
    assert keys(logs, log) == ["a"]
    logs.data(log, "a=3")
    forced = await compact(made, log, force=True)
    assert forced.is_clean
    assert keys(logs, log) == ["a"]


# -- tombstones --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_tombstones_gone_waits_for_the_clock(logs: SeveralLogs, mode: str) -> None:
    """The call returns once the clock has passed the horizon and the tombstone is removed, not earlier."""
    log = logs.add("t", "a=1 b=1 | a=", delete_retention_ms=DAY_MS)
    made = await compactor(logs, mode=mode)
    stages: list[str] = []
    call = asyncio.ensure_future(compact(made, log, until=TOMBSTONES_GONE, on_stage=stages.append))
    await wait_until(lambda: any("horizon" in stage for stage in stages))
    logs.clock.set_ms(START_MS + DAY_MS - 1)
    for _ in range(50):
        await asyncio.sleep(0)
    assert not call.done()
    assert keys(logs, log) == ["b", "a"]
    logs.clock.advance_ms(1)
    report = await call
    assert keys(logs, log) == ["b"]
    assert report.removed == {"superseded": 1, "tombstones": 1}
    assert report.rounds == 2
    assert report.horizon_ms is None
    assert report.kept == {"live": 1, "tombstones": 0, "markers": 0}


@pytest.mark.parametrize("mode", MODES)
async def test_the_time_of_the_horizon_at_once(logs: SeveralLogs, mode: str) -> None:
    """With wait=False the call does not wait; a later call removes tombstones that have expired by then."""
    log = logs.add("t", "a=1 | a=", delete_retention_ms=DAY_MS)
    made = await compactor(logs, mode=mode)
    report = await compact(made, log, until=TOMBSTONES_GONE, wait=False)
    assert report.horizon_ms == START_MS + DAY_MS
    assert report.kept == {"live": 0, "tombstones": 1, "markers": 0}
    logs.clock.set_ms(START_MS + DAY_MS - 1)
    assert (await compact(made, log)).rounds == 0
    logs.clock.advance_ms(1)
    report = await compact(made, log)
    assert report.removed == {"tombstones": 1}
    assert keys(logs, log) == []
    assert report.horizon_ms is None


async def test_waiting_for_a_horizon_ends_with_the_topic(logs: SeveralLogs) -> None:
    """A deleted topic, one that is no longer compacted, or a stopping cleaner ends the wait with a reason."""
    made = await compactor(logs)
    calls, stages = [], [0]

    def stage(text: str) -> None:
        stages[0] += "horizon" in text

    for topic in ("deleted", "switched", "stopped"):
        log = logs.add(topic, delete_retention_ms=DAY_MS)
        logs.data(log, "a=")
        calls.append(asyncio.ensure_future(compact(made, log, until=TOMBSTONES_GONE, on_stage=stage)))
    await wait_until(lambda: stages[0] == 3)
    logs.delete(logs.logs["deleted", 0])
    logs.change(logs.logs["switched", 0], cleanup_policy=frozenset({"delete"}))
    assert (await calls[0]).error_code == DELETED
    switched = await calls[1]
    assert switched.error_code == NOT_COMPACTED
    assert "cleanup.policy is delete" in (switched.error or "")
    await logs.stop()
    assert (await calls[2]).error_code == STOPPING


# -- several calls -----------------------------------------------------------------------------------------------------


async def test_a_call_joins_the_round_under_way_if_that_is_enough(logs: SeveralLogs, held: HeldRunner) -> None:
    """A running round that covers everything requested is waited for, counted, and not repeated."""
    log = logs.filthy("t", 20)
    made, first = await begun(logs, held, log)
    second = asyncio.ensure_future(compact(made, log))
    for _ in range(20):
        await asyncio.sleep(0)
    held.go_on.set()
    assert (await first).rounds == (await second).rounds == 1
    assert (await second).removed == (await first).removed
    assert len(held.plans) == 1


async def test_a_call_follows_the_round_under_way_if_there_is_more(logs: SeveralLogs, held: HeldRunner) -> None:
    """Records written after the running round began need a second one, since calls cover everything before them."""
    log = logs.add("t", "a=1 | a=2")
    made = await compactor(logs, new_process_runner=lambda: held)
    held.is_one_by_one = True
    first = asyncio.ensure_future(compact(made, log))
    await wait_until(lambda: len(held.plans) == 1)
    logs.data(log, "a=3")
    second = asyncio.ensure_future(compact(made, log))
    for _ in range(20):
        await asyncio.sleep(0)
    held.go_on.set()
    # A round that ends before the first call has its report would be in that.
    assert (await first).rounds == 1
    held.go_on.set()
    assert (await second).rounds == 2
    assert [offset for offset, _ in logs.values(log)] == [2]


async def test_a_cancelled_call_leaves_the_round_alone(logs: SeveralLogs, held: HeldRunner) -> None:
    """A cancelled call ends at once; its round continues, and serves the next call."""
    log = logs.filthy("t", 20)
    made, call = await begun(logs, held, log)
    call.cancel()
    await asyncio.wait({call})
    assert call.cancelled()
    held.go_on.set()
    report = await compact(made, log)
    assert report.is_clean
    assert len(held.plans) == 1


# -- what goes wrong ---------------------------------------------------------------------------------------------------


async def test_a_log_that_is_not_compacted(logs: SeveralLogs) -> None:
    """The report names the setting, and no segment is closed."""
    log = logs.add("t", cleanup_policy=frozenset({"delete"}))
    logs.data(log, "a=1")
    report = await compact(await compactor(logs), log)
    assert report.error_code == NOT_COMPACTED
    assert report.error == "t-0: cleanup.policy is delete, not compact"
    assert len(log.segments) == 1


@pytest.mark.parametrize("code", [DELETED, STOPPING])
async def test_a_topic_that_is_deleted_and_a_cleaner_that_stops(logs: SeveralLogs, held: HeldRunner, code: str) -> None:
    """Either ends the calls whose round is under way, and refuses later ones."""
    log = logs.filthy("t", 20)
    made, call = await begun(logs, held, log)
    if code == DELETED:
        logs.delete(log)
    else:
        await logs.stop()
    assert (await call).error_code == (await compact(made, log)).error_code == code


async def test_a_corrupt_segment_is_worked_around_and_reported(logs: SeveralLogs) -> None:
    """In mode prompt the other segments are cleaned, and the call fails and names the segment; in mode kafka the partition is
    uncleanable.
    """
    for mode, code in ((PROMPT, QUARANTINED), (KAFKA, UNCLEANABLE)):
        log = logs.add(mode)
        for index in range(4):
            logs.data(log, f"k{index % 2}=v{index}")
            log.roll()
        path = log.segments[1].path
        data = bytearray(logs.env.read_bytes(path))
        data[-1] ^= 0xFF
        file = logs.env.open(path)
        file.pwrite(bytes(data), 0)
        file.close()
        report = await compact(await compactor(logs, mode=mode), log)
        assert report.error_code == code, report.error
        assert "CRC" in (report.error or "")
        await logs.stop()


async def test_counts_follow_the_log_start(logs: SeveralLogs) -> None:
    """Batches that DeleteRecords has removed do not count, although the file of their segment stays."""
    log = logs.fill(logs.add("t", segment_bytes=1 << 20), 20)
    with ThreadPoolExecutor(1) as blocking:
        counts = LogCounts(log, blocking)
        before = await counts.count(log.segments, max_bytes=1 << 20)
        log.delete_records(5)
        after = await counts.count(log.segments, max_bytes=1 << 20)
    assert before is not None
    assert after is not None
    assert (before.records, after.records) == (20, 15)


class Overtaken(LogCounts):
    """Counts during which a round begins, at their second use, which is for the report."""

    def __init__(self, log: Log, service: CleanerService) -> None:
        super().__init__(log, service.blocking)
        self._service = service
        self.asked = 0

    async def count(self, segments: Sequence[Segment], *, max_bytes: int) -> SegmentCounts | None:
        """Begin a round, and report that files were replaced."""
        self.asked += 1
        if self.asked == 2:
            self._service.request(PART)
            return None
        return await super().count(segments, max_bytes=max_bytes)


async def test_a_count_that_a_round_overtakes_waits_for_its_end(logs: SeveralLogs, held: HeldRunner) -> None:
    """The report has the counts after that round, and the records that the call's own round removed."""
    log = logs.filthy("t", 20)
    made = await compactor(logs, new_process_runner=lambda: held)
    assert logs.service is not None
    counts = Overtaken(log, logs.service)
    made.counts.by_log["t", 0] = counts
    held.go_on.set()
    report = await compact(made, log)
    assert counts.asked == 3
    assert (report.rounds, report.kept) == (1, {"live": 3, "tombstones": 0, "markers": 0})


async def test_a_log_too_large_to_be_counted(logs: SeveralLogs) -> None:
    """The report has no record counts; tombstones are waited for all the same."""
    log = logs.add("t", "a=1 b=1 | a=", delete_retention_ms=0)
    made, request = await compactor(logs), CompactRequest("t", 0, until=TOMBSTONES_GONE)
    report = await PartitionJob(made.service, made.counts, log, request, max_counted_bytes=0).run()
    assert (report.records_before, report.records_after, report.kept) == (None, None, None)
    assert keys(logs, log) == ["b"]
    assert report.removed == {"superseded": 1, "tombstones": 1}


# -- whatever happens --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(8))
async def test_calls_among_random_writes(logs: SeveralLogs, mode: str, seed: int) -> None:
    """Strategy: writers, transactions, horizons and calls (some of them given up) in random turns.

    Invariants: after a call that reports so, no key is twice below the requested offset (apart from data of aborted
    transactions, which are removed), nothing committed and not superseded is lost, and the counts are those of a naive count.
    """
    print(f"seed {seed}")
    rng = random.Random(seed)
    log = logs.add("t", delete_retention_ms=1000, segment_bytes=rng.choice([300, 2000, 100_000]))
    is_enabled = rng.random() < 0.5
    made = await compactor(logs, mode=mode, is_enabled=is_enabled, dedupe_buffer_bytes=24 * rng.choice([4, 1000]))
    last: dict[str, str] = {}
    calls = 0
    sequence = 0

    def write() -> None:
        for _ in range(rng.randrange(1, 12)):
            key, value = f"k{rng.randrange(6)}", rng.choice(["", "x" * rng.randrange(1, 40)])
            logs.data(log, f"{key}={value}", codec=rng.randrange(5))
            last[key] = value

    async def call() -> None:
        nonlocal calls
        asked = log.log_end_offset
        report = await compact(made, log, force=rng.random() < 0.3)
        calls += 1
        assert report.error is None, report.error
        assert report.asked_offset == asked
        if report.is_clean:
            below = [key for offset, key in logs.values(log) if offset < asked]
            assert len(below) == len(set(below))

    for _ in range(25):
        action = rng.randrange(6)
        if action <= 1:
            write()
        elif action == 2:
            pending = [asyncio.ensure_future(call()) for _ in range(rng.randrange(1, 4))]
            for _ in range(rng.randrange(30)):
                await asyncio.sleep(0)
            write()
            if rng.random() < 0.3:
                pending[0].cancel()
            for one in await asyncio.gather(*pending, return_exceptions=True):
                if isinstance(one, Exception):
                    raise one
        elif action == 3:
            logs.clock.advance_ms(rng.randrange(2000))
        elif action == 4:
            is_commit = rng.random() < 0.5
            key = f"k{rng.randrange(6)}"
            logs.data(log, f"{key}=txn", producer_id=9, producer_epoch=0, base_sequence=sequence, is_transactional=True)
            sequence += 1
            await call()
            logs.marker(log, 9, is_commit=is_commit)
            if is_commit:
                last[key] = "txn"
        else:
            log.roll()
    before = count(logs, log)
    report = await compact(made, log)
    assert (report.records_after, report.markers_after) == count(logs, log)
    # Else the cleaner may have been there in between.
    assert (report.records_before, report.markers_before) == before or is_enabled
    assert report.kept is not None
    assert report.kept["live"] + report.kept["tombstones"] == len(logs.values(log))
    live = {key for _, key in logs.values(log)}
    assert {key for key, value in last.items() if value} <= live <= set(last)
    logs.clock.advance_ms(10_000)
    await compact(made, log, until=TOMBSTONES_GONE)
    assert {key for _, key in logs.values(log)} == {key for key, value in last.items() if value}
    assert calls
