"""Worked examples of the published descriptions of compaction, with the figures that Kafka 4.3.1 gave for them.

docs/reference/compaction-claims.md names the descriptions, and which statements each test is about. T is `START_MS`; sizes
are bytes of `.log` files, one record per batch, uncompressed.
"""

from __future__ import annotations

import pytest

from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.topic_values import validate_topic_configs
from diamant.cleaner.rules.eligibility import CleanableRange, cleanable_range
from diamant.cleaner.rules.modes import KAFKA, MODES
from diamant.cleaner.rules.retention import deletable_segments
from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.errors import KafkaError
from diamant.storage.log.segment_removal import delete_oldest
from tests.cleaner.cleaner_log import DAY_MS, START_MS, CleanerLog

HOUR_MS = 3_600_000
WEEK_MS = 7 * DAY_MS

in_both_modes = pytest.mark.parametrize("mode", MODES)


def found_in(log: CleanerLog, now_ms: int | None = None) -> CleanableRange:
    """Return the result of a scan by Kafka's rules."""
    return cleanable_range(log.log, log.first_dirty, log.now_ms if now_ms is None else now_ms)


def closed_bytes(log: CleanerLog) -> int:
    """Bytes of all segments but the active one."""
    return sum(segment.size for segment in log.log.segments[:-1])


def first_read(log: CleanerLog, offset: int) -> int:
    """Offset of the first record that a consumer at `offset` receives."""
    result = log.log.read(offset, 1 << 20, isolation_level=0, min_one_message=True)
    return next(one.offset for one in iter_records(result.slices[0].read()) if one.offset >= offset)


def fruit_prices() -> CleanerLog:
    """Grape and lime, with one record a week later that closes their segment."""
    log = CleanerLog()
    for offset, word in enumerate(["grape=$2.69", "lime=$0.49", "grape=", "lime=$1.59"]):
        log.data(word, timestamp=START_MS + 1000 * offset)
    assert (log.log.size, found_in(log).cleanable_bytes) == (305, 0)
    log.data("lime=$1.79", timestamp=START_MS + WEEK_MS + 1)
    return log


# -- the walk through fruit-prices -----------------------------------------------------------------------------------


def test_a_segment_is_closed_by_an_append_more_than_a_week_after_its_first() -> None:
    """The segment is not closed at seven days exactly, but a millisecond later."""
    log = CleanerLog()
    log.data("a", timestamp=START_MS)
    log.data("a", timestamp=START_MS + WEEK_MS)
    assert len(log.log.segments) == 1
    log.data("a", timestamp=START_MS + WEEK_MS + 1)
    assert [segment.base_offset for segment in log.log.segments] == [0, 2]


@in_both_modes
def test_the_walk_through_fruit_prices(mode: str) -> None:
    """Two rounds: kept records, sizes, ratios, horizons, file names, and the offsets that readers receive."""
    log = fruit_prices()
    assert [segment.base_offset for segment in log.log.segments] == [0, 4]
    found = found_in(log, START_MS + WEEK_MS + 1)
    assert (found.cleanable_bytes, found.dirty_ratio, found.is_eligible) == (305, 1.0, True)

    log.now_ms = START_MS + WEEK_MS + 1000
    result = log.clean(mode=mode)
    assert (result.end_offset, log.bases(), closed_bytes(log)) == (4, [2, 3, 4], 154)
    assert (result.stats.messages_read, result.stats.messages_written) == (4, 2)
    assert log.horizon(2) == 1_700_691_201_000
    assert [segment.base_offset for segment in log.log.segments] == [0, 4]
    found = found_in(log)
    assert (found.dirty_ratio, found.is_eligible, log.log.log_start_offset) == (0.0, False, 0)
    assert log.keys().count("lime") == 2

    t2 = START_MS + WEEK_MS + 1
    for word, time_ms in (
        ("guava=$3.09", 1000),
        ("guava=$3.19", 2000),
        ("kiwi=$0.69", 3000),
        ("guava=$2.99", WEEK_MS + 1),
    ):
        log.data(word, timestamp=t2 + time_ms)
    assert [segment.base_offset for segment in log.log.segments] == [0, 4, 8]
    found = found_in(log, t2 + WEEK_MS + 2000)
    assert (found.clean_bytes, found.cleanable_bytes) == (154, 310)

    log.now_ms = t2 + WEEK_MS + 2000
    result = log.clean(mode=mode)
    assert (result.end_offset, log.bases(), closed_bytes(log)) == (8, [4, 6, 7, 8], 232)
    assert (result.stats.messages_read, result.stats.messages_written) == (6, 3)
    assert [segment.base_offset for segment in log.log.segments] == [0, 8]
    assert (log.log.log_start_offset, first_read(log, 0), first_read(log, 3)) == (0, 4, 4)
    assert found_in(log).dirty_ratio == 0.0


