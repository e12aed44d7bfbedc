"""Records: batches survive encoding, match Kafka's bytes, and damaged ones are refused."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import example, given, settings
from hypothesis import strategies as st

from diamant.protocol.batches import compression
from diamant.protocol.batches.batch import crc_is_valid
from diamant.protocol.batches.batch_records import build_batch, iter_records, records_payload
from diamant.protocol.batches.header import HEADER_SIZE, Header, Record, parse_header
from diamant.protocol.errors import CorruptBatch, DecompressionBomb
from diamant.protocol.varint import (
    read_varint,
    read_varlong,
    varint_size,
    write_varint,
)
from tests import naive
from tests.builder import TIMESTAMP, make_batch, make_record, make_records, with_header, with_payload
from tests.effort import examples
from tests.protocol.batches.test_batch import GOLDEN_EMPTY, GOLDEN_PLAIN

CODECS = range(5)

GOLDEN_TRANSACTIONAL = bytes.fromhex(
    "00000000000000050000004c00000009020c0cc7a50010000000010000018bcfe568000000018bcfe5680700000000000003e800030000002a"
    "0000000222000000046b310476310402680278026e0110000e02046b320100"
)
TRANSACTIONAL_RECORDS = [
    Record(5, TIMESTAMP, b"k1", b"v1", (Header("h", b"x"), Header("n", None)), 42),
    Record(6, TIMESTAMP + 7, b"k2", None, (), 43),
]

INT64 = st.integers(-(2**63), 2**63 - 1)
RECORDS = st.lists(
    st.builds(
        make_record,
        st.tuples(st.none() | st.binary(max_size=300), st.none() | st.binary(max_size=300)),
        timestamp=st.integers(-1, 2**42) | INT64,
        headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=70)), max_size=3),
    ),
    max_size=6,
)


PRODUCER = {"leader_epoch": 9, "producer_id": 1000, "producer_epoch": 3, "base_sequence": 42, "is_transactional": True}
EMPTY = {
    **{"base_offset": 10, "leader_epoch": 0, "producer_id": 7, "producer_epoch": 1, "base_sequence": 3},
    **{"last_offset_delta": 4, "max_timestamp": TIMESTAMP},
}


@pytest.mark.parametrize(
    ("batch", "records", "fields"),
    [
        (GOLDEN_PLAIN, [Record(0, TIMESTAMP, None, b"hello")], {"leader_epoch": 0}),
        (GOLDEN_TRANSACTIONAL, TRANSACTIONAL_RECORDS, PRODUCER),
        (GOLDEN_EMPTY, [], EMPTY),
    ],
    ids=["plain", "transactional", "empty"],
)
def test_golden_batches(batch: bytes, records: list[Record], fields: dict[str, Any]) -> None:
    """Batches written by Kafka yield their records, and the same records give the same bytes."""
    assert list(iter_records(batch)) == records
    assert build_batch(records, **fields) == batch


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=examples(40), deadline=None)
@example(records=[make_record(timestamp=2**63 - 1), make_record(timestamp=-(2**63))], base_offset=0)
@given(records=RECORDS, base_offset=st.integers(0, 2**60))
def test_round_trip(codec: int, records: list[Record], base_offset: int) -> None:
    """Any records survive encoding in every codec, with a valid CRC; the naive reader agrees."""
    records = [record._replace(offset=base_offset + 3 * index) for index, record in enumerate(records)]
    batch = build_batch(records, base_offset=base_offset, codec=codec)
    header = parse_header(batch)
    assert crc_is_valid(batch, 0, len(batch))
    assert list(iter_records(memoryview(b"?" + batch), 1)) == records
    assert header.record_count == len(records)
    assert header.codec == codec
    assert header.max_timestamp == max((record.timestamp for record in records), default=-1)
    assert header.base_offset == base_offset
    assert header.last_offset == (records[-1].offset if records else base_offset)
    if codec == compression.NONE:
        naive_records = naive.parse_records(naive.parse_batch(bytes(batch)).payload, len(records))
        assert [(r.key, r.value) for r in naive_records] == [(r.key, r.value) for r in records]
        assert [[(k.decode(), v) for k, v in r.headers] for r in naive_records] == [list(r.headers) for r in records]


@pytest.mark.parametrize("codec", CODECS)
def test_client_batches_both_ways(codec: int) -> None:
    """Batches of a real client are readable here, and ours are readable by the client."""
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    records = [Record(i, TIMESTAMP + i, b"k%d" % i, b"value", (Header("h", b"x"),)) for i in range(3_000)]
    for record in records:
        builder.append(record.offset, record.timestamp, record.key, record.value, [("h", b"x")])
    theirs = bytes(builder.build())
    assert crc_is_valid(theirs, 0, len(theirs))
    assert list(iter_records(theirs)) == records
    batch = MemoryRecords(bytes(build_batch(records, codec=codec))).next_batch()
    assert batch.validate_crc()
    found = [(r.offset, r.timestamp, r.key, r.value, [tuple(h) for h in r.headers]) for r in batch]
    assert found == [(r.offset, r.timestamp, r.key, r.value, [("h", b"x")]) for r in records]


def test_log_append_time() -> None:
    """Under LogAppendTime every record has the batch's max timestamp, whatever its delta."""
    batch = make_batch("a=1", "b=2", log_append_time_ms=99)
    assert [record.timestamp for record in iter_records(batch)] == [99, 99]
    assert parse_header(batch).base_timestamp == TIMESTAMP


