"""The cleaner's lines in the log."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.result import REASONS, CleanResult, CleanStats, OutputSegment
from diamant.cleaner.service.log_messages import (
    delayed_partitions,
    invalid_messages,
    offset_map_full,
    partition_uncleanable,
    round_summary,
)
from diamant.storage.errors import CorruptLog
from tests.cleaner.rules.test_plan import make_plan, segments

MIB = 1 << 20


def plan_of(*bases: int, **fields: Any) -> CleanPlan:
    """Return a plan over segments at these bases; the last is the end."""
    return make_plan(segments(*bases), **fields)


def result_of(end_offset: int = 3000, runner: str = "inline", outputs: int = 1, **stats: Any) -> CleanResult:
    """Return a result with these figures, two sources for each output."""
    output = OutputSegment(0, (0, 1), 10, 0, False, 0)
    return CleanResult(end_offset, (output,) * outputs, CleanStats(**stats), runner)


def test_the_summary_of_a_round() -> None:
    """The summary has log, runner and section, sizes, rates, shares of the time, the map's use and the reduction."""
    result = result_of(
        runner="process",
        start_s=100.0,
        map_complete_s=102.0,
        end_s=108.0,
        map_bytes_read=10 * MIB,
        bytes_read=40 * MIB,
        messages_read=100_000,
        bytes_written=10 * MIB,
        messages_written=20_000,
        map_utilization=0.375,
        removed={"superseded": 79_000, "tombstones": 1000},
        removed_bytes={"superseded": 30 * MIB, "tombstones": 2048},
    )
    text = round_summary(plan_of(0, 1000, 2000, 3000, first_dirty_offset=1000), result)
    assert text.split("\n    ") == [
        "topic-0: cleaned by process, dirty section [1000, 3000)",
        "40.0 MiB of log in 8.0 s (5.0 MiB/s)",
        "indexed 10.0 MiB in 2.0 s (5.0 MiB/s), 25.0 % of the time, buffer utilization 37.5 %",
        "cleaned 40.0 MiB in 6.0 s (6.7 MiB/s), 75.0 % of the time",
        "start: 40.0 MiB, 100,000 messages",
        "end: 10.0 MiB, 20,000 messages, 2 segments into 1",
        "75.0 % size reduction, 80.0 % fewer messages",
        "removed: superseded 79,000 (30.0 MiB), tombstones 1,000 (2.0 KiB)",
    ]


def test_a_round_can_make_a_log_larger() -> None:
    """After recompression the reduction may be negative, as in Kafka."""
    text = round_summary(plan_of(0, 10), result_of(bytes_read=100, bytes_written=110, messages_read=1))
    assert "-10.0 % size reduction, 100.0 % fewer messages" in text


times = st.floats(min_value=0, max_value=1e6, allow_nan=False)
counts = st.integers(min_value=0, max_value=1 << 62)


@given(
    st.lists(times, min_size=3, max_size=3),
    st.lists(counts, min_size=7, max_size=7),
    st.dictionaries(st.sampled_from(REASONS), counts),
)
def test_no_figures_break_the_summary(at: list[float], figures: list[int], removed: dict[str, int]) -> None:
    """No figures, even zeros and those of clocks that go back, give NaN or infinity, as Kafka prints, or an error."""
    start_s, map_complete_s, end_s = at
    stats = CleanStats(start_s, map_complete_s, end_s, map_utilization=0.5, removed=removed, removed_bytes=removed)
    stats.map_bytes_read, stats.map_messages_read, stats.invalid_messages_read = figures[:3]
    stats.bytes_read, stats.messages_read, stats.bytes_written, stats.messages_written = figures[3:]
    text = round_summary(plan_of(0, 10), CleanResult(10, (), stats, "inline"))
    assert not re.search(r"\b(nan|inf)\b|∞", text, re.IGNORECASE)


def test_a_full_map() -> None:
    """The line has the number of keys, the segments read whole and in part, and the end of the round and of its range."""
    plan = plan_of(0, 1000, 2000, 3000, 4000, first_dirty_offset=1500, map_max_entries=1200)
    text = offset_map_full(plan, 3400)
    assert text == (
        "topic-0: the offset map is full (1,200 keys) after 2 of 3 segments and a part of the one at 3000; this round ends "
        "at 3400 instead of 4000, and the next continues there (log.cleaner.dedupe.buffer.size)"
    )


def test_a_map_that_is_full_between_segments() -> None:
    """No segment is read in part then."""
    text = offset_map_full(plan_of(0, 1000, 2000), 1000)
    assert text is not None
    assert "after 1 of 2 segments; this round ends at 1000" in text


def test_a_map_that_took_everything() -> None:
    """If the map took everything there is no message."""
    assert offset_map_full(plan_of(0, 1000, 2000), 2000) is None


@pytest.mark.parametrize(
    ("reason", "retry_in_ms", "text"),
    [
        (
            CorruptLog("/data/t-1/0.log", 61, "CRC is 1, expected 2"),
            None,
            "t-1: marked uncleanable, not cleaned until the broker starts again: CorruptLog: ",
        ),
        (
            OSError(28, "No space left on device"),
            60_000,
            "t-1: marked uncleanable, not cleaned for 60.0 s: OSError: ",
        ),
        (ValueError(), 1000, "t-1: marked uncleanable, not cleaned for 1.0 s: ValueError"),
        ("a batch is cut off", None, "until the broker starts again: a batch is cut off"),
    ],
)
def test_an_uncleanable_partition(reason: object, retry_in_ms: int | None, text: str) -> None:
    """The line has the partition, the error, and the time to the retry."""
    line = partition_uncleanable("t", 1, reason, retry_in_ms=retry_in_ms)
    assert text in line
    assert str(reason) in line


def test_records_without_a_key() -> None:
    """Records without a key are counted in a warning; without any there is none."""
    plan = plan_of(0, 10)
    assert invalid_messages(plan, result_of()) is None
    line = invalid_messages(plan, result_of(invalid_messages_read=1))
    assert line == "topic-0: 1 message without a key; a compacted topic cannot keep them"


def test_delayed_partitions() -> None:
    """The line has their number, the number of all, and the greatest delay; without any there is no line."""
    assert delayed_partitions(5, 0, 0) is None
    assert delayed_partitions(5, 2, 90_500) == (
        "5 partitions to clean, 2 of them beyond max.compaction.lag.ms, by up to 90.5 s"
    )


@pytest.mark.parametrize(
    ("size", "text"),
    [(1023, "1023 B"), (1024, "1.0 KiB"), (MIB, "1.0 MiB"), (1 << 50, "1.0 PiB"), (1 << 61, "2,048.0 PiB")],
)
def test_sizes_are_in_the_greatest_unit(size: int, text: str) -> None:
    """Each size is in the greatest unit that it reaches."""
    assert f"start: {text}, " in round_summary(plan_of(0, 10), result_of(bytes_read=size))
