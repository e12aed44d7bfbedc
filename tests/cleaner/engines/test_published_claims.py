"""Worked examples of the published descriptions of compaction, with the figures that Kafka 4.3.1 gave for them.

docs/reference/compaction-claims.md names the descriptions, and which statements each test is about. T is `START_MS`; sizes
are bytes of `.log` files, one record per batch, uncompressed.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.topic_values import validate_topic_configs
from diamant.cleaner.rules.eligibility import CleanableRange, cleanable_range
from diamant.cleaner.rules.modes import KAFKA, MODES, PROMPT
from diamant.cleaner.rules.result import CleanResult
from diamant.cleaner.rules.retention import deletable_segments
from diamant.protocol.batches.records import iter_records
from diamant.protocol.errors import KafkaError
from diamant.storage import names
from diamant.storage.log.segment_removal import delete_oldest
from tests.cleaner.cleaner_log import DAY_MS, DIRECTORY, START_MS, CleanerLog

HOUR_MS = 3_600_000
WEEK_MS = 7 * DAY_MS

in_both_modes = pytest.mark.parametrize("mode", MODES)


def found_in(log: CleanerLog, now_ms: int | None = None) -> CleanableRange:
    """The result of a scan by Kafka's rules."""
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
    """At seven days exactly it is not."""
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


@in_both_modes
@pytest.mark.parametrize(("now_ms", "stays"), [(1_700_691_200_999, True), (1_700_691_201_000, False)])
def test_the_tombstone_goes_at_its_horizon_exactly(mode: str, now_ms: int, stays: bool) -> None:
    """A millisecond before it, it stays."""
    log = fruit_prices()
    log.now_ms = START_MS + WEEK_MS + 1000
    log.clean(mode=mode)
    log.roll()
    log.now_ms = now_ms
    log.clean(mode=mode)
    assert (2 in log.bases()) == stays


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


@pytest.mark.parametrize(("ratio", "is_due"), [(0.0, True), (0.49, True), (0.5, False), (0.51, False), (1.0, False)])
def test_a_ratio_of_exactly_a_half(ratio: float, is_due: bool) -> None:
    """It must be above the minimum."""
    log = CleanerLog(min_cleanable_dirty_ratio=ratio)
    for key in "ab":
        log.data(f"{key}=1")
        log.roll()
    log.first_dirty = 1
    assert found_in(log).dirty_ratio == 0.5
    assert found_in(log).is_eligible == is_due


def test_without_a_lag_a_log_may_stay_uncompacted_for_ever() -> None:
    """Ten years on, a ratio of 0.3 is still not due."""
    log = CleanerLog()
    for key in "abcdefghij":
        log.data(f"{key}=1")
        log.roll()
    log.first_dirty = 7
    found = found_in(log, START_MS + 3650 * DAY_MS)
    assert (found.dirty_ratio, found.is_eligible) == (0.3, False)


def test_a_log_of_one_segment_is_never_cleaned_by_kafka() -> None:
    """However old it is."""
    log = CleanerLog(min_cleanable_dirty_ratio=0.0)
    log.data("a", "a", "a")
    assert found_in(log, START_MS + 365 * DAY_MS).cleanable_bytes == 0


# -- the lags --------------------------------------------------------------------------------------------------------


def personal_data() -> CleanerLog:
    """A phone number, changed and then deleted, and a record a week later."""
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
    """Due a millisecond after seven days; then no file in use has the number."""
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


def test_young_segments_and_all_after_them_wait_for_the_shortest_lag() -> None:
    """Judged by each segment's greatest timestamp, exactly at the lag it is old enough."""
    for lag_ms, now_ms, bound in (
        (HOUR_MS, START_MS + 2 * HOUR_MS - 1, 1),
        (HOUR_MS, START_MS + 2 * HOUR_MS, 3),
        (0, START_MS + HOUR_MS, 3),
    ):
        log = CleanerLog(min_compaction_lag_ms=lag_ms)
        for key, timestamp in (("a", START_MS), ("a", START_MS + HOUR_MS), ("a", START_MS), ("z", START_MS + HOUR_MS)):
            log.data(f"{key}=1", timestamp=timestamp)
            if key != "z":
                log.roll()
        found = found_in(log, now_ms)
        assert (found.first_uncleanable_offset, found.cleanable_bytes, found.total_bytes) == (
            bound,
            70 * bound,
            70 * bound,
        )


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


