"""The contract of an engine: the kept records, their encoding, and the early end of a round.

Each engine must fulfil it (`engine` in conftest.py). test_golden.py and test_golden_random.py compare every byte that Kafka
leaves: indexes, old formats, headers of producers, full maps. Here are rules in words, and what Kafka does not do or fails at.
test_engines_agree.py compares the bytes with the reference.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from diamant.cleaner.rules.engine_limits import EngineLimits
from diamant.cleaner.rules.modes import KAFKA, MODES, PROMPT
from diamant.cleaner.rules.result import CleaningAborted, OutputOverflow, OutputSegment
from diamant.cleaner.segments.rebuilt_batch import compress_like_kafka
from diamant.protocol.batches import compression
from diamant.protocol.batches.batch import crc_is_valid
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.storage.errors import CorruptLog, RecordTooLarge
from tests.builder import make_message
from tests.cleaner.cleaner_log import CleanerLog
from tests.cleaner.engines.engines import ENGINES, LOCAL, Engine
from tests.cleaner.facts.segment_history import SegmentHistory

NewLog = Callable[..., CleanerLog]


def counts(log: CleanerLog) -> list[tuple[int, int]]:
    """(last offset, records) of every batch."""
    return [(batch.header.last_offset, len(batch.records)) for batch in log.stored()]


# -- keys ------------------------------------------------------------------------------------------------------------


def test_the_last_record_of_each_key_stays(new_log: NewLog) -> None:
    """The last record of each key stays, within a batch and between batches; offsets stay, and the next round begins at the
    end.
    """
    log = new_log("a b a | c b | roll | a")
    result = log.clean()
    assert result.end_offset == 5
    assert (log.keys(), log.offsets()) == (["a", "c", "b", "a"], [2, 3, 4, 5])
    assert result.stats.removed == {"superseded": 2}


def test_a_result_names_its_engine() -> None:
    """The result names the engine as `runner`; the fast path for plain batches has no name of its own."""
    env, plan = SegmentHistory().stored()
    found = {name: engine(env, plan).runner for name, engine in ENGINES.items()}
    compiled = dict.fromkeys(("compiled", "in parts"), "compiled")
    assert found == {"inline": "inline", "one by one": "inline", "Spark": "spark", "Spark, whole": "spark", **compiled}


def test_a_result_says_when(new_log: NewLog) -> None:
    """A result has the times of the start, the complete map and the end, in seconds of the monotonic clock."""
    before_s = time.monotonic()
    stats = new_log("a | a | roll").clean().stats
    assert before_s <= stats.start_s <= stats.map_complete_s <= stats.end_s <= time.monotonic()


def test_keyless_records_go_and_are_counted(new_log: NewLog) -> None:
    """They stem from a time without compaction (testCleaningWithUnkeyedMessages)."""
    log = new_log()
    for _ in range(4):
        log.data((None, b"v"))
    log.write("a | b | roll")
    result = log.clean()
    assert log.keys() == ["a", "b"]
    assert result.stats.invalid_messages_read == 4
    assert result.stats.removed == {"keyless": 4}


# -- small maps ------------------------------------------------------------------------------------------------------


def test_a_full_map_may_end_within_a_batch(new_log: NewLog) -> None:
    """The map may be full at a key that it has already; later records stay. Mode prompt takes any number of keys."""
    for mode, end_offset, offsets in ((KAFKA, 2, [1, 2, 3]), (PROMPT, 4, [2, 3])):
        log = new_log("a b b a | roll")
        assert log.clean(max_keys=2, mode=mode).end_offset == end_offset
        assert log.offsets() == ([0] if mode == KAFKA else []) + offsets


def test_removed_bytes_are_those_of_the_encoded_record(new_log: NewLog) -> None:
    """The removed bytes are length, deltas, key, value and headers, as in an uncompressed batch."""
    for codec in (compression.NONE, compression.ZSTD):
        log = new_log()
        headers = Record(0, log.now_ms + 100, b"k", b"v" * 300, (("h", b"x"), ("n", None)))  # type: ignore[arg-type]
        log.data(headers, codec=codec)
        size = log.log.segments[0].size if codec == compression.NONE else size  # noqa: F821 - of the first turn
        log.write("k | roll")
        assert log.clean().stats.removed_bytes == {"superseded": size - 61}


# -- tombstones ------------------------------------------------------------------------------------------------------


def test_the_life_of_a_tombstone(new_log: NewLog) -> None:
    """A tombstone outlives its value, gets a horizon in the first round, and is removed by a round at the horizon."""
    log = new_log("1 | 1= | roll | 2 | roll", delete_retention_ms=1000)
    start = log.now_ms
    log.clean()
    assert (log.lasts(), log.horizon(1)) == ([1, 2], start + 1000)
    log.now_ms = start + 999
    log.clean()
    assert (log.lasts(), log.horizon(1)) == ([1, 2], start + 1000)
    log.now_ms = start + 1000
    result = log.clean()
    assert log.lasts() == [2]
    assert result.stats.removed == {"tombstones": 1}


def test_a_horizon_moves_no_timestamp(new_log: NewLog) -> None:
    """The horizon takes the base timestamp's place; deltas are negative then (KIP-534)."""
    log = new_log(delete_retention_ms=77)
    records = [(b"a", b"1"), (b"b", None), (b"c", b"3")]
    log.data(*[Record(index, 5 + 5 * index, key, value) for index, (key, value) in enumerate(records)])
    log.roll()
    log.clean()
    batch = log.batch(0)
    assert [record.timestamp for record in batch.records] == [5, 10, 15]
    assert (batch.header.base_timestamp, batch.header.max_timestamp) == (log.now_ms + 77, 15)
    assert crc_is_valid(batch.data, 0, len(batch.data))


