"""The header of a batch, its checksum, and the patches a broker makes in place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diamant.protocol.batches.batch import crc_is_valid, iter_headers, set_base_offset, set_timestamps
from diamant.protocol.batches.header import MAX_SEQUENCE, BatchHeader, add_to_sequence, parse_header
from diamant.protocol.errors import CorruptBatch
from tests.builder import TIMESTAMP, make_batch, make_log, make_message, make_records, make_wrapper, with_header

# A record null -> "hello", as Kafka's own classes write it.
GOLDEN_PLAIN = bytes.fromhex(
    "00000000000000000000003d0000000002e641a44b0000000000000000018bcfe568000000018bcfe56800ffffffffffffffffffffffffffff"
    "0000000116000000010a68656c6c6f00"
)
GOLDEN_EMPTY = bytes.fromhex(
    "000000000000000a000000310000000002416691d5000000000004ffffffffffffffff0000018bcfe568000000000000000007000100000003"
    "00000000"
)


def test_golden_header() -> None:
    """Every field of a batch written by Kafka is read from its place."""
    header = parse_header(GOLDEN_PLAIN)
    assert header == BatchHeader(0, 61, 0, 2, 0xE641A44B, 0, 0, TIMESTAMP, TIMESTAMP, -1, -1, -1, 1)
    assert (header.size, header.last_offset, header.next_offset, header.last_sequence) == (73, 0, 1, -1)
    assert header.attributes == 0
    assert crc_is_valid(GOLDEN_PLAIN, 0, len(GOLDEN_PLAIN))


def test_golden_empty_batch_header() -> None:
    """A batch emptied by compaction keeps its offsets, its producer and its sequences."""
    header = parse_header(GOLDEN_EMPTY)
    assert (header.base_offset, header.last_offset, header.record_count) == (10, 14, 0)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (7, 1, 3, 7)
    assert (header.base_timestamp, header.max_timestamp) == (-1, TIMESTAMP)
    assert crc_is_valid(GOLDEN_EMPTY, 0, 61)


@pytest.mark.parametrize(
    ("attributes", "truths"),
    [
        (0x00, ()),
        (0x08, ("is_log_append_time",)),
        (0x10, ("is_transactional",)),
        (0x30, ("is_transactional", "is_control")),
        (0x40, ("has_delete_horizon",)),
        (0x7C, ("is_log_append_time", "is_transactional", "is_control", "has_delete_horizon")),
    ],
)
def test_each_attribute_bit_answers_its_own_question(attributes: int, truths: tuple[str, ...]) -> None:
    """Each attribute bit answers its own question, and the low three are the codec."""
    header = parse_header(with_header(GOLDEN_PLAIN, attributes=attributes))
    names = ("is_log_append_time", "is_transactional", "is_control", "has_delete_horizon")
    assert tuple(name for name in names if getattr(header, name)) == truths
    assert header.codec == attributes & 7


@pytest.mark.parametrize(
    ("sequence", "increment", "expected"),
    [(0, 0, 0), (5, 3, 8), (MAX_SEQUENCE, 0, MAX_SEQUENCE), (MAX_SEQUENCE, 1, 0), (MAX_SEQUENCE - 1, 4, 2)],
)
def test_sequences_wrap(sequence: int, increment: int, expected: int) -> None:
    """After sequence 2147483647 comes 0."""
    assert add_to_sequence(sequence, increment) == expected


@pytest.mark.parametrize("size", [0, 1, 16, 17, 60])
def test_short_header_is_corrupt(size: int) -> None:
    """Fewer bytes than a header raise an error that says so."""
    with pytest.raises(CorruptBatch, match=f"only {size} are left"):
        parse_header(GOLDEN_PLAIN[:size])


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"magic": 1}, "magic is 1"), ({"magic": 3}, "magic is 3"), ({"batch_length": 48}, "batch length is 48")],
)
def test_impossible_header_is_corrupt(fields: dict[str, int], reason: str) -> None:
    """A wrong magic and a length too small for a header are corrupt."""
    with pytest.raises(CorruptBatch, match=reason):
        parse_header(with_header(GOLDEN_PLAIN, **fields))


def test_any_flipped_bit_past_the_crc_fails_it() -> None:
    """The CRC covers byte 21 to the end, and nothing before but itself."""
    for position in range(len(GOLDEN_PLAIN)):
        damaged = bytearray(GOLDEN_PLAIN)
        damaged[position] ^= 0x10
        is_covered = position >= 17
        if position != 16:  # the magic chooses the checksum
            assert crc_is_valid(damaged, 0, len(damaged)) is not is_covered, position


@pytest.mark.parametrize("size", [-5, 0, 17, 25, 26, 60, 74, 1 << 40])
def test_crc_of_an_impossible_size_is_invalid(size: int) -> None:
    """An impossible size, or one beyond the buffer, is False without a read."""
    assert not crc_is_valid(GOLDEN_PLAIN, 0, size)


def test_crc_of_old_magics() -> None:
    """Messages of magic 0 and 1 are checked with their CRC-32."""
    for magic in (0, 1):
        message = bytearray(make_message(magic, 3, b"k", b"v"))
        assert crc_is_valid(message, 0, len(message))
        message[-1] ^= 1
        assert not crc_is_valid(message, 0, len(message))


def test_set_base_offset_leaves_the_crc_valid() -> None:
    """Assigning an offset changes only offset and leader epoch."""
    buffer = bytearray(b"xx") + bytearray(GOLDEN_PLAIN)
    set_base_offset(memoryview(buffer), 2, 1 << 40, 9)
    header = parse_header(buffer, 2)
    assert (header.base_offset, header.partition_leader_epoch) == (1 << 40, 9)
    assert crc_is_valid(buffer, 2, header.size)
    assert header._replace(base_offset=0, partition_leader_epoch=0) == parse_header(GOLDEN_PLAIN)


@pytest.mark.parametrize("is_log_append_time", [False, True])
def test_set_timestamps_renews_the_crc(is_log_append_time: bool) -> None:
    """Setting type and max timestamp works in both directions, keeps other attributes and updates the CRC."""
    buffer = bytearray(b"xx") + make_batch("a=1", is_transactional=True, log_append_time_ms=5) + b"yy"
    set_timestamps(memoryview(buffer), 2, is_log_append_time=is_log_append_time, max_timestamp=77)
    header = parse_header(buffer, 2)
    assert (header.is_log_append_time, header.max_timestamp, header.base_timestamp) == (
        is_log_append_time,
        77,
        TIMESTAMP,
    )
    assert header.is_transactional
    assert crc_is_valid(buffer, 2, header.size)
    assert buffer[-2:] == b"yy"


def test_iter_headers_yields_positions() -> None:
    """Batches in a row come with their positions, and a start position is honoured."""
    log = make_log(["a=1"], ["b=2", "c=3"], ["d=4"], base_offset=7)
    found = list(iter_headers(log))
    assert [header.base_offset for _, header in found] == [7, 8, 10]
    assert [position for position, _ in found] == [0, found[0][1].size, found[0][1].size + found[1][1].size]
    assert list(iter_headers(log, found[1][0])) == found[1:]
    assert list(iter_headers(log, 0, found[2][0])) == found[:2]


def test_iter_headers_stops_at_every_torn_tail() -> None:
    """A log cut off anywhere yields its whole batches and no error."""
    log = make_log(["a=1"], ["b=2", "c=3"])
    first = parse_header(log).size
    for size in range(len(log)):
        assert len(list(iter_headers(log[:size]))) == (1 if size >= first else 0)


def test_iter_headers_reports_zero_padding() -> None:
    """Zeros where a batch should begin are corruption, not an end."""
    log = make_log(["a=1"])
    with pytest.raises(CorruptBatch, match="entry length is 0") as caught:
        list(iter_headers(log + bytes(64)))
    assert caught.value.position == len(log)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"batch_length": 13}, "entry length is 13"),
        ({"batch_length": -1}, "entry length is -1"),
        ({"batch_length": 20}, "batch length is 20"),
        ({"magic": 3}, "magic is 3"),
        ({"magic": -1}, "magic is -1"),
    ],
)
def test_iter_headers_reports_corruption(fields: dict[str, int], reason: str) -> None:
    """Impossible lengths and unknown magics are corrupt at any position."""
    with pytest.raises(CorruptBatch, match=reason):
        list(iter_headers(with_header(make_batch("a=1"), **fields)))


def test_iter_headers_reads_every_magic() -> None:
    """Headers of old messages and wrappers among new batches have offsets, counts and timestamps as well."""
    records = make_records(["a=1", "b=2", "c=3"], base_offset=11)
    log = make_message(0, 10, b"k", b"v") + make_wrapper(1, 1, records) + bytes(make_batch("d=4", base_offset=14))
    found = [header for _, header in iter_headers(log)]
    assert [(h.magic, h.base_offset, h.last_offset, h.record_count) for h in found] == [
        (0, 10, 10, 1),
        (1, 11, 13, 3),
        (2, 14, 14, 1),
    ]
    assert [h.max_timestamp for h in found] == [-1, TIMESTAMP + 2, TIMESTAMP]
    assert sum(h.size for h in found) == len(log)


@given(st.binary(max_size=200))
def test_any_bytes_give_headers_or_corrupt_batch(data: bytes) -> None:
    """No bytes make the readers of headers raise anything but CorruptBatch."""
    for read in (parse_header, lambda buffer: list(iter_headers(buffer))):
        try:
            read(data)
        except CorruptBatch:
            pass
    crc_is_valid(data, 0, len(data))
