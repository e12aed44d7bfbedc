"""Plain batches read into columns: only plain ones are accepted, and rebuilt ones equal those of the plain engine."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from diamant.cleaner.engines.batch_rewrite import encoded_size
from diamant.cleaner.engines.plain_batches import (
    LOG_APPEND_TIME,
    TOMBSTONES,
    TRANSACTIONAL,
    PlainRun,
    read_run,
    rebuilt,
)
from diamant.cleaner.segments import small_payloads
from diamant.cleaner.segments.rebuilt_batch import compress_like_kafka, rebuilt_batch
from diamant.cleaner.segments.small_payloads import SmallPayloads
from diamant.protocol.batches import compression
from diamant.protocol.batches.batch import crc_is_valid
from diamant.protocol.batches.batch_records import build_batch, iter_records
from diamant.protocol.batches.header import Header, Record, parse_header
from tests.builder import with_payload
from tests.cleaner.facts.segment_history import NOW_MS, SegmentHistory, odd_batch

ROOM = 1 << 24

records = st.lists(
    st.builds(
        Record,
        st.sampled_from([1, 1, 2, 100, 10_000, 2_000_000]),  # what the offset is further on
        st.sampled_from([0, 0, 0, 1, -1, 63, -64, 64, -65, 10_000, -(2**32), 2**32]).map(NOW_MS.__add__),
        st.binary(max_size=70),
        st.none() | st.sampled_from([b"", b"v" * 70, bytes(10_000)]),
        st.sampled_from([(), (), (Header("h", b"x"),), (Header("", None), Header("h" * 70, b"y"))]),
    ),
    min_size=1,
    max_size=5,
)


def at_offsets(steps: list[Record], base_offset: int) -> list[Record]:
    """Return the records with ascending offsets."""
    found = []
    for step in steps:
        base_offset += step.offset
        found.append(step._replace(offset=base_offset))
    return found


def read(data: bytes | bytearray, room: int = ROOM) -> PlainRun:
    """Return the plain batches at the beginning."""
    return read_run(bytes(data), 0, SmallPayloads(), room)


@given(
    records,
    st.booleans(),
    st.integers(0, 400),
    st.binary(max_size=2),
    st.integers(-2, 2),
    st.sampled_from(["no crc", *range(5)]),
)
def test_columns_of_a_plain_batch_are_those_of_its_decoder(
    steps: list[Record], has_append_time: bool, at: int, change: bytes, more: int, packing: Any
) -> None:
    """Strategy: a batch with changed bytes or another count before compression. Invariant: its columns equal the decoder's
    records, and its size equals the plain engine's count.
    """
    log_append_time_ms = NOW_MS + 5 if has_append_time else None
    batch = build_batch(at_offsets(steps, 5), base_offset=5, log_append_time_ms=log_append_time_ms)
    payload = bytearray(batch[61:])
    at %= len(payload)
    payload[at : at + len(change)] = change[: len(payload) - at]
    batch[57:61] = (len(steps) + more).to_bytes(4, "big", signed=True)
    if packing == "no crc":
        changed = batch[:61] + payload
    else:
        batch[22] |= packing
        changed = with_payload(batch, compression.compress(packing, bytes(payload)))
    run = read(changed)
    if not run.batches:
        # Nothing else is known to be special about it.
        assert change or more or packing == "no crc"
        assert (run.keys, run.offsets, run.end, run.memory_bytes) == ([], [], 0, 0)
        return
    assert crc_is_valid(changed, 0, len(changed))
    found = list(iter_records(changed))
    assert [(one.key, one.offset) for one in found] == list(zip(run.keys, run.offsets, strict=True))
    ((begin, end, first, last, last_offset, max_timestamp, producer_id, flags, counted_bytes, unpacked),) = run.batches
    header = parse_header(changed)
    assert (begin, end, first, last, run.end) == (0, len(changed), 0, len(found), len(changed))
    assert (last_offset, max_timestamp, producer_id) == (header.last_offset, header.max_timestamp, -1)
    assert bool(flags & TOMBSTONES) == any(one.value is None for one in found)
    assert bool(flags & LOG_APPEND_TIME) == has_append_time
    assert counted_bytes == sum(encoded_size(one, header) for one in found)
    assert unpacked == (payload if packing in range(1, 5) and len(found) > 1 else None)


@given(records.filter(lambda found: len(found) > 1), st.data(), st.integers(0, 4), st.booleans(), st.booleans())
def test_a_rewritten_batch_has_the_bytes_of_the_plain_engine(
    steps: list[Record], data: st.DataObject, codec: int, is_transactional: bool, has_append_time: bool
) -> None:
    """Strategy: any records, some removed. Invariant: batch, max timestamp and removed bytes equal the plain engine's."""
    stays = data.draw(st.lists(st.booleans(), min_size=len(steps), max_size=len(steps)))
    assume(any(stays) and not all(stays))
    all_records = at_offsets(steps, 7)
    original = build_batch(
        all_records,
        base_offset=7,
        leader_epoch=4,
        codec=codec,
        producer_id=9,
        producer_epoch=2,
        base_sequence=11,
        is_transactional=is_transactional,
        log_append_time_ms=NOW_MS + 100 if has_append_time else None,
        last_offset_delta=all_records[-1].offset,
    )
    before = b"before it"
    (batch,) = read_run(before + bytes(original), len(before), SmallPayloads(), ROOM).batches
    header = parse_header(original)
    kept = [one for one, is_kept in zip(iter_records(original), stays, strict=True) if is_kept]
    gone = [one for one, is_kept in zip(iter_records(original), stays, strict=True) if not is_kept]
    expected = rebuilt_batch(header, kept, None)
    found, max_timestamp, removed_bytes = rebuilt(before + bytes(original), batch, stays, SmallPayloads())
    assert found == expected
    assert max_timestamp == parse_header(expected).max_timestamp
    assert removed_bytes == sum(encoded_size(one, header) for one in gone)