def test_delete_horizon_keeps_timestamps() -> None:
    """A delete horizon replaces the base timestamp; large deltas keep the records' timestamps."""
    batch = make_batch("a=1", "b=2", delete_horizon_ms=TIMESTAMP * 2)
    header = parse_header(batch)
    assert header.has_delete_horizon
    assert (header.base_timestamp, header.max_timestamp) == (TIMESTAMP * 2, TIMESTAMP + 1)
    assert [record.timestamp for record in iter_records(batch)] == [TIMESTAMP, TIMESTAMP + 1]


def test_sequences_follow_offsets_and_wrap() -> None:
    """A record's sequence is the base sequence plus its offset delta, with a wrap to 0."""
    records = [record._replace(offset=index) for index, record in zip((0, 1, 4), make_records("abc"), strict=True)]
    batch = build_batch(records, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
    assert [record.sequence for record in iter_records(batch)] == [2**31 - 2, 2**31 - 1, 2]


def test_header_keys_that_are_no_utf8_survive() -> None:
    """Kafka stores header keys unread, so invalid UTF-8 survives unchanged."""
    payload = bytes.fromhex("14 00 00 00 01 01 02 04 ff80 02 78").replace(b"\x14", b"\x16", 1)
    batch = with_payload(GOLDEN_PLAIN, payload)
    (record,) = iter_records(batch)
    assert record.headers == (Header("\udcff\udc80", b"x"),)
    assert build_batch([record])[HEADER_SIZE:] == payload


def _record(body: str) -> bytes:
    content = bytes.fromhex(body)
    out = bytearray()
    write_varint(out, len(content))
    return bytes(out + content)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "00",
        "000000",
        "0000000101",  # no header count
        "00000001010001",  # a byte too many
        "000000010103",  # header count -2
        "0000000101feffffff0f",  # header count 2**31 - 1
        "000000010104026b01",  # two headers declared, one there
        "00000001010201",  # null header key
        "00000001010203026b01",  # header key of -2 bytes
        "0000000101027e6b01",  # header key runs past the record
        "0000000101020268 7e",  # header value runs past the record
        "000000feffffff0f010001",  # key of 2**31 - 1 bytes
        "00000008610100",  # key runs past the record
        "0000000108610000",  # value runs past the record
        "00ffffffffffffffffffff0100010100",  # timestamp delta of 11 bytes
        "0000ffffffffff01010100",  # offset delta of 6 bytes
        "000000ffffffffffff010100",  # key length of 7 bytes
        "00 80",
        "00 00 80",
        "00 00 00 80",
        "00 00 00 01 80",
        "00 00 00 01 01 80",
    ],
)
def test_malformed_records_are_corrupt(body: str) -> None:
    """A record whose fields do not fill its declared length is corrupt, whether first or second."""
    for payload, count in ((_record(body), 1), (_record("000000010100") + _record(body), 2)):
        with pytest.raises(CorruptBatch):
            list(iter_records(with_payload(GOLDEN_PLAIN, payload, record_count=count)))
        with pytest.raises(naive.Malformed):
            naive.parse_records(payload, count)


@pytest.mark.parametrize("payload", ["01", "fe01", "feffffff0f", "ffffffffff01", "80", ""])
def test_bad_record_lengths_are_corrupt(payload: str) -> None:
    """Negative, too large, too long and missing record lengths are corrupt."""
    with pytest.raises(CorruptBatch):
        list(iter_records(with_payload(GOLDEN_PLAIN, bytes.fromhex(payload))))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [-(2**31), -1, 1, 4, 2**31 - 1])
