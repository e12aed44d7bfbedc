"""Batches and control records of the metadata log equal bytes that Kafka's own classes accept."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from diamant.protocol.batches.batch import crc_is_valid, update_crc
from diamant.protocol.batches.header import parse_header
from diamant.protocol.errors import CorruptBatch
from diamant.protocol.kraft.batch import decode_batch, encode_control_batch, encode_metadata_batch
from diamant.protocol.kraft.control_records import (
    ControlRecord,
    KRaftVersion,
    KRaftVoters,
    LeaderChange,
    SnapshotFooter,
    SnapshotHeader,
    Voter,
    VoterEndpoint,
    decode_control_record,
    encode_control_record,
)
from diamant.protocol.kraft.records import (
    ConfigRecord,
    MetadataRecord,
    TopicRecord,
    encode_record,
)
from diamant.protocol.typed_records.wire_types import MalformedRecord, UnsupportedRecord

TIME_MS = 1_700_000_000_000
TOPIC_ID = UUID(bytes=bytes(range(0x01, 0x11)))
DIRECTORY_ID = UUID(bytes=bytes(range(0x11, 0x21)))
VOTERS = KRaftVoters((Voter(1, DIRECTORY_ID, (VoterEndpoint("CONTROLLER", "localhost", 9093),)),))

TWO_RECORDS = bytes.fromhex(
    "0000000000000007 00000077 00000003 02 7706f221 0000 00000001 0000018bcfe56800 0000018bcfe56800"
    "ffffffffffffffff ffff ffffffff 00000002"
    "3c00000001 30 01020004666f6f0102030405060708090a0b0c0d0e0f1000 00"
    "4c00000201 40 0104000204666f6f0f636c65616e75702e706f6c69637908636f6d7061637400 00"
)
LEADER_CHANGE_BATCH = bytes.fromhex(
    "00000000000000000000004f00000001021154eaf90020000000000000018bcfe568000000018bcfe56800ffffffffffffffffff"
    "ffffffffff000000013a0000000800000002260000000000010200000001000200000001000000"
)
FIRST_BATCH_WITH_VOTERS = bytes.fromhex(
    "0000000000000000000000a200000001023118b9e10020000000020000018bcfe568000000018bcfe56800ffffffffffffffffff"
    "ffffffffff000000033a00000008000000022600000000000102000000010002000000010000001e00000208000000050a000000"
    "010000820100000408000000066e000002000000011112131415161718191a1b1c1d1e1f20020b434f4e54524f4c4c45520a6c6f"
    "63616c686f73742385000000000100000000"
)


def controls(batch: bytes) -> list[ControlRecord]:
    """Return the control records of a batch."""
    return [decode_control_record(key or b"", value) for key, value in decode_batch(batch, 0, parse_header(batch))]


def test_a_batch_of_two_records() -> None:
    """A topic and its config in one batch are the 131 bytes that Kafka's reader accepts."""
    records: list[MetadataRecord] = [
        TopicRecord(name="foo", topic_id=TOPIC_ID),
        ConfigRecord(resource_type=2, resource_name="foo", name="cleanup.policy", value="compact"),
    ]
    values = [encode_record(record, metadata_version=25) for record in records]
    assert encode_metadata_batch(values, base_offset=7, leader_epoch=3, timestamp_ms=TIME_MS) == TWO_RECORDS
    assert crc_is_valid(TWO_RECORDS, 0, 131)
    assert decode_batch(TWO_RECORDS, 0, parse_header(TWO_RECORDS)) == [(None, value) for value in values]


@pytest.mark.parametrize(
    ("records", "batch"),
    [
        ([LeaderChange(1, (1,), (1,))], LEADER_CHANGE_BATCH),
        ([LeaderChange(1, (1,), (1,)), KRaftVersion(1), VOTERS], FIRST_BATCH_WITH_VOTERS),
    ],
    ids=["voters from the configuration", "voters in the log"],
)
def test_the_batch_that_begins_an_epoch(records: list[ControlRecord], batch: bytes) -> None:
    """The control records of a log's first batch have Kafka's bytes."""
    assert encode_control_batch(records, base_offset=0, leader_epoch=1, timestamp_ms=TIME_MS) == batch
    assert controls(batch) == records