def test_batches_of_clients_are_plain() -> None:
    """Batches are plain, whether idempotent, compressed, transactional or not, short or long, with or without tombstones."""
    history = SegmentHistory()
    plain: list[list[tuple[bytes | None, bytes | None]]] = [
        [(b"k", b"v")],
        [(b"k", None)],
        [(b"", b""), (b"k", b"v")],
        [(b"key" * 30, b"value" * 1000)],
        [(b"k", bytes(150_000))],
        [(bytes(range(256)), bytes(63)), (b"k", bytes(64)), (b"l", None)],
        [(b"%d" % number, b"v") for number in range(9000)],
    ]
    for pairs in plain:
        history.batch(pairs)
        history.batch(pairs, producer=1, log_append_time_ms=NOW_MS)
        history.batch(pairs, producer=1, is_transactional=True)
        history.batch(pairs, headers=(Header("trace", b"1"), Header("n" * 100, None)))
        history.batch(pairs, padding=1)
        for codec in range(1, 5):
            history.batch(pairs, codec=codec)
    data = history.segments[0].data
    run = read(data + data[:60], 1 << 26)
    assert (len(run.batches), run.end) == (9 * len(plain), len(data))
    assert run.flags == TOMBSTONES | LOG_APPEND_TIME | TRANSACTIONAL
    assert [bool(one[7] & TRANSACTIONAL) for one in run.batches[:4]] == [False, False, True, False]


def special_batches() -> SegmentHistory:
    """Batches that each have one special property."""
    special = SegmentHistory()
    special.batch([(None, b"v")])
    special.batch([(b"k", b"v"), (None, b"w")])
    special.batch([(b"k", b"v")], headers=64 * (Header("h", b"x"),))
    special.batch([(b"k", b"v")], delete_horizon_ms=NOW_MS)
    special.append(odd_batch([(b"k", b"v")], special.offset))
    special.old(1, 0, [(b"k", b"v")])
    special.batch([(b"k", b"v")], timestamp=-2)
    special.batch([(b"k", b"v"), (b"l", b"v")], producer=1, step=0)
    special.marker(1, "commit")
    return special


def test_a_special_batch_is_not_plain() -> None:
    """A special batch ends a run, and does not begin one."""
    data = bytes(special_batches().segments[0].data)
    at = 0
    found = 0
    while at < len(data):
        assert not read_run(data, at, SmallPayloads(), ROOM).batches
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        found += 1
    assert found == 9


def test_offsets_that_do_not_ascend_end_a_run() -> None:
    """So the offsets of a run ascend, whatever the log holds."""
    batch = build_batch([Record(5, NOW_MS, b"k", b"v")], base_offset=5)
    assert len(read(batch + batch).batches) == 1
    assert len(read(batch + build_batch([Record(6, NOW_MS, b"k", b"v")])).batches) == 2


@pytest.mark.parametrize("codec", range(1, 5))
def test_a_frame_that_grows_beyond_the_room_is_left_alone(codec: int) -> None:
    """A frame that grows beyond the room is left alone, whatever size of its output it declares."""
    batch = build_batch([Record(0, NOW_MS, b"k", bytes(3_000_000))], codec=codec)
    undeclared = with_payload(batch, compress_like_kafka(codec, compression.decompress(codec, bytes(batch[61:]))))
    for data in (batch, undeclared):
        assert read(data).batches
        assert not read(data, 2_000_000).batches
        assert not read(data, small_payloads.MAX_BYTES).batches
        assert not read(data, 0).batches
