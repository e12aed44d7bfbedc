"""Batches and control records of the metadata log equal bytes that Kafka's own classes accept."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diamant.protocol.batches.batch import crc_is_valid, iter_headers, update_crc
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
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    Endpoint,
    EndTransactionRecord,
    FeatureLevelRecord,
    FeatureRange,
    MalformedRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    TopicRecord,
    UnsupportedRecord,
    decode_record,
    encode_record,
)

TIME_MS = 1_700_000_000_000
TOPIC_ID = UUID(bytes=bytes(range(0x01, 0x11)))
DIRECTORY_ID = UUID(bytes=bytes(range(0x11, 0x21)))
INCARNATION_ID = UUID(bytes=bytes(range(0x21, 0x31)))
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
FRESH_LOG = bytes.fromhex(
    "00000000000000000000004f00000001021154eaf90020000000000000018bcfe568000000018bcfe56800ffffffffffffffffff"
    "ffffffffff000000013a00000008000000022600000000000102000000010002000000010000000000000000000001000000b500"
    "000001020782143a0000000000040000018bcfe568000000018bcfe56800ffffffffffffffffffffffffffff000000053c000000"
    "013001170001001212426f6f747374726170207265636f726473003a000002012e010c00116d657461646174612e76657273696f"
    "6e00190000340000040128010c000e67726f75702e76657273696f6e00010000400000060134010c00147472616e73616374696f"
    "6e2e76657273696f6e0002000014000008010801180000000000000000000006000000c40000000102a6de1f2b00000000000000"
    "00018bcfe568000000018bcfe56800ffffffffffffffffffffffffffff00000001a202000000019402011b000000000121222324"
    "25262728292a2b2c2d2e2f3000020b434f4e54524f4c4c45520a6c6f63616c686f7374238500000005116d657461646174612e76"
    "657273696f6e00070019000e67726f75702e76657273696f6e0000000100147472616e73616374696f6e2e76657273696f6e0000"
    "0002000e6b726166742e76657273696f6e000000010000000000000000000007000000e1000000010286ec949200000000000000"
    "00018bcfe568000000018bcfe56800ffffffffffffffffffffffffffff00000001dc0200000001ce020100030000000100212223"
    "2425262728292a2b2c2d2e2f300000000000000007020a504c41494e544558540a6c6f63616c686f7374238400000005116d6574"
    "61646174612e76657273696f6e00070019000e67726f75702e76657273696f6e0000000100147472616e73616374696f6e2e7665"
    "7273696f6e00000002000e6b726166742e76657273696f6e0000000100000100010011021112131415161718191a1b1c1d1e1f20"
    "0000000000000000080000004b000000010260790f9f0000000000000000018bcfe568000000018bcfe56800ffffffffffffffff"
    "ffffffffffff00000001320000000126011100000000010000000000000007010001ff000000000000000009000000c100000001"
    "02cc1e11260000000000020000018bcfe568000000018bcfe56800ffffffffffffffffffffffffffff000000033c000000013001"
    "020004666f6f0102030405060708090a0b0c0d0e0f1000004c00000201400104000204666f6f0f636c65616e75702e706f6c6963"
    "7908636f6d7061637400009001000004018201010302000000000102030405060708090a0b0c0d0e0f1002000000010200000001"
    "0101000000010000000000000000021112131415161718191a1b1c1d1e1f200000000000000000000c000000500000000102525d"
    "a59b0000000000000000018bcfe568000000018bcfe56800ffffffffffffffffffffffffffff000000013c0000000130010f0000"
    "000001000000000000000700000000000003e80000"
)

FEATURES = (
    FeatureRange("metadata.version", 7, 25),
    FeatureRange("group.version", 0, 1),
    FeatureRange("transaction.version", 0, 2),
    FeatureRange("kraft.version", 0, 1),
)
FRESH_BATCHES: list[list[MetadataRecord]] = [
    [
        BeginTransactionRecord(name="Bootstrap records"),
        FeatureLevelRecord(name="metadata.version", feature_level=25),
        FeatureLevelRecord(name="group.version", feature_level=1),
        FeatureLevelRecord(name="transaction.version", feature_level=2),
        EndTransactionRecord(),
    ],
    [
        RegisterControllerRecord(
            controller_id=1,
            incarnation_id=INCARNATION_ID,
            end_points=(Endpoint("CONTROLLER", "localhost", 9093),),
            features=FEATURES,
        )
    ],
    [
        RegisterBrokerRecord(
            broker_id=1,
            incarnation_id=INCARNATION_ID,
            broker_epoch=7,
            end_points=(Endpoint("PLAINTEXT", "localhost", 9092),),
            features=FEATURES,
            log_dirs=(DIRECTORY_ID,),
        )
    ],
    [BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=7, fenced=-1)],
    [
        TopicRecord(name="foo", topic_id=TOPIC_ID),
        ConfigRecord(resource_type=2, resource_name="foo", name="cleanup.policy", value="compact"),
        PartitionRecord(
            partition_id=0,
            topic_id=TOPIC_ID,
            replicas=(1,),
            isr=(1,),
            leader=1,
            leader_epoch=0,
            partition_epoch=0,
            directories=(DIRECTORY_ID,),
        ),
    ],
    [ProducerIdsRecord(broker_id=1, broker_epoch=7, next_producer_id=1000)],
]


def encode(records: list[MetadataRecord], base_offset: int, epoch: int = 1) -> bytes:
    """Return a batch of records in the versions of metadata.version 25."""
    values = [encode_record(record, metadata_version=25) for record in records]
    return encode_metadata_batch(values, base_offset=base_offset, leader_epoch=epoch, timestamp_ms=TIME_MS)


def controls(batch: bytes) -> list[ControlRecord]:
    """Return the control records of a batch."""
    return [decode_control_record(key or b"", value) for key, value in decode_batch(batch, 0, parse_header(batch))]


def test_a_batch_of_two_records() -> None:
    """A topic and its config in one batch are the 131 bytes that Kafka's reader accepts."""
    assert encode(FRESH_BATCHES[4][:2], 7, 3) == TWO_RECORDS
    assert len(TWO_RECORDS) == 131