@pytest.mark.slow
@in_both_modes
def test_a_reader_within_the_shortest_lag_misses_nothing(mode: str) -> None:
    """59 minutes behind, with a round each minute."""
    log = CleanerLog(min_compaction_lag_ms=HOUR_MS, min_cleanable_dirty_ratio=0.0)
    written: list[tuple[int, int]] = []
    for minute in range(180):
        log.now_ms = START_MS + minute * 60_000
        written.append((log.now_ms, log.data("same", timestamp=log.now_ms)))
        log.roll()
        found = found_in(log)
        if found.cleanable_bytes:
            log.clean(end=found.first_uncleanable_offset, mode=mode)
        behind = [offset for time_ms, offset in written if time_ms >= log.now_ms - 59 * 60_000]
        assert set(behind) <= set(log.bases())
    assert len(log.bases()) < 65


def test_the_estimate_of_a_segments_age_is_its_first_batchs_greatest_timestamp() -> None:
    """Not its first record's."""
    log = CleanerLog(max_compaction_lag_ms=100)
    log.data("a", "b", timestamp=START_MS)
    log.roll()
    assert found_in(log, START_MS + 101).delay_ms == 0
    assert found_in(log, START_MS + 102).delay_ms == 1


def test_a_clean_log_is_never_overdue() -> None:
    """Compacted records have had their deletions applied."""
    log = CleanerLog("a | roll", max_compaction_lag_ms=100)
    log.clean()
    assert found_in(log, START_MS + 365 * DAY_MS).delay_ms == 0


def test_lags_in_bytes_and_messages_never_came() -> None:
    """A draft had them; as in Kafka they are unknown."""
    for name in ("min.compaction.lag.bytes", "min.compaction.lag.messages"):
        with pytest.raises(KafkaError, match=f"Unknown topic config name: {name}"):
            validate_topic_configs({name: "1"}, BrokerConfig())


