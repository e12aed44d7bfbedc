"""The scan of a `__consumer_offsets` log: bytes only, without a broker."""

from __future__ import annotations

import logging
import random

import pytest

from diamant.protocol.batches import compression
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import build_batch, iter_records
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import CorruptBatch
from diamant.protocol.internal_topics.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    encode_record,
)
from tests.broker.groups.offsets.offsets_log import OffsetsLog, commit_record, committed, load, pending, replay
from tests.builder import TIMESTAMP, make_message, make_wrapper
from tests.effort import examples
from tests.golden_groups import consumer_offsets_log

DAY_MS = 86_400_000
PLACES = [(group, topic, partition) for group in ("g", "other") for topic in ("t", "u" * 70) for partition in (0, 7)]


def _random_log(rng: random.Random) -> OffsetsLog:
    log = OffsetsLog()
    producers = [1, 2, 3]
    for _ in range(rng.randrange(1, 40)):
        records = []
        for _ in range(rng.choice((1, 1, 1, 2, 3, 20))):
            kind = rng.random()
            if kind < 0.1:
                group = rng.choice(("g", "other", "third"))
                value = GroupMetadataValue("consumer", rng.randrange(9), None, None, 5)
                records.append(encode_record(GroupMetadataKey(group), value if kind < 0.07 else None))
            else:
                metadata = rng.choice(("", "", "m", "é" * 40, "x" * 100))
                offset = None if kind < 0.2 else rng.randrange(1000)
                records.append(commit_record(offset, *rng.choice(PLACES), metadata=metadata))
        codec = rng.choice((compression.NONE, compression.NONE, compression.GZIP, compression.ZSTD))
        step_ms = rng.choice((0, 0, 3, 10_000))
        horizon_ms = rng.choice((None, None, TIMESTAMP + rng.randrange(30 * DAY_MS)))
        kind = rng.random()
        if kind < 0.6:
            log.write(*records, codec=codec, timestamp_step_ms=step_ms, delete_horizon_ms=horizon_ms)
        elif kind < 0.85:
            log.write_pending(rng.choice(producers), *records, codec=codec, timestamp_step_ms=step_ms)
        else:
            log.end(rng.choice(producers), is_commit=rng.random() < 0.6)
    return log


def test_scans_are_replays() -> None:
    """Random logs, read in pieces of any size, equal their replay record by record."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(examples(300)):
        log = _random_log(rng)
        pieces = []
        rest = log.batches
        while rest:
            count = rng.randrange(1, 20)
            pieces.append(b"".join(rest[:count]))
            rest = rest[count:]
        loaded = load(pieces)
        offsets, open_offsets, others = replay(log.data)
        assert committed(loaded) == offsets
        assert pending(loaded) == open_offsets
        assert [record.key for record in loaded.records] == [key for key, _ in others]
        assert loaded.open_transactions == {
            (place[0], producer_id) for producer_id, some in open_offsets.items() for place in some
        }


def test_offsets_that_kafka_wrote_are_loaded() -> None:
    """The log of a real broker, with deleted, transactional and expiring offsets and groups of both protocols, is loaded."""
    loaded = load([consumer_offsets_log()])
    assert committed(loaded) == {
        ("simple-v8", "orders", 0): 10,
        ("simple-v8", "orders", 2): 12,
        ("simple-v2", "orders", 0): 10,
        ("simple-v2", "orders", 1): 11,
        ("simple-v2", "orders", 2): 12,
        ("classic", "orders", 0): 5,
        ("consumer", "regex-a", 0): 3,
        ("consumer", "regex-a", 1): 7,
    }
    assert [*pending(loaded).values()] == [{("consumer", "regex-a", 0): 8}]
    assert {record.key.group_id for record in loaded.records} >= {"classic", "consumer", "mixed"}


def test_messages_from_before_kafka_0_11_are_read() -> None:
    """Magic 0 and 1, plain and compressed, may be all that is left of a group."""
    key, value = commit_record(5)
    plain = make_message(1, 0, b"\x00\x00" + key[2:], value)
    wrapper = make_wrapper(0, compression.GZIP, [Record(1, -1, *commit_record(7, partition=1))])
    assert committed(load([plain + wrapper])) == {("g", "t", 0): 5, ("g", "t", 1): 7}
    assert committed(load([plain, wrapper])) == {("g", "t", 0): 5, ("g", "t", 1): 7}


def test_a_compacted_offsets_log_is_read() -> None:
    """Empty batches, gaps, and offset deltas that do not begin at 0."""
    log = OffsetsLog().write(commit_record(1), commit_record(2, partition=1))
    (_, header), *_ = iter_headers(log.data)
    second = list(iter_records(log.data))[1]
    kept = build_batch([second], base_offset=0, last_offset_delta=1)
    emptied = build_batch([], base_offset=2, last_offset_delta=5)
    tail = OffsetsLog()
    tail.next_offset = 20
    tail.write(commit_record(3))
    assert header.record_count == 2
    assert committed(load([bytes(kept + emptied) + tail.data])) == {("g", "t", 1): 2, ("g", "t", 0): 3}


def test_tombstones_that_wait_for_their_horizon_are_read() -> None:
    """After a round the base timestamp of their batch is the horizon: records lie days before it, by deltas of many bytes."""
    records = [
        *(commit_record(None, "h" * size) for size in (1, 60, 130)),
        *(encode_record(GroupMetadataKey("g" * size), None) for size in (1, 60, 130)),
    ]
    for days in range(40):
        horizon_ms = TIMESTAMP + days * DAY_MS + days
        for count in (1, 2, 6):
            log = OffsetsLog().write(commit_record(5)).write(*records[-count:], delete_horizon_ms=horizon_ms)
            loaded = load([log.write(commit_record(6, partition=1)).data])
            assert committed(loaded) == {("g", "t", 0): 5, ("g", "t", 1): 6}


def test_unknown_records_are_counted_and_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Records of a later Kafka give one warning, and everything else is loaded."""
    log = OffsetsLog().write((b"\x00\x09\x00\x01g", b"\x00\x00"), (b"\x00\x18\x00\x01g", b"\x00\x00"), commit_record(5))
    with caplog.at_level(logging.WARNING):
        assert committed(load([log.data])) == {("g", "t", 0): 5}
    assert "2 records of unknown types" in caplog.text