# -- how batches are written -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", range(5))
def test_a_thinned_batch_keeps_its_header(new_log: NewLog, codec: int) -> None:
    """Offsets, producer, sequences, epoch and codec are kept; max timestamp and count are those of the remaining records."""
    log = new_log()
    log.data("x", "a", "b" * 50, "c", "d", producer=23, epoch=5, sequence=10, txn=True, codec=codec)
    log.marker(23, "commit", epoch=5)
    log.write("x | d | c | roll")
    before = log.batch(0).header
    log.clean()
    batch = log.batch(0)
    header = batch.header
    assert header == before._replace(
        batch_length=header.batch_length,
        crc=header.crc,
        base_timestamp=log.now_ms + 1,
        max_timestamp=log.now_ms + 2,
        record_count=2,
    )
    assert [record.offset for record in batch.records] == [1, 2]
    assert [record.sequence for record in batch.records] == [11, 12]
    assert crc_is_valid(batch.data, 0, len(batch.data))


@pytest.mark.parametrize("is_log_append_time", [False, True])
def test_an_emptied_batch_keeps_offsets_and_sequences(new_log: NewLog, is_log_append_time: bool) -> None:
    """An emptied batch has 61 bytes, no codec and no horizon; the max timestamp stays, the base timestamp is -1."""
    log = new_log()
    fields = {"log_append_time_ms": 99} if is_log_append_time else {}
    log.data("a", "b=", producer=1, epoch=2, sequence=2**31 - 1, codec=compression.ZSTD, **fields)
    log.write("a | b | roll")
    before = log.batch(0).header
    log.clean()
    header = log.batch(0).header
    assert header == before._replace(
        batch_length=49,
        crc=header.crc,
        attributes=before.attributes & ~compression.ZSTD,
        base_timestamp=-1,
        record_count=0,
    )
    assert header.last_sequence == 0
    again = log.batch(0).data
    log.clean(first_dirty=0)
    assert log.batch(0).data == again


def test_zstd_and_gzip_are_written_as_java_does() -> None:
    """A zstd frame without content size that ends in an empty block; a gzip header from an unknown system."""
    data = b"abc" * 1000
    zstd = compress_like_kafka(compression.ZSTD, data)
    assert (zstd[4] & 0xE0, zstd[-3:]) == (0, b"\x01\x00\x00")
    assert compress_like_kafka(compression.GZIP, data)[:10] == bytes.fromhex("1f8b08000000000000ff")
    for codec in range(5):
        packed = compress_like_kafka(codec, data)
        assert compression.decompress(codec, packed) == data


# -- old formats -----------------------------------------------------------------------------------------------------