def test_equal_lags_are_accepted() -> None:
    """Only a shortest lag above the longest is refused, also where one of them is the broker's default."""
    validate_topic_configs({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "10"}, BrokerConfig())
    with pytest.raises(KafkaError, match=r"min\.compaction\.lag\.ms \(10\) > max\.compaction\.lag\.ms \(9\)"):
        validate_topic_configs({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"}, BrokerConfig())


def test_a_segment_without_timestamps_is_closed_by_its_age() -> None:
    """By an append, once segment.ms has gone by since the segment was made."""
    log = CleanerLog()
    log.data("a", timestamp=-1)
    log.now_ms += WEEK_MS
    log.data("a", timestamp=-1)
    assert len(log.log.segments) == 1
    log.now_ms += 1
    log.data("a", timestamp=-1)
    assert len(log.log.segments) == 2


def test_a_ratio_of_zero_means_a_round_for_each_closed_segment() -> None:
    """And none for the active one: it closes nothing."""
    log = CleanerLog(min_cleanable_dirty_ratio=0.0)
    rounds = 0
    for number in range(5):
        log.data(f"k{number}", "same")
        log.roll()
        rounds += found_in(log).is_eligible
        log.clean(mode=KAFKA)
        assert not found_in(log).is_eligible
    log.data("same")
    assert not found_in(log, START_MS + 365 * DAY_MS).is_eligible
    assert rounds == 5


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
    """Of offsets 1 to 5 the last of each key remain, 4 and 5; a read at 3 returns 4."""
    log = CleanerLog()
    for word in (
        "x=1",
        "1234=version_1",
        "5678=version_2",
        "1234=version_3",
        "1234=version_4",
        "5678=version_5",
    ):
        log.data(word)
    assert log.log.size == 475
    log.write("roll | x=1")
    log.clean(mode=mode)
    assert log.bases() == [0, 4, 5, 6]
    assert first_read(log, 3) == 4
    assert closed_bytes(log) == 232


@in_both_modes
def test_a_store_is_restored_from_its_changelog(mode: str) -> None:
    """A dictionary built from the compacted log is the one built from everything."""
    log = CleanerLog()
    full: dict[str, str] = {}
    for number in range(60):
        key, value = f"k{number % 7}", "" if number % 11 == 0 else f"v{number}"
        log.data(f"{key}={value}")
        if value:
            full[key] = value
        else:
            full.pop(key, None)
        if number % 10 == 9:
            log.roll()
            log.now_ms += DAY_MS
            log.clean(mode=mode)
    restored: dict[str, str] = {}
    for batch in log.stored():
        for record in batch.records:
            assert record.key is not None
            if record.value is None:
                restored.pop(record.key.decode(), None)
            else:
                restored[record.key.decode()] = record.value.decode()
    assert restored == full


@in_both_modes
def test_a_reader_that_is_too_slow_keeps_a_deleted_entry(mode: str) -> None:
    """It had read the value, and the tombstone expired before it came there."""
    log = CleanerLog("a=1 | a= | b=1 | roll", delete_retention_ms=100)
    state = {"a": "1"}
    log.clean_twice(mode=mode)
    state |= {(record.key or b"").decode(): (record.value or b"").decode() for record in log.stored()[0].records}
    assert state == {"a": "1", "b": "1"}


@in_both_modes
def test_only_the_last_offset_counts(mode: str) -> None:
    """Neither timestamps nor the retention of tombstones matter to values."""
    log = CleanerLog(delete_retention_ms=1)
    log.data("a=late", timestamp=START_MS + DAY_MS)
    log.data("a=early", timestamp=START_MS)
    log.roll()
    log.clean_twice(mode=mode)
    assert (log.bases(), log.keys()) == ([1], ["a"])


@in_both_modes
def test_the_codec_of_a_batch_stays(mode: str) -> None:
    """Whatever the topic's compression.type says."""
    log = CleanerLog(compression_type="zstd")
    log.data("a", "b", codec=1)
    log.write("a | roll")
    log.clean(mode=mode)
    assert log.batch(0).header.codec == 1
    assert len(log.batch(0).records) == 1


@in_both_modes
def test_a_thinned_batch_keeps_its_first_and_last_offset(mode: str) -> None:
    """Batches are what is stored, and the cleaner takes records out of them."""
    log = CleanerLog("a b c | a c | roll")
    log.clean(mode=mode)
    header = log.batch(0).header
    assert (header.base_offset, header.last_offset_delta, header.record_count) == (0, 2, 1)


# -- segments --------------------------------------------------------------------------------------------------------


@in_both_modes
def test_segments_are_merged_by_their_sizes_before_cleaning(mode: str) -> None:
    """Two segments too large to merge remain two, even if little is left of them; the next round merges them."""
    log = CleanerLog(segment_bytes=1000)
    for key in "ab":
        for _ in range(8):
            log.data(f"{key}={'x' * 10}")
        log.roll()
    log.clean(mode=mode)
    assert [segment.base_offset for segment in log.log.segments] == [0, 8, 16]
    log.write("c | roll")
    log.clean(mode=mode)
    assert [segment.base_offset for segment in log.log.segments] == [0, 17]


@in_both_modes
def test_a_first_segment_without_a_record_keeps_its_name(mode: str) -> None:
    """The log begins where it did, in the file of that base offset."""
    log = CleanerLog(segment_bytes=80)
    for _ in range(2):
        log.write("a=1 | roll")
    log.clean(mode=mode)
    assert log.env.file_size(names.log_file(DIRECTORY, 0)) == 0
    assert (log.log.log_start_offset, first_read(log, 0)) == (0, 1)


def test_retention_removes_whole_segments_from_the_oldest_on() -> None:
    """By size never below the limit, by time by the newest record, below the log start only if the next begins there."""
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


@in_both_modes
def test_compact_and_delete_is_an_or(mode: str) -> None:
    """The only value of a key goes, too, when its segment is older than the retention."""
    log = CleanerLog(cleanup_policy=frozenset({"compact", "delete"}), retention_ms=HOUR_MS)
    log.data("only", timestamp=START_MS)
    log.roll()
    log.clean(mode=mode)
    assert deletable_segments(log.log, START_MS + HOUR_MS + 1) == 1


def test_reading_removes_nothing() -> None:
    """However often, and with whatever isolation."""
    log = CleanerLog("a a | roll | b")
    before = log.files()
    for isolation_level in (0, 1):
        for offset in range(3):
            assert log.log.read(offset, 1 << 20, isolation_level=isolation_level, min_one_message=True).size
    assert log.files() == before


def test_old_files_wait_for_their_removal() -> None:
    """For file.delete.delay.ms, under the suffix .deleted."""
    log = CleanerLog(file_delete_delay_ms=60_000)
    removed: list[tuple[list[str], int]] = []
    log.log.on_files_removed = lambda paths, delay_ms: removed.append((paths, delay_ms))
    log.write("a a | roll")
    log.clean()
    assert {delay_ms for _, delay_ms in removed} == {60_000}
    assert f"{0:020d}.log.deleted" in log.files()


def test_the_map_of_kafka_holds_nine_keys_of_ten_slots() -> None:
    """A round ends in the middle of a segment, which is then the border of what is clean."""
    log = CleanerLog()
    for start in (0, 6):
        for number in range(start, start + 6):
            log.data(f"k{number}")
        log.roll()
    log.data("k12")
    result = log.clean(mode=KAFKA, max_keys=9)
    assert (result.end_offset, result.stats.map_utilization) == (9, 1.0)
    assert [segment.base_offset for segment in log.log.segments] == [0, 12]
    assert len(log.keys()) == 13
    assert log.clean(mode=KAFKA, max_keys=9).end_offset == 12


def test_rounds_of_both_modes_read_the_log_at_most_twice() -> None:
    """Once for the map, once to write; a result says when."""
    results: list[CleanResult] = []
    for mode in (KAFKA, PROMPT):
        log = CleanerLog("a b a | roll")
        before = time.monotonic()
        results.append(log.clean(mode=mode))
        assert results[-1].stats.start_s >= before
        assert results[-1].stats.map_bytes_read == results[-1].stats.bytes_read


# -- the page that names these tests -----------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_names_tests_that_exist() -> None:
    """Every row of docs/reference/compaction-claims.md has a test, and every test is there under its name."""
    names = ("reference/compaction-claims.md", "explanation/cleaner-modes.md", "explanation/differences-from-kafka.md")
    page = "\n".join((ROOT / "docs" / name).read_text() for name in names)
    named = re.findall(r"`(test_[a-z0-9_]+)::(test_[a-z0-9_]+)`", page)
    there = {
        (path.stem, name)
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_[a-z0-9_]+)", path.read_text(), re.MULTILINE)
    }
    assert [f"{module}::{name}" for module, name in named if (module, name) not in there] == []
    rows = [line for line in page.splitlines() if re.match(r"\| [A-Z0-9]+-\d+ \|", line)]
    assert len(rows) == 164
    assert all(row.endswith("` |") for row in rows)


def test_the_page_lists_each_difference_between_the_modes() -> None:
    """Every test in test_modes.py has a row there."""
    page = (ROOT / "docs" / "explanation" / "cleaner-modes.md").read_text()
    source = (ROOT / "tests" / "cleaner" / "rules" / "test_modes.py").read_text()
    named = [name for name in re.findall(r"^def (test_[a-z0-9_]+)", source, re.MULTILINE) if "still_merged" not in name]
    assert [name for name in named if f"`test_modes::{name}`" not in page] == []
