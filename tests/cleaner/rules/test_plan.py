"""Plans as values, and the grouping of segments."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from diamant.cleaner.rules.grouping import ends_output, group_segments, segments_to_clean
from diamant.cleaner.rules.modes import KAFKA, KAFKA_4_3, KAFKA_4_4, PROMPT
from diamant.cleaner.rules.plan import ActiveProducer, CleanPlan, SegmentPlan, aborted_from
from diamant.cleaner.rules.plan_of_log import kafka_map_entries
from diamant.storage.segments.txn_index import AbortedTxn
from tests.cleaner.cleaner_log import CleanerLog

SPAN = 2**31


def make_plan(segments: list[SegmentPlan], **fields: Any) -> CleanPlan:
    """Return a plan over these segments, all of them dirty."""
    end = segments[-1].next_base_offset if segments else 0
    plan = CleanPlan(
        directory="/data/topic-0",
        topic="topic",
        partition=0,
        segments=tuple(segments),
        log_start_offset=0,
        first_dirty_offset=0,
        first_uncleanable_offset=end,
        now_ms=0,
        mode=KAFKA,
        segment_bytes=1 << 30,
        segment_index_bytes=1 << 20,
        index_interval_bytes=4096,
        delete_retention_ms=1000,
        max_message_bytes=1 << 20,
        active_producers={},
        map_max_entries=1000,
        map_memory_bytes=1 << 20,
        io_buffer_bytes=4096,
        hash_key=bytes(16),
    )
    return replace(plan, **fields)


def segments(*bases: int, size: int = 300, index: int = 8, time_index: int = 12) -> list[SegmentPlan]:
    """Segments at all of the bases but the last, which is where the last one ends."""
    return [SegmentPlan(base, size, index, time_index, 0, following) for base, following in pairwise(bases)]


def grouped(plan: CleanPlan) -> list[list[int]]:
    """Base offsets by group."""
    return [[segment.base_offset for segment in group] for group in group_segments(plan, plan.segments)]


def test_a_plan_survives_json() -> None:
    """A worker process gets the complete plan, with infinite rates, sets and nested tuples."""
    aborted = AbortedTxn(1, 2, 3, 4)
    plan = make_plan(
        [SegmentPlan(0, 10, 8, 12, 99, 50, (aborted,))],
        active_producers={7: ActiveProducer(1, None), 8: ActiveProducer(0, 4)},
        hash_key=bytes(range(16)),
        later_aborted=(aborted,),
        quarantined=frozenset({1}),
        untouched=frozenset({0}),
        apart=frozenset({0}),
        horizons_frozen_above=0,
        high_watermark=60,
    )
    assert CleanPlan.from_json(plan.to_json()) == plan
    limited = replace(plan, io_max_bytes_per_second=1.5)
    assert CleanPlan.from_json(limited.to_json()) == limited
    assert math.isinf(CleanPlan.from_json(plan.to_json()).io_max_bytes_per_second)


def test_a_stored_plan_without_a_high_watermark_keeps_the_end_of_its_round() -> None:
    """Such a plan follows the rule of Kafka until 4.3, as the broker that made it."""
    plan = make_plan(segments(0, 50), high_watermark=60)
    fields = json.loads(plan.to_json())
    del fields["high_watermark"]
    assert (plan.header_end, CleanPlan.from_json(json.dumps(fields)).header_end) == (60, 50)


@pytest.mark.parametrize(
    ("mode", "version", "header_end"),
    [(KAFKA, KAFKA_4_3, 2), (KAFKA, KAFKA_4_4, 3), (PROMPT, KAFKA_4_3, 3), (PROMPT, KAFKA_4_4, 3)],
)
def test_the_version_of_kafka_decides_whose_end_stays(mode: str, version: str, header_end: int) -> None:
    """The end of the round stays until Kafka 4.3, the end of the log since 4.4, and always in mode prompt."""
    assert CleanerLog("a | b | roll | c").plan(mode=mode, version=version).header_end == header_end


def test_an_unknown_mode_is_refused() -> None:
    """A mode is one of two."""
    with pytest.raises(ValueError, match="mode is 'fast'"):
        make_plan(segments(0, 1), mode="fast")


def test_a_log_gives_a_plan() -> None:
    """Sources up to the bound with the sizes on disk, protected producers, and aborts whose markers come later."""
    log = CleanerLog("t5: 1 | p6: 2 | 3 | roll | abort 5 | roll", index_interval_bytes=0)
    plan = log.plan(end=3)
    (source,) = plan.segments
    assert (source.base_offset, source.size, source.next_base_offset) == (0, log.log.segments[0].size, 3)
    assert (source.index_bytes, source.time_index_bytes) == (16, 12)
    assert plan.active_producers == {5: ActiveProducer(0, 0), 6: ActiveProducer(0, 1)}
    assert plan.later_aborted == (AbortedTxn(5, 0, 3, 4),)
    assert log.plan(end=4).later_aborted == ()


def test_kafkas_map_takes_24_bytes_a_key() -> None:
    """The default memory holds what Kafka's documentation says; threads share it."""
    assert kafka_map_entries(134_217_728, 0.9) == 5_033_164
    assert kafka_map_entries(240, 0.9, 2) == 4