def with_old_messages(new_log: NewLog, *messages: bytes, end: int, **config: int) -> CleanerLog:
    """Return a log whose first segment holds these entries of magic 0 or 1."""
    log = new_log(**config)
    for message in messages:
        segment = log.log.active
        segment.append(message, int.from_bytes(message[:8], "big"), -1, log.now_ms, 4096)
    log.log.log_end_offset = end
    log.roll()
    return log


@pytest.mark.parametrize(("retention_ms", "stays"), [(999, False), (1000, False), (1001, True)])
def test_old_tombstones_go_by_the_age_of_the_clean_files(new_log: NewLog, retention_ms: int, stays: bool) -> None:
    """Old tombstones expire by the last clean segment's time less the retention; a kept one gets a horizon at once."""
    log = with_old_messages(
        new_log, make_message(1, 0, b"a", None, timestamp=1), end=1, delete_retention_ms=retention_ms
    )
    log.write("b | roll")
    for segment, age_ms in zip(log.log.segments, (1000, 0), strict=False):
        log.env.set_mtime_ms(segment.path, log.now_ms - age_ms)
    log.clean(first_dirty=2, end=2)
    assert 0 in log.lasts() if stays else 0 not in log.lasts()
    if stays:
        assert log.horizon(0) == log.now_ms + retention_ms


@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
def test_an_old_batch_at_the_rounds_end_is_emptied_in_the_present_format(new_log: NewLog, mode: str) -> None:
    """In Kafka such a partition is uncleanable: "Empty batches are only supported for magic v2 and above"."""
    log = with_old_messages(
        new_log, make_message(1, 0, b"a", b"1", timestamp=1), make_message(1, 1, None, b"2", timestamp=2), end=2
    )
    log.clean(mode=mode)
    assert counts(log) == [(0, 1), (1, 0)]
    assert log.batch(1).header.max_timestamp == 2


# -- segments --------------------------------------------------------------------------------------------------------


def test_groups_are_handed_over_one_by_one(new_log: NewLog) -> None:
    """Each as soon as its files are complete."""
    log = new_log(segment_bytes=200)
    for _ in range(3):
        log.data("a" * 60)
        log.roll()
    seen = []

    def take(output: OutputSegment) -> None:
        seen.append((output.base_offset, [name for name in log.files() if name.endswith(".log.cleaned")]))
        log.swap(output)

    log.engine(log.env, log.plan(), take)
    assert seen == [(base, [f"{base:020d}.log.cleaned"]) for base in (0, 1, 2)]


def test_an_emptied_group_leaves_an_empty_segment(new_log: NewLog) -> None:
    """The empty segment merges with its neighbours in a later round."""
    log = new_log(segment_bytes=200)
    for _ in range(3):
        log.data("a" * 60)
        log.roll()
    log.clean()
    assert [segment.size for segment in log.log.segments] == [0, 0, log.log.segments[2].size, 0]
    log.clean(first_dirty=0)
    assert [segment.base_offset for segment in log.log.segments] == [0, 3]


@pytest.mark.parametrize("name", LOCAL)
def test_the_throttle_hears_of_what_is_read_and_written(name: str) -> None:
    """The throttle is told bytes once for the map, once for the rewrite, and once for the output."""
    log = CleanerLog("a | a | b | roll")
    charged: list[int] = []
    stats = ENGINES[name](log.env, log.plan(), throttle=charged.append).stats
    assert sum(charged) == stats.map_bytes_read + stats.bytes_read + stats.bytes_written


# -- ends and errors -------------------------------------------------------------------------------------------------


def leftovers(log: CleanerLog) -> list[str]:
    """Files of unfinished outputs."""
    return [name for name in log.files() if name.endswith((".cleaned", ".swap"))]


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("map_memory_bytes", [1 << 20, 1])
def test_a_round_can_be_stopped_at_any_poll(name: str, map_memory_bytes: int) -> None:
    """A round polls before each segment and each chunk. Stopped, it leaves no file of the current group or of the map
    (testCleanSegmentsWithAbort).
    """
    log = CleanerLog(segment_bytes=200)
    for _ in range(3):
        log.data("a" * 60)
        log.roll()
    plan = log.plan(map_memory_bytes=map_memory_bytes, mode=PROMPT)
    before = log.files()
    for polls in range(100):
        left = polls
        handed_over: list[OutputSegment] = []

        def check_done() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise CleaningAborted

        try:
            ENGINES[name](log.env, plan, handed_over.append, check_done=check_done)
        except CleaningAborted:
            assert {int(name[:20]) for name in leftovers(log)} == {output.base_offset for output in handed_over}
            assert before.items() <= log.files().items()
            continue
        break
    assert (polls > 8, len(handed_over)) == (True, 3)