# -- the dirty ratio -------------------------------------------------------------------------------------------------


def test_the_ratio_of_the_diagrams() -> None:
    """750 + 750 clean and 500 dirty units are 0.25; with the active segment's 1024 closed 0.504, and not a half."""
    log = CleanerLog()
    for key, size in (("a", 768_000), ("b", 768_000), ("c", 512_000), ("d", 1_048_576)):
        log.data(key)
        log.roll()
        log.log.segments[-2].size = size
    log.first_dirty = 2
    # The last of them is still active.
    active = log.log.segments.pop()
    found = found_in(log)
    assert (found.clean_bytes, found.cleanable_bytes, found.dirty_ratio) == (1_536_000, 512_000, 0.25)
    log.log.segments.append(active)
    found = found_in(log)
    assert (found.cleanable_bytes, found.total_bytes) == (1_560_576, 3_096_576)
    assert found.dirty_ratio == pytest.approx(0.50397, abs=1e-5)


# -- the lags --------------------------------------------------------------------------------------------------------


def personal_data() -> CleanerLog:
    """Return a phone number, changed and then deleted, and a record a week later."""
    log = CleanerLog(max_compaction_lag_ms=WEEK_MS, min_cleanable_dirty_ratio=1.0)
    words = [
        '1={name: "John Doe", phone: "5555555"}',
        '2={name: "Jane Doe", phone: "6666666"}',
        '1={name: "John Doe"}',
        "1=",
    ]
    for offset, word in enumerate(words):
        log.data(word, timestamp=START_MS + offset)
    log.data("3=x", timestamp=START_MS + WEEK_MS + 1)
    return log


@in_both_modes
def test_personal_data_is_gone_after_the_lag(mode: str) -> None:
    """The log is due a millisecond after seven days; then no file in use has the number."""
    log = personal_data()
    assert closed_bytes(log) == 366
    assert not found_in(log, START_MS + WEEK_MS).is_eligible
    found = found_in(log, START_MS + WEEK_MS + 1)
    assert (found.delay_ms, found.is_eligible) == (1, True)
    log.now_ms = START_MS + WEEK_MS + 1
    log.clean(mode=mode)
    assert (log.bases(), closed_bytes(log)) == ([1, 3, 4], 178)
    assert log.horizon(3) == 1_700_691_200_001
    assert not any(b"5555555" in content for content in log.files().values())
    assert found_in(log, START_MS + 37 * DAY_MS).cleanable_bytes == 0


@pytest.mark.parametrize(
    ("age_ms", "delay_ms", "cleanable"),
    [(HOUR_MS + 1, 1, 0), (2 * HOUR_MS - 1, HOUR_MS - 1, 0), (2 * HOUR_MS, HOUR_MS, 140)],
)
def test_the_shortest_lag_wins_over_the_longest(age_ms: int, delay_ms: int, cleanable: int) -> None:
    """A segment may be overdue and not be cleanable: then it is not due."""
    log = CleanerLog(min_compaction_lag_ms=HOUR_MS, max_compaction_lag_ms=HOUR_MS, min_cleanable_dirty_ratio=1.0)
    log.data("a=1", timestamp=START_MS)
    log.data("b=1", timestamp=START_MS + HOUR_MS)
    log.roll()
    found = found_in(log, START_MS + age_ms)
    assert (found.delay_ms, found.cleanable_bytes, found.is_eligible) == (delay_ms, cleanable, cleanable > 0)


def test_the_bound_with_timestamps_that_differ_from_the_clock() -> None:
    """With tolerance D the second record waits at most M + 2 D, and a millisecond."""
    lag_ms, tolerance_ms = HOUR_MS, 600_000
    log = CleanerLog(max_compaction_lag_ms=lag_ms, min_cleanable_dirty_ratio=1.0)
    log.data("a", timestamp=START_MS + tolerance_ms)
    log.data("b", timestamp=START_MS - tolerance_ms)
    log.data("c", timestamp=START_MS + tolerance_ms + lag_ms)
    assert len(log.log.segments) == 1
    log.data("d", timestamp=START_MS + tolerance_ms + lag_ms + 1)
    assert [segment.base_offset for segment in log.log.segments] == [0, 3]
    assert not found_in(log, START_MS + tolerance_ms + lag_ms).is_overdue
    assert found_in(log, START_MS + tolerance_ms + lag_ms + 1).delay_ms == 1


