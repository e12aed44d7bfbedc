"""Searches by time in segments whose largest timestamp belongs to no record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from diamant.protocol.batches.batch import update_crc
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import HEADER_SIZE, Record, parse_header
from diamant.protocol.errors import OversizedRecord
from diamant.storage.env.env import RealEnv
from diamant.storage.log import time_search
from diamant.storage.log.log import Log
from diamant.storage.log.segment_swap import replace_segments
from diamant.storage.segments.segment import Segment
from tests.storage.cleaned import batches, write_cleaned
from tests.storage.conftest import START_MS
from tests.storage.logs import batch, make_log, reopen
from tests.storage.one_log import offset_for_timestamp, offset_of_max_timestamp

BATCHES = 40


def emptied(data: bytes) -> bytes:
    """Return a batch that the cleaner has emptied but keeps for its header."""
    header = bytearray(data[:HEADER_SIZE])
    header[8:12] = (HEADER_SIZE - 12).to_bytes(4, "big")
    header[57:61] = bytes(4)
    update_crc(header, 0)
    return bytes(header)


def empty_batches(log: Log, offsets: set[int]) -> None:
    """Empty the batches that begin at `offsets`, by replacing their segments."""

    def change(data: bytes) -> bytes:
        return emptied(data) if parse_header(data).base_offset in offsets else data

    for source in log.segments[:-1]:
        if any(parse_header(data).base_offset in offsets for data in batches(log, source)):
            replace_all(log, [source.base_offset], change)


def replace_all(log: Log, bases: list[int], change: Callable[[bytes], bytes] = bytes) -> None:
    """Replace some segments by one with all of their batches, each one changed."""
    write_cleaned(log, bases, lambda offset: True, change=change)
    replace_segments(log, bases[0], bases)


def filled(env: RealEnv, tmp_path: Path, timestamps: list[int]) -> Log:
    """Return a log with one record for each timestamp, in segments of a few records with index entries in each."""
    log = make_log(env, tmp_path, segment_bytes=600, index_interval_bytes=100)
    for number, timestamp in enumerate(timestamps):
        log.append_as_leader(batch(b"%d" % number, timestamp=timestamp))
    log.roll()
    assert len(log.segments) >= 4
    return log


@pytest.fixture
def log(env: RealEnv, tmp_path: Path) -> Log:
    """Forty records, 10 ms apart."""
    return filled(env, tmp_path, [START_MS + 10 * number for number in range(BATCHES)])


def at(offset: int) -> tuple[int, int]:
    return START_MS + 10 * offset, offset


def last_of(segment: Segment) -> int:
    return segment.next_offset() - 1


def test_the_search_continues_behind_a_segment_without_its_last_records(log: Log) -> None:
    """The search continues after a segment whose only match is a batch without records (Kafka's ends)."""
    first_end = last_of(log.segments[0])
    empty_batches(log, {first_end - 1, first_end})
    assert log.segments[0].largest_timestamp == at(first_end)[0]
    for current in (log, reopen(log)):
        for offset in (first_end - 1, first_end):
            assert offset_for_timestamp(current, at(offset)[0]) == at(first_end + 1)
        assert offset_for_timestamp(current, at(first_end - 2)[0]) == at(first_end - 2)


def test_the_search_continues_over_several_segments(log: Log) -> None:
    """Segments without records are skipped; if no segment has records, the search finds none."""
    end = log.segments[3].base_offset
    empty_batches(log, set(range(1, end)))
    assert offset_for_timestamp(log, 0) == at(0)
    assert offset_for_timestamp(log, at(1)[0]) == at(end)
    empty_batches(log, set(range(end, BATCHES)))
    assert offset_for_timestamp(log, at(1)[0]) is None


def test_a_match_below_the_log_start_does_not_end_the_search(env: RealEnv, tmp_path: Path) -> None:
    """A segment whose matching record was deleted does not hide a later match."""
    timestamps = [START_MS] * BATCHES
    timestamps[1] = timestamps[30] = START_MS + 1000
    log = filled(env, tmp_path, timestamps)
    log.delete_records(2)
    assert log.segments[0].base_offset == 0
    assert offset_for_timestamp(log, START_MS + 1000) == (START_MS + 1000, 30)


def test_the_largest_timestamp_is_one_that_a_record_has(env: RealEnv, tmp_path: Path) -> None:
    """Batches without records are ignored; of several records with the timestamp, the first is found."""
    timestamps = [START_MS] * BATCHES
    timestamps[5], timestamps[20], timestamps[30] = START_MS + 900, START_MS + 500, START_MS + 500
    timestamps[21] = START_MS + 1000
    log = filled(env, tmp_path, timestamps)
    assert offset_of_max_timestamp(log) == (START_MS + 1000, 21)
    empty_batches(log, {21})
    assert offset_of_max_timestamp(log) == (START_MS + 900, 5)
    empty_batches(log, {5})
    assert offset_of_max_timestamp(log) == (START_MS + 500, 20)
    assert offset_of_max_timestamp(reopen(log)) == (START_MS + 500, 20)
    empty_batches(log, set(range(BATCHES)))
    assert offset_of_max_timestamp(log) is None


def test_an_exchange_of_segments_between_two_steps_hides_nothing(log: Log) -> None:
    """The search continues at an offset, so it includes a segment that was merged into an earlier one."""
    bases = [log.segments[1].base_offset, log.segments[2].base_offset]
    empty_batches(log, set(range(1, bases[1])))
    steps = time_search.at_or_after(log, at(1)[0])
    assert next(steps).run() is None
    replace_all(log, bases)
    assert next(found for step in steps if (found := step.run()) is not None) == at(bases[1])


def is_light(step: time_search.Step) -> bool:
    """Whether the loop may run a step."""
    try:
        step.run(is_light=True)
    except time_search.HeavySearch:
        return False
    return True


def test_long_stretches_are_not_passed_over_on_the_loop(env: RealEnv, tmp_path: Path) -> None:
    """A scan of more than a few hundred headers, or of a further segment, is a step for a thread."""
    log = make_log(env, tmp_path, index_interval_bytes=1 << 20)
    count = time_search.LIGHT_HEADERS + 10
    for number in range(count):
        log.append_as_leader(memoryview(build_batch([Record(0, START_MS + number, b"k", b"v")])))
    assert next(time_search.at_or_after(log, START_MS)).run(is_light=True) == (START_MS, 0)
    far = list(time_search.at_or_after(log, START_MS + count - 1))
    assert [is_light(step) for step in far] == [False]
    assert far[0].run() == (START_MS + count - 1, count - 1)
    log.roll()
    log.append_as_leader(batch(b"v", timestamp=START_MS + 10_000))
    empty_batches(log, {count - 1})
    assert [is_light(step) for step in time_search.with_largest_timestamp(log)] == [True]
    steps = list(time_search.at_or_after(log, START_MS + count - 1))
    assert [is_light(step) for step in steps] == [False, False]
    assert [step.run() for step in steps] == [None, (START_MS + 10_000, count)]


@pytest.mark.parametrize("codec", range(5))
def test_a_batch_that_becomes_large_is_not_searched_on_the_loop(env: RealEnv, tmp_path: Path, codec: int) -> None:
    """A few KiB can become many MiB, which only a thread decompresses; uncompressed batches count as they are."""
    for size in (1_000_000, 1_100_000):
        log = make_log(env, tmp_path / str(size), max_message_bytes=1 << 21)
        log.append_as_leader(memoryview(build_batch([Record(0, START_MS, b"k", bytes(size))], codec=codec)))
        for steps in (time_search.at_or_after(log, START_MS), time_search.with_largest_timestamp(log)):
            step = next(steps)
            assert step.run() == (START_MS, 0)
            # snappy makes a twentieth of zeros at best
            assert is_light(step) == (size == 1_000_000 and codec != 2)


def test_without_any_timestamp_the_first_record_has_the_largest(env: RealEnv, tmp_path: Path) -> None:
    """As in Kafka it is the first of the log, at timestamp -1; an empty log has none."""
    log = make_log(env, tmp_path)
    assert offset_of_max_timestamp(log) is None
    for number in range(4):
        log.append_as_leader(batch(b"%d" % number, b"x", timestamp=-1))
        if number == 1:
            log.roll()
    assert offset_of_max_timestamp(log) == (-1, 0)
    log.append_as_leader(batch(b"late", timestamp=0))
    assert offset_of_max_timestamp(log) == (0, 8)


@pytest.mark.parametrize("codec", range(5))
def test_a_search_reads_no_record_above_the_limit(env: RealEnv, tmp_path: Path, codec: int) -> None:
    """Up to a record above `max.decompressed.message.bytes` a compressed batch is searched, as by Kafka; others to their end."""
    log = make_log(env, tmp_path)
    records = [Record(n, START_MS + n, b"k", b"v" * size) for n, size in enumerate((1, 100, 1))]
    log.append_as_leader(memoryview(build_batch(records, codec=codec)))
    last = (START_MS + 2, 2)
    assert offset_for_timestamp(log, last[0]) == offset_of_max_timestamp(log) == last
    log.update_config(replace(log.config, max_decompressed_message_bytes=107))
    assert offset_for_timestamp(log, START_MS) == (START_MS, 0)
    for search in (lambda: offset_for_timestamp(log, START_MS + 1), lambda: offset_of_max_timestamp(log)):
        if codec:
            with pytest.raises(OversizedRecord, match="108 exceeds"):
                search()
        else:
            assert search() is not None