def damaged(log: CleanerLog, change: Callable[[bytearray], bytes | bytearray]) -> int:
    """Write three batches into one segment, of which the second one is changed; return its position."""
    log.data("a", "b")
    start = log.log.active.size
    log.data("a", "x")
    end = log.log.active.size
    log.write("c | roll")
    segment = log.log.segments[0]
    content = log.env.read_bytes(segment.path)
    new = content[:start] + bytes(change(bytearray(content[start:end]))) + content[end:]
    file = log.env.open(segment.path)
    file.truncate(0)
    file.append(new)
    segment.size = len(new)
    return start


def flipped(position: int, value: int = 0xFF) -> Callable[[bytearray], bytearray]:
    """Return a change of one byte."""

    def change(batch: bytearray) -> bytearray:
        batch[position] ^= value
        return batch

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (flipped(16), "magic"),
        (flipped(8), "length|runs past|left in"),
        (flipped(10), "are left|whole"),
        (flipped(65), "CRC"),
        (lambda batch: batch[:-20], "CRC|magic|length|left"),
    ],
)
@pytest.mark.parametrize("mode", [KAFKA, PROMPT])
def test_broken_batches_fail_the_round(
    new_log: NewLog, change: Callable[[bytearray], bytes], reason: str, mode: str
) -> None:
    """Broken batches never count as the end of the segment, and are not rebuilt with a new checksum; no files remain."""
    log = new_log()
    position = damaged(log, change)
    before = log.files()
    with pytest.raises(CorruptLog, match=reason) as caught:
        log.clean(mode=mode)
    assert (caught.value.path, caught.value.position) == (log.log.segments[0].path, position)
    assert log.files() == before


@pytest.mark.parametrize("codec", range(1, 5))
@pytest.mark.parametrize("mode", MODES)
def test_a_decompression_bomb_fails_the_round(engine: Engine, mode: str, codec: int) -> None:
    """The decompressed size of a batch is bounded, on the fast paths, too."""
    log = CleanerLog(engine=partial(engine, limits=EngineLimits(batch_bytes=10_000, parsed_bytes=10_000)))
    log.data((b"a", bytes(200_000)), codec=codec)
    log.roll()
    with pytest.raises(CorruptLog, match="decompress to more than 10000"):
        log.clean(mode=mode)


def test_a_full_index_fails_only_mode_kafka(new_log: NewLog) -> None:
    """In Kafka a partition is uncleanable if merged sources need more entries than they had; mode prompt omits entries."""
    for mode in (KAFKA, PROMPT):
        log = new_log(index_interval_bytes=0)
        for number in range(12):
            log.data(str(number))
        log.roll()
        fields = {"segment_index_bytes": 60, "mode": mode}
        if mode == KAFKA:
            with pytest.raises(OutputOverflow, match=r"segment\.index\.bytes"):
                log.clean(**fields)
            assert leftovers(log) == []
        else:
            log.clean(**fields)
            assert len(log.lasts()) == 12


def test_an_output_that_outgrows_its_group_is_cut_in_mode_prompt(new_log: NewLog) -> None:
    """Recompression can enlarge batches: the output then ends between two sources."""
    words = random.Random(1).choices([b"%d" % number for number in range(500)], k=4000)
    for mode, expected in ((KAFKA, [(0, 2, 4)]), (PROMPT, [(0, 2), (4,)])):
        log = new_log()
        for key in (b"a", b"b", b"c"):
            # Harder than any broker compresses.
            log.data((key, b" ".join(words)), "x", codec=compression.ZSTD, level=22)
            log.roll()
        tight = sum(segment.size for segment in log.log.segments)
        result = log.clean(mode=mode, segment_bytes=tight)
        assert [output.source_base_offsets for output in result.outputs] == expected