def test_segments_are_merged_up_to_the_topics_size() -> None:
    """Exactly the size still fits; huge limits give one group, tiny ones a group each."""
    some = segments(*range(0, 110, 10))
    assert grouped(make_plan(some)) == [list(range(0, 100, 10))]
    assert grouped(make_plan(some, segment_bytes=1)) == [[base] for base in range(0, 100, 10)]
    assert grouped(make_plan(some, segment_bytes=900)) == [[0, 10, 20], [30, 40, 50], [60, 70, 80], [90]]
    assert grouped(make_plan(some, segment_bytes=899)) == [[0, 10], [20, 30], [40, 50], [60, 70], [80, 90]]


def test_a_segment_that_stays_apart_is_a_group() -> None:
    """The neighbours of such a segment are merged without it."""
    some = segments(*range(0, 60, 10))
    assert grouped(make_plan(some, apart=frozenset({20}))) == [[0, 10], [20], [30, 40]]
    assert grouped(make_plan(some, apart=frozenset({0, 40}))) == [[0], [10, 20, 30], [40]]


def test_segments_are_merged_up_to_the_indexes_size() -> None:
    """Both indexes count toward the size."""
    some = segments(0, 10, 20, 30, 40, index=80, time_index=12)
    assert grouped(make_plan(some, segment_index_bytes=160)) == [[0, 10], [20, 30]]
    some = segments(0, 10, 20, 30, 40, index=8, time_index=120)
    assert grouped(make_plan(some, segment_index_bytes=240)) == [[0, 10], [20, 30]]


def test_a_group_spans_31_bits_of_offsets() -> None:
    """The next segment's base bounds a segment's last offset; for the last segment, the round's end does (KAFKA-5413)."""
    assert grouped(make_plan(segments(0, 5, SPAN))) == [[0, 5]]
    assert grouped(make_plan(segments(0, 5, SPAN + 1))) == [[0], [5]]
    assert grouped(make_plan(segments(0, 5, SPAN + 1), first_uncleanable_offset=SPAN)) == [[0, 5]]


def test_empty_segments_merge_whatever_their_offsets() -> None:
    """An empty segment has no offset to overflow (KAFKA-12889)."""
    some = segments(0, SPAN, 2 * SPAN, 3 * SPAN)
    assert grouped(make_plan(some)) == [[0], [SPAN], [2 * SPAN]]
    some[1] = replace(some[1], size=0)
    assert grouped(make_plan(some)) == [[0, SPAN], [2 * SPAN]]


def test_a_round_rewrites_what_its_map_reached() -> None:
    """All segments up to the one that holds the last mapped offset; without a dirty range, all."""
    plan = make_plan(segments(0, 10, 20, 30))
    assert [segment.base_offset for segment in segments_to_clean(plan, 11)] == [0, 10]
    assert [segment.base_offset for segment in segments_to_clean(plan, 10)] == [0]
    assert len(segments_to_clean(replace(plan, first_dirty_offset=30), 30)) == 3


def test_the_tombstones_of_old_formats_go_by_the_clean_sections_age() -> None:
    """The last segment that begins below the first dirty offset counts; without one nothing is old enough."""
    some = [replace(one, modified_ms=5000 + one.base_offset) for one in segments(0, 10, 20)]
    assert make_plan(some).legacy_tombstone_horizon_ms == 0
    assert make_plan(some, first_dirty_offset=10).legacy_tombstone_horizon_ms == 4000
    assert make_plan(some, first_dirty_offset=11).legacy_tombstone_horizon_ms == 4010


def test_aborted_transactions_come_from_a_segment_and_the_later_ones() -> None:
    """None come from earlier segments, nor with markers below the log start, nor with data from the upper bound on."""
    entries = [AbortedTxn(1, 0, 4, 5), AbortedTxn(1, 6, 12, 13), AbortedTxn(2, 3, 22, 23), AbortedTxn(3, 21, 32, 33)]
    some = [
        replace(one, aborted=(entry,)) for one, entry in zip(segments(0, 10, 20, 30), entries, strict=False)
    ]  # fmt: skip
    plan = make_plan(some, later_aborted=(entries[3],))
    assert list(aborted_from(plan, 1, 30)) == [entries[1], entries[2], entries[3]]
    assert list(aborted_from(plan, 1, 20)) == [entries[1], entries[2]]
    assert list(aborted_from(plan, 1, 13)) == [entries[1]]
    assert list(aborted_from(replace(plan, log_start_offset=13), 0, 20)) == [entries[2]]


def test_an_output_that_grew_ends_early_in_mode_prompt() -> None:
    """Kafka keeps to the groups that it made before."""
    plan = make_plan(segments(0, 10, 20), segment_bytes=600)
    following = plan.segments[1]
    assert not ends_output(plan, 301, following)
    assert ends_output(replace(plan, mode=PROMPT), 301, following)
    assert not ends_output(replace(plan, mode=PROMPT), 300, following)


def test_an_output_ends_in_time_for_what_a_segment_can_hold() -> None:
    """If segment.bytes is close to the limit, a source whose size doubles in the rewrite still fits."""
    plan = make_plan(segments(0, 10), segment_bytes=2**31 - 1)
    plan = replace(plan, mode=PROMPT)
    following = replace(plan.segments[0], size=10**9)
    assert not ends_output(plan, 2**31 - 1 - 2 * 10**9, following)
    assert ends_output(plan, 2**31 - 2 * 10**9, following)
