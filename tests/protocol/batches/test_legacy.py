"""Messages of magic 0 and 1."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.protocol.batches import compression
from diamant.protocol.batches.batch import crc_is_valid, iter_headers
from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.batches.header import Record
from diamant.protocol.batches.legacy import parse_entry, parse_legacy_header
from diamant.protocol.errors import CorruptBatch, DecompressionBomb
from tests.builder import TIMESTAMP, make_message, make_records, make_wrapper
from tests.effort import examples

CODECS = [compression.GZIP, compression.SNAPPY, compression.LZ4]


def test_a_message_written_out_by_hand() -> None:
    """The layout is the documented one, field by field."""
    body = bytes.fromhex("01 08 0000018bcfe56800 00000001 6b ffffffff")
    data = bytes.fromhex("0000000000000005 0000001b")[:8] + (len(body) + 4).to_bytes(4, "big")
    data += zlib.crc32(body).to_bytes(4, "big") + body
    entry = parse_entry(data)
    assert (entry.offset, entry.magic, entry.timestamp, entry.key, entry.value) == (5, 1, TIMESTAMP, b"k", None)
    header = parse_legacy_header(data)
    assert header.is_log_append_time
    assert (header.base_offset, header.size, header.record_count, header.producer_id) == (5, len(data), 1, -1)
    assert (header.partition_leader_epoch, header.max_timestamp) == (-1, TIMESTAMP)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(("key", "value"), [(None, None), (b"", b""), (b"k", b"v"), (None, b"v" * 300), (b"k", None)])
def test_plain_messages(magic: int, key: bytes | None, value: bytes | None) -> None:
    """A plain message is one record; magic 0 has no timestamp."""
    message = b"??" + make_message(magic, 77, key, value, timestamp=5)
    assert list(iter_records(message, 2)) == [Record(77, 5 if magic else -1, key, value)]
    assert crc_is_valid(message, 2, len(message) - 2)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", CODECS)
def test_a_wrapper_yields_records_with_absolute_offsets(magic: int, codec: int) -> None:
    """A wrapper yields records with absolute offsets, in magic 0 with gaps, and its base offset."""
    records = make_records(["a=1", "b=", "c"], base_offset=500)
    wrapper = make_wrapper(magic, codec, records)
    expected = records if magic else [record._replace(timestamp=-1) for record in records]
    assert list(iter_records(wrapper)) == expected
    header = parse_legacy_header(wrapper)
    assert (header.base_offset, header.last_offset, header.record_count, header.codec) == (500, 502, 3, codec)
    assert header.max_timestamp == (TIMESTAMP + 2 if magic else -1)
    assert crc_is_valid(wrapper, 0, len(wrapper))


def test_wrapper_of_offset_zero_has_base_zero() -> None:
    """A wrapper with offset 0 has inner offsets from 0 on, as written by old librdkafka."""
    records = make_records(["a=1", "b=2", "c=3"])
    wrapper = bytearray(make_wrapper(1, compression.GZIP, records))
    wrapper[:8] = bytes(8)
    assert [record.offset for record in iter_records(wrapper)] == [0, 1, 2]
    assert parse_legacy_header(wrapper).base_offset == 0


def test_wrapper_offset_below_its_records_is_corrupt() -> None:
    """A wrapper of magic 1 cannot have an offset less than the relative one of its last record."""
    wrapper = bytearray(make_wrapper(1, compression.GZIP, make_records(["a=1", "b=2", "c=3"])))
    wrapper[:8] = (1).to_bytes(8, "big")
    with pytest.raises(CorruptBatch, match="offset 1 is less"):
        iter_records(wrapper)


def _wrap(inner: bytes, magic: int = 1, codec: int = compression.GZIP) -> bytes:
    return make_message(magic, 9, None, compression.compress(codec, inner), attributes=codec)


@pytest.mark.parametrize("has_log_append_time", [False, True])
def test_entries_may_be_of_another_magic_than_their_wrapper(has_log_append_time: bool) -> None:
    """Mixed magics, as left by old cleaners (KAFKA-4298): the wrapper's magic determines offsets, the entry's the timestamps."""
    inner = make_message(0, 0, b"a", b"0") + make_message(1, 2, b"b", b"2", timestamp=5)
    value = compression.compress(compression.GZIP, inner)
    attributes = compression.GZIP | (8 if has_log_append_time else 0)
    wrapper = make_message(1, 12, None, value, timestamp=7, attributes=attributes)
    assert list(iter_records(wrapper)) == [
        Record(10, -1, b"a", b"0"),
        Record(12, 7 if has_log_append_time else 5, b"b", b"2"),
    ]
    assert parse_legacy_header(wrapper).base_offset == 10
    inner = make_message(1, 11, b"a", b"0", timestamp=5) + make_message(0, 12, b"b", b"2")
    wrapper = make_message(0, 12, None, compression.compress(compression.GZIP, inner), attributes=compression.GZIP)
    assert list(iter_records(wrapper)) == [Record(11, 5, b"a", b"0"), Record(12, -1, b"b", b"2")]


def test_bad_wrappers_are_corrupt() -> None:
    """Nested wrappers, missing values or entries, later codecs, wrong inner CRCs and cut-off entries are corrupt."""
    inner = make_message(1, 0, b"k", b"v")
    assert len(list(iter_records(_wrap(inner)))) == 1
    bad = {
        "inside a compressed entry": _wrap(_wrap(inner)),
        "has no value": make_message(1, 9, None, None, attributes=1),
        "holds no entries": _wrap(b""),
        "codec is 4": make_message(1, 9, None, compression.compress(compression.ZSTD, inner), attributes=4),
        "CRC": _wrap(inner[:-1] + b"w"),
        "only": _wrap(inner + inner[:-1]),
        "has at least 18 bytes": _wrap(inner + b"abc"),
        "gzip": make_message(1, 9, None, b"no gzip at all", attributes=1),
    }
    for reason, wrapper in bad.items():
        for read in (iter_records, parse_legacy_header):
            with pytest.raises(CorruptBatch, match=reason):
                read(wrapper)


def test_bad_messages_are_corrupt() -> None:
    """Lengths that do not fit are corrupt, in any field."""
    good = make_message(1, 0, b"key", b"value")
    bad = {
        "only": good[:-1],
        "needs at least 22": good[:8] + (21).to_bytes(4, "big") + good[12:],
        "left": good[:26] + (500).to_bytes(4, "big") + good[30:],
        "are left after": good[:26] + (2).to_bytes(4, "big") + b"ke" + bytes(4) + good[36:],
    }
    for reason, message in bad.items():
        with pytest.raises(CorruptBatch, match=reason):
            parse_entry(message)


def test_wrapper_bombs_are_bounded() -> None:
    """The caller's bound limits the decompressed size of a wrapper."""
    wrapper = make_wrapper(1, compression.GZIP, make_records([b"x" * 100_000]))
    with pytest.raises(DecompressionBomb):
        iter_records(wrapper, max_bytes=50_000)


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from([0, 1]), st.sampled_from([0, *CODECS]), st.data())
def test_damage_raises_corrupt_batch_or_nothing(magic: int, codec: int, data: st.DataObject) -> None:
    """Flipped bytes in messages and wrappers never raise anything but CorruptBatch."""
    records = make_records(["a=1", "b=2", "c=3"], base_offset=4)
    entry = bytearray(make_wrapper(magic, codec, records) if codec else make_message(magic, 4, b"k", b"v"))
    for _ in range(data.draw(st.integers(1, 4))):
        entry[data.draw(st.integers(0, len(entry) - 1))] = data.draw(st.integers(0, 255))
    for read in (iter_headers, iter_records):
        try:
            list(read(entry))
        except CorruptBatch:
            pass
