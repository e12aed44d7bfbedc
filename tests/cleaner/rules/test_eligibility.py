"""The cleanable range of a log, whether it is due, and the order of logs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from diamant.cleaner.rules.eligibility import cleanable_range, is_candidate
from diamant.storage.segments.log_config import LogConfig

NOW_MS = 1_000_000


@dataclass
class FakeSegment:
    """The attributes of a segment needed for eligibility."""

    base_offset: int
    size: int = 100
    largest_timestamp: int = 1000
    last_append_ms: int = 1000
    first_timestamp: int = 1000


@dataclass
class FakeLog:
    """The attributes of a log needed for eligibility."""

    segments: list[FakeSegment]
    log_end_offset: int
    log_start_offset: int = 0
    last_stable_offset: int = -1
    config: LogConfig = field(default_factory=lambda: LogConfig(cleanup_policy=frozenset({"compact"})))

    def __post_init__(self) -> None:
        if self.last_stable_offset < 0:
            self.last_stable_offset = self.log_end_offset


def make_log(*segments: FakeSegment | int, end: int = 45, start: int = 0, stable: int = -1, **config: Any) -> FakeLog:
    """Return a compacted log of these segments (or of segments at these bases), the last one active."""
    config.setdefault("cleanup_policy", frozenset({"compact"}))
    found = [FakeSegment(one) if isinstance(one, int) else one for one in segments]
    return FakeLog(found, end, start, stable, LogConfig(**config))


def range_of(log: FakeLog, checkpoint: int | None = 0, now_ms: int = NOW_MS) -> tuple[int, int]:
    """(first dirty, first uncleanable)."""
    found = cleanable_range(log, checkpoint, now_ms)
    return found.first_dirty_offset, found.first_uncleanable_offset


# -- the dirty end ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("checkpoint", "start", "first_dirty", "is_reset"),
    [
        (None, 7, 7, False),
        (15, 10, 15, False),
        (15, 20, 20, True),
        (46, 5, 5, True),
        (45, 0, 45, False),
        (42, 0, 42, False),
    ],
)
def test_a_checkpoint_outside_of_the_log_is_reset(
    checkpoint: int | None, start: int, first_dirty: int, is_reset: bool
) -> None:
    """Below the start or beyond the end it is replaced by the start; the log's end itself is valid."""
    found = cleanable_range(make_log(0, 10, 20, 30, 40, start=start), checkpoint, NOW_MS)
    assert (found.first_dirty_offset, found.is_checkpoint_reset) == (first_dirty, is_reset)


# -- the clean end ---------------------------------------------------------------------------------------------------


def test_the_active_segment_is_not_touched() -> None:
    """A round ends at its base at the latest, even if the log start lies in it."""
    assert range_of(make_log(0, 10, 20, 30, 40)) == (0, 40)
    assert range_of(make_log(0, end=5, start=2), 0) == (2, 0)


def test_an_open_transaction_ends_the_round_before_its_segment() -> None:
    """The segment that holds the last stable offset is left alone as a whole."""
    assert range_of(make_log(0, 10, 20, 30, 40, stable=25)) == (0, 20)
    assert range_of(make_log(0, 10, 20, 30, 40, stable=30)) == (0, 30)


def test_young_segments_hold_back_all_that_follow() -> None:
    """A segment exactly as old as min.compaction.lag.ms is cleanable. The first younger one ends the round."""
    segments = [FakeSegment(0), FakeSegment(10, largest_timestamp=NOW_MS - 50), FakeSegment(20), FakeSegment(30)]
    assert range_of(make_log(*segments, min_compaction_lag_ms=50)) == (0, 30)
    assert range_of(make_log(*segments, min_compaction_lag_ms=51)) == (0, 10)
    assert range_of(make_log(*segments)) == (0, 30)
    assert range_of(make_log(*segments, min_compaction_lag_ms=51), 20) == (20, 30)