@pytest.mark.parametrize(
    "record",
    [
        (b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x00", b"\x00\x09garbage"),
        (b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x00", b""),
        (b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x00", b"\x00\x04" + bytes(40)),
        (b"\x00\x01\x00\x09g", commit_record(5)[1]),
        (b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x00\x00", commit_record(5)[1]),
        (b"\x00\x01\x00\x01g\x00\x01\xff\x00\x00\x00\x00", commit_record(5)[1]),
        (b"\x00", b"value"),
        (b"\x00\x02\x00\x01g", b"\x00\x03garbage"),
    ],
)
def test_records_that_cannot_be_read_are_corrupt(record: tuple[bytes, bytes]) -> None:
    """Invalid keys and values: the partition is not loaded, and the error names the record's offset."""
    for log in (OffsetsLog().write(record), OffsetsLog().write(commit_record(1, partition=3), record)):
        with pytest.raises(CorruptBatch, match=f"the record at offset {log.next_offset - 1}") as raised:
            load([log.data])
        # The text gets into logs, which hold no keys and values, in whatever form.
        assert all(not data or data.hex() not in str(raised.value) for data in record)


@pytest.mark.parametrize("is_pending", [False, True])
def test_an_offset_that_cannot_be_read_is_reported_by_where_it_is(is_pending: bool) -> None:
    """The error has the record's offset, but neither group, topic nor committed value."""
    key, value = commit_record(1, "ada@example.com", "orders", 3)
    assert value is not None
    for record in ((key, value[:-1]), (key + b"more", value)):
        log = OffsetsLog().write(commit_record(1, partition=3))
        log = log.write_pending(5, record) if is_pending else log.write(record)
        with pytest.raises(CorruptBatch, match="the record at offset 1: ") as raised:
            load([log.data])
        assert "ada" not in str(raised.value)
        assert key[:20].hex() not in str(raised.value)


def test_damaged_logs_are_corrupt_or_read() -> None:
    """A log that is truncated or overwritten anywhere raises CorruptBatch, or gives offsets; never another error."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    data = _random_log(rng).data
    for _ in range(examples(500)):
        damaged = bytearray(data)
        for _ in range(rng.randrange(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        end = rng.choice((len(damaged), rng.randrange(len(damaged) + 1)))
        try:
            load([bytes(damaged[:end])])
        except CorruptBatch:
            continue