def test_hostile_counts_are_corrupt(codec: int, count: int) -> None:
    """A wrong record count is corrupt, and a huge one costs no time."""
    batch = with_header(make_batch("a=1", "b=2", "c=3", codec=codec), record_count=count)
    with pytest.raises(CorruptBatch):
        list(iter_records(batch))


def test_batch_past_the_end_of_the_buffer_is_corrupt() -> None:
    """The records of an incomplete batch are not read."""
    with pytest.raises(CorruptBatch, match="73 bytes, only 72"):
        iter_records(GOLDEN_PLAIN[:-1])


def test_unknown_codec_is_corrupt() -> None:
    """Codecs 5 to 7 do not exist."""
    with pytest.raises(CorruptBatch, match="codec is 5"):
        iter_records(with_header(GOLDEN_PLAIN, attributes=5))


@pytest.mark.parametrize("codec", range(1, 5))
def test_bombs_are_bounded(codec: int) -> None:
    """Records that grow beyond the bound are refused before they are read."""
    batch = make_batch(bytes(1_000_000), codec=codec)
    with pytest.raises(DecompressionBomb):
        iter_records(batch, max_bytes=999_999)
    assert len(records_payload(batch, 0, parse_header(batch), max_bytes=1_000_100)) > 1_000_000


@settings(max_examples=examples(500), deadline=None)
@given(codec=st.sampled_from(CODECS), data=st.data())
def test_damage_raises_corrupt_batch_or_nothing(codec: int, data: st.DataObject) -> None:
    """Random damage to header or payload never raises anything but CorruptBatch."""
    batch = make_batch("a=1", ("k" * 3).encode() * 40, "c=", codec=codec, producer_id=3, base_sequence=0)
    for _ in range(data.draw(st.integers(1, 5))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del batch[data.draw(st.integers(0, len(batch))) :]
    try:
        records = list(iter_records(batch, max_bytes=100_000))
    except CorruptBatch:
        return
    if len(batch) > 16 and batch[16] == 2:
        assert len(records) == parse_header(batch).record_count


@settings(max_examples=examples(400), deadline=None)
@given(payload=st.binary(max_size=40), count=st.integers(-1, 4), data=st.data())
def test_reads_and_refuses_what_the_naive_reader_does(payload: bytes, count: int, data: st.DataObject) -> None:
    """For any bytes, and for slightly damaged records, the reader agrees with the naive one."""
    if data.draw(st.booleans()):
        damaged = bytearray(make_batch("a=1", "b=2", "c")[HEADER_SIZE:])
        for _ in range(data.draw(st.integers(1, 2))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        payload, count = bytes(damaged), 3
    batch = with_payload(GOLDEN_PLAIN, payload, record_count=count, base_timestamp=0)
    try:
        expected = naive.parse_records(payload, count) if count else []
    except naive.Malformed:
        with pytest.raises(CorruptBatch):
            list(iter_records(batch))
        return
    found = list(iter_records(batch))
    assert [(r.timestamp, r.offset, r.key, r.value) for r in found] == [tuple(r[:4]) for r in expected]
    assert [[(h.key.encode(errors="surrogateescape"), h.value) for h in r.headers] for r in found] == [
        r.headers for r in expected
    ]


# -- varints


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (5, "0a"),
        (-64, "7f"),
        (64, "8001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
        (2**63 - 1, "feffffffffffffffff01"),
        (-(2**63), "ffffffffffffffffff01"),
    ],
)
def test_known_varints(value: int, encoded: str) -> None:
    """ZigZag integers have the same bytes as in protocol buffers."""
    out = bytearray()
    write_varint(out, value)
    assert out.hex() == encoded
    assert varint_size(value) == len(out)
    assert read_varlong(out, 0) == (value, len(out))
    if -(2**31) <= value < 2**31:
        assert read_varint(out, 0) == (value, len(out))


@given(INT64)
def test_varlongs_round_trip(value: int) -> None:
    """Signed integers of 64 bits survive encoding."""
    out = bytearray(b"?")
    write_varint(out, value)
    assert read_varlong(out, 1) == (value, len(out))
    assert varint_size(value) == len(out) - 1


def test_long_and_cut_varints_are_corrupt() -> None:
    """Integers of six bytes for 32 bits, eleven bytes for 64, or with a premature end are corrupt."""
    for data, read in ((b"\xff" * 5 + b"\1", read_varint), (b"\xff" * 10 + b"\1", read_varlong)):
        with pytest.raises(CorruptBatch, match="more than"):
            read(data, 0)
    for read in (read_varint, read_varlong):
        for data in (b"", b"\x80", b"\xff\xff"):
            with pytest.raises(CorruptBatch, match="cut off"):
                read(data, 0)