def test_the_lag_is_reckoned_from_the_first_dirty_segment() -> None:
    """A young segment that is clean already does not matter."""
    segments = [FakeSegment(0, largest_timestamp=NOW_MS + 5), FakeSegment(10), FakeSegment(20)]
    assert range_of(make_log(*segments, min_compaction_lag_ms=1), 10) == (10, 20)
    assert range_of(make_log(*segments, min_compaction_lag_ms=1), 5) == (5, 0)


# -- ratio -----------------------------------------------------------------------------------------------------------


def test_the_ratio_counts_bytes_of_whole_segments() -> None:
    """Dirty bytes divided by all bytes below the round's end; bytes above count in neither."""
    found = cleanable_range(make_log(0, 10, 20, 30, 40, 50, stable=35, end=55), 20, NOW_MS)
    assert (found.clean_bytes, found.cleanable_bytes, found.total_bytes) == (200, 100, 300)
    assert found.dirty_ratio == pytest.approx(1 / 3)


def test_a_segment_that_is_partly_clean_counts_twice() -> None:
    """As in Kafka, a segment that is partly clean counts as clean and as dirty."""
    found = cleanable_range(make_log(0, 10, 20, 30), 15, NOW_MS)
    assert (found.clean_bytes, found.cleanable_bytes) == (200, 200)


@pytest.mark.parametrize(("ratio", "is_due"), [(0.4999, True), (0.5, False), (0.0, True), (1.0, False)])
def test_a_log_is_due_above_the_ratio(ratio: float, is_due: bool) -> None:
    """At exactly the ratio the log is not due."""
    log = make_log(0, 10, 20, min_cleanable_dirty_ratio=ratio)
    assert cleanable_range(log, 10, NOW_MS).is_eligible == is_due


def test_nothing_dirty_is_never_due() -> None:
    """A checkpoint at or above the active segment leaves nothing to clean, even with ratio 0."""
    for checkpoint in (20, 25, 45):
        found = cleanable_range(make_log(0, 10, 20, min_cleanable_dirty_ratio=0.0), checkpoint, NOW_MS)
        assert (found.cleanable_bytes, found.is_eligible) == (0, False)


def test_only_compacted_logs_with_bytes_are_candidates() -> None:
    """The cleaner ignores empty logs, and logs with policy delete."""
    log = make_log(0, 10)
    assert is_candidate(log, cleanable_range(log, 0, NOW_MS))
    log = make_log(0, 10, cleanup_policy=frozenset({"delete"}))
    assert not is_candidate(log, cleanable_range(log, 0, NOW_MS))
    log = make_log(FakeSegment(0, size=0), end=0)
    assert not is_candidate(log, cleanable_range(log, 0, NOW_MS))


# -- the longest lag -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lag_ms", "delay_ms"), [(99, 1), (100, 0), (2**63 - 1, 0)])
def test_a_log_is_overdue_after_the_longest_lag(lag_ms: int, delay_ms: int) -> None:
    """A log is overdue strictly after the longest lag, counted from the oldest first record of a dirty segment."""
    segments = [FakeSegment(0, first_timestamp=1), FakeSegment(10, first_timestamp=NOW_MS - 100), FakeSegment(20)]
    found = cleanable_range(
        make_log(*segments, max_compaction_lag_ms=lag_ms, min_cleanable_dirty_ratio=1.0), 10, NOW_MS
    )
    assert (found.delay_ms, found.is_overdue, found.is_eligible) == (delay_ms, delay_ms > 0, delay_ms > 0)


def test_records_without_a_time_are_never_overdue() -> None:
    """Timestamps of 0 and below are ignored, and the active segment never counts."""
    segments = [FakeSegment(0, first_timestamp=0), FakeSegment(10, first_timestamp=-1), FakeSegment(20)]
    assert cleanable_range(make_log(*segments, max_compaction_lag_ms=1), 0, NOW_MS).delay_ms == 0