def test_an_empty_batch_is_refused() -> None:
    """A batch without records is refused."""
    with pytest.raises(ValueError, match="at least one record"):
        encode_metadata_batch([], base_offset=0, leader_epoch=1, timestamp_ms=TIME_MS)


@example([bytes(63), bytes(64), bytes(20_000)], 0)
@given(st.lists(st.binary(max_size=20_000), min_size=1, max_size=70), st.integers(0, 2**62))
def test_values_survive(values: list[bytes], base_offset: int) -> None:
    """Values of any size survive encoding, at any position of a buffer."""
    batch = encode_metadata_batch(values, base_offset=base_offset, leader_epoch=5, timestamp_ms=TIME_MS)
    buffer = b"xyz" + batch + b"more"
    header = parse_header(buffer, 3)
    assert (header.size, header.next_offset) == (len(batch), base_offset + len(values))
    assert crc_is_valid(batch, 0, len(batch))
    assert decode_batch(buffer, 3, header) == [(None, value) for value in values]


@given(st.data())
def test_damage_raises_corrupt_batch_only(data: st.DataObject) -> None:
    """A change of any byte after the header, even with an updated checksum, raises only CorruptBatch."""
    damaged = bytearray(TWO_RECORDS)
    position = data.draw(st.integers(57, len(damaged) - 1))
    damaged[position] = data.draw(st.integers(0, 255))
    update_crc(damaged, 0)
    try:
        pairs = decode_batch(bytes(damaged), 0, parse_header(damaged))
    except CorruptBatch:
        return
    assert len(pairs) == 2


def test_a_compressed_batch_is_refused() -> None:
    """Kafka never compresses the metadata log; a compressed batch is corrupt."""
    batch = bytearray(TWO_RECORDS)
    batch[22] = 1
    with pytest.raises(CorruptBatch, match="compressed with codec 1, expected none"):
        decode_batch(bytes(batch), 0, parse_header(batch))


@pytest.mark.parametrize(
    "record",
    [
        LeaderChange(3, (1, 2, 3), (2, 3)),
        SnapshotHeader(TIME_MS),
        SnapshotFooter(),
        KRaftVersion(1),
        VOTERS,
        KRaftVoters(()),
    ],
)
def test_control_records_survive(record: ControlRecord) -> None:
    """Every control record survives encoding, and all its prefixes are malformed."""
    key, value = encode_control_record(record)
    assert decode_control_record(key, value) == record
    for size in range(len(value)):
        with pytest.raises(MalformedRecord):
            decode_control_record(key, value[:size])


def test_the_newer_leader_change_is_read() -> None:
    """Version 1 names the directory of each voter as well (KIP-853)."""
    voter = "00000001" + DIRECTORY_ID.bytes.hex() + "00"
    value = bytes.fromhex("0001" + "00000001" + "02" + voter + "02" + voter + "00")
    assert decode_control_record(bytes.fromhex("00000002"), value) == LeaderChange(1, (1,), (1,))


def test_unknown_control_records_are_refused() -> None:
    """A type or version that Kafka 4.3 does not have is unsupported; too short a key is malformed."""
    with pytest.raises(UnsupportedRecord, match="type 7"):
        decode_control_record(bytes.fromhex("00000007"), bytes.fromhex("000000"))
    with pytest.raises(UnsupportedRecord, match="version 2"):
        decode_control_record(bytes.fromhex("00000006"), bytes.fromhex("00020100"))
    with pytest.raises(MalformedRecord):
        decode_control_record(b"\0", bytes.fromhex("000000"))