def test_the_estimate_of_a_segments_age_is_its_first_batchs_greatest_timestamp() -> None:
    """The greatest timestamp of the segment's first batch counts, not its first record's."""
    log = CleanerLog(max_compaction_lag_ms=100)
    log.data("a", "b", timestamp=START_MS)
    log.roll()
    assert found_in(log, START_MS + 101).delay_ms == 0
    assert found_in(log, START_MS + 102).delay_ms == 1


def test_lags_in_bytes_and_messages_never_came() -> None:
    """A draft had them; as in Kafka they are unknown."""
    for name in ("min.compaction.lag.bytes", "min.compaction.lag.messages"):
        with pytest.raises(KafkaError, match=f"Unknown topic config name: {name}"):
            validate_topic_configs({name: "1"}, BrokerConfig())


def test_a_segment_without_timestamps_is_closed_by_its_age() -> None:
    """Without timestamps, an append closes the segment once segment.ms has gone by since it was made."""
    log = CleanerLog()
    log.data("a", timestamp=-1)
    log.now_ms += WEEK_MS
    log.data("a", timestamp=-1)
    assert len(log.log.segments) == 1
    log.now_ms += 1
    log.data("a", timestamp=-1)
    assert len(log.log.segments) == 2


def test_a_lag_longer_than_the_present_interval_changes_nothing() -> None:
    """A log that its ratio has cleaned each day is picked at the same times with a lag of two days."""
    picks: list[list[int]] = []
    for lag_ms in (2**63 - 1, 2 * DAY_MS):
        log = CleanerLog(max_compaction_lag_ms=lag_ms, segment_ms=DAY_MS)
        picked = []
        for hour in range(10 * 24):
            log.now_ms = START_MS + hour * HOUR_MS
            log.data("a", "b", f"{hour % 5}", timestamp=log.now_ms)
            if found_in(log).is_eligible:
                picked.append(hour)
                log.clean(mode=KAFKA)
        picks.append(picked)
    assert picks[0] == picks[1]
    assert len(picks[0]) >= 8


# -- what stays ------------------------------------------------------------------------------------------------------


@in_both_modes
def test_the_example_of_the_article(mode: str) -> None:
    """Of offsets 1 to 5, the last record of each key remains: 4 and 5; a read at 3 returns 4."""
    log = CleanerLog("x=1 | 1234=1 | 5678=2 | 1234=3 | 1234=4 | 5678=5 | roll | x=1")
    log.clean(mode=mode)
    assert log.bases() == [0, 4, 5, 6]
    assert first_read(log, 3) == 4


@in_both_modes
def test_only_the_last_offset_counts(mode: str) -> None:
    """Neither timestamps nor the retention of tombstones matter to values."""
    log = CleanerLog(delete_retention_ms=1)
    log.data("a=late", timestamp=START_MS + DAY_MS)
    log.data("a=early", timestamp=START_MS)
    log.roll()
    log.clean(mode=mode)
    log.now_ms += 2 * DAY_MS
    log.clean(mode=mode)
    assert (log.bases(), log.keys()) == ([1], ["a"])


# -- segments --------------------------------------------------------------------------------------------------------


def test_retention_removes_whole_segments_from_the_oldest_on() -> None:
    """Retention never goes below the limit by size, goes by the newest record by time, and below the log start only if the next
    segment begins there.
    """
    log = CleanerLog(cleanup_policy=frozenset({"delete"}), retention_bytes=150, retention_ms=-1)
    for key in "abcd":
        log.data(f"{key}=1")
        if key != "d":
            log.roll()
    assert log.log.size == 280
    delete_oldest(log.log, deletable_segments(log.log, log.now_ms))
    assert log.log.size == 210

    log = CleanerLog(cleanup_policy=frozenset({"delete"}), retention_ms=HOUR_MS)
    log.data("old", timestamp=START_MS)
    log.data("young", timestamp=START_MS + HOUR_MS)
    log.roll()
    log.data("older", timestamp=START_MS)
    log.roll()
    assert deletable_segments(log.log, START_MS + 2 * HOUR_MS) == 0
    assert deletable_segments(log.log, START_MS + 2 * HOUR_MS + 1) == 2

    log = CleanerLog()
    log.data(*[f"k{number}" for number in range(10)])
    log.write("roll | x")
    log.log.delete_records(5)
    assert deletable_segments(log.log, log.now_ms) == 0
    log.log.delete_records(10)
    assert deletable_segments(log.log, log.now_ms) == 1


def test_reading_removes_nothing() -> None:
    """Reading removes nothing, however often and with whatever isolation."""
    log = CleanerLog("a a | roll | b")
    before = log.files()
    for isolation_level in (0, 1):
        for offset in range(3):
            assert log.log.read(offset, 1 << 20, isolation_level=isolation_level, min_one_message=True).size
    assert log.files() == before