def test_a_source_that_outgrows_a_segment_is_named_in_mode_prompt(engine: Engine) -> None:
    """In mode prompt the round can be repeated without that source. In mode kafka it fails as in Kafka. The log is unchanged in
    both.
    """
    limited = partial(CleanerLog, engine=partial(engine, limits=EngineLimits(output_bytes=500)))
    for mode, error in ((KAFKA, OutputOverflow), (PROMPT, CorruptLog)):
        # Each old message becomes a batch of its own: the segment is more than twice as large then.
        log = with_old_messages(limited, *(make_message(0, offset, b"%d" % offset, b"") for offset in range(9)), end=9)
        before = log.files()
        with pytest.raises(error, match="bytes, at most 500 are possible") as caught:
            log.clean(mode=mode)
        assert log.files() == before
        if isinstance(caught.value, CorruptLog):
            assert caught.value.path == log.log.segments[0].path


def test_a_segment_of_more_than_31_bits_of_offsets_is_named_in_mode_prompt(new_log: NewLog) -> None:
    """Old brokers wrote such segments (KAFKA-6264). A start divides them; a round that meets one leaves it unchanged."""
    for mode, error in ((KAFKA, OutputOverflow), (PROMPT, CorruptLog)):
        log = new_log("a | roll")
        far = 2**31
        content = build_batch([Record(0, 5, b"a", b"v")]) + build_batch([Record(far, 5, b"c", b"v")], base_offset=far)
        file = log.env.open(log.log.segments[0].path)
        file.truncate(0)
        file.append(content)
        file.close()
        plan = log.plan(mode=mode)
        segment = replace(plan.segments[0], size=len(content), next_base_offset=far + 1)
        with pytest.raises(error, match="out of the segment's range of 31 bits"):
            log.engine(log.env, replace(plan, segments=(segment,), first_uncleanable_offset=far + 1))
        assert leftovers(log) == []


# -- max.decompressed.message.bytes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [100, 100_000], ids=["small", "large"])
@pytest.mark.parametrize("codec", range(5))
def test_a_record_above_the_limit_of_a_compressed_batch_ends_the_round(engine: Engine, codec: int, size: int) -> None:
    """What counts is the size that the record declares. Uncompressed ones are exempt."""
    largest = size + (8 if size == 100 else 9)
    for mode, limit in itertools.product(MODES, (largest - 1, largest)):
        history = SegmentHistory()
        history.batch([(b"a", b"b"), (b"k", b"v" * size), (b"k", b"v" * (size - 1))], codec=codec)
        history.roll()
        history.batch([(b"k", b"v")])
        env, plan = history.stored(mode=mode, max_record_bytes=limit)
        if codec == 0 or limit == largest:
            assert engine(env, plan).stats.removed
        else:
            with pytest.raises(RecordTooLarge, match=f"{largest} exceeds .* {limit}.*raised"):
                engine(env, plan)


@pytest.mark.parametrize("magic", [0, 1])
def test_a_record_above_the_limit_in_a_compressed_set_of_an_old_format_ends_the_round(
    engine: Engine, magic: int
) -> None:
    """A record's size is that of the whole message after offset and size. Plain messages are exempt."""
    largest = (14 if magic == 0 else 22) + 101
    for codec, limit in ((0, largest - 1), (1, largest - 1), (1, largest)):
        history = SegmentHistory()
        history.old(magic, codec, [(b"k", b"v" * 100)])
        history.roll()
        history.batch([(b"k", b"v")])
        env, plan = history.stored(max_record_bytes=limit)
        if codec == 0 or limit == largest:
            assert engine(env, plan).stats.removed
        else:
            with pytest.raises(RecordTooLarge, match=f"{largest} exceeds"):
                engine(env, plan)


# -- the log start ---------------------------------------------------------------------------------------------------


def test_only_mode_prompt_drops_what_lies_below_the_log_start(new_log: NewLog) -> None:
    """Whole batches and single records are dropped; Kafka copies them for ever. Sequences survive either way."""
    found = {}
    for mode in (KAFKA, PROMPT):
        log = new_log("p1: a b | c | d e f | roll")
        log.log.delete_records(4)
        result = log.clean(first_dirty=4, mode=mode)
        found[mode] = counts(log), log.offsets(), result.stats.removed
    assert found == {
        KAFKA: ([(1, 2), (2, 1), (5, 3)], [0, 1, 2, 3, 4, 5], {}),
        PROMPT: ([(1, 0), (5, 2)], [4, 5], {"below_log_start": 4}),
    }