def test_a_leader_change_batch() -> None:
    """The batch that begins an epoch with voters from the configuration."""
    records = [LeaderChange(1, (1,), (1,))]
    assert encode_control_batch(records, base_offset=0, leader_epoch=1, timestamp_ms=TIME_MS) == LEADER_CHANGE_BATCH
    assert controls(LEADER_CHANGE_BATCH) == records


def test_the_first_batch_with_voters_in_the_log() -> None:
    """The batch that begins the first epoch of a log that holds its own voters."""
    records = [LeaderChange(1, (1,), (1,)), KRaftVersion(1), VOTERS]
    assert encode_control_batch(records, base_offset=0, leader_epoch=1, timestamp_ms=TIME_MS) == FIRST_BATCH_WITH_VOTERS
    assert controls(FIRST_BATCH_WITH_VOTERS) == records


def test_a_whole_fresh_log() -> None:
    """The log of a fresh node with one topic, batch by batch, is what Kafka's reader and replay accept."""
    log = bytearray(LEADER_CHANGE_BATCH)
    offset = 1
    for records in FRESH_BATCHES:
        log += encode(records, offset)
        offset += len(records)
    assert bytes(log) == FRESH_LOG
    assert (len(log), offset) == (1113, 13)


def test_a_whole_fresh_log_is_read() -> None:
    """Reading the same log gives the same records."""
    batches = []
    for position, header in iter_headers(FRESH_LOG):
        assert crc_is_valid(FRESH_LOG, position, header.size)
        if not header.is_control:
            pairs = decode_batch(FRESH_LOG, position, header)
            batches.append([decode_record(value) for _, value in pairs])
    assert batches == FRESH_BATCHES


def test_an_empty_batch_is_refused() -> None:
    """A batch without records is refused."""
    with pytest.raises(ValueError, match="at least one record"):
        encode_metadata_batch([], base_offset=0, leader_epoch=1, timestamp_ms=TIME_MS)


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
