"""Metadata records equal bytes that Kafka's own classes wrote or read; invalid bytes are refused."""

from __future__ import annotations

import re
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diamant.protocol.kraft.records import (
    RECORD_TYPES,
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    Endpoint,
    EndTransactionRecord,
    FeatureLevelRecord,
    FeatureRange,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    QuotaEntity,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
    ZkMigrationStateRecord,
    decode_record,
    encode_record,
    record_version,
)
from diamant.protocol.typed_records.wire_types import MalformedRecord, UnsupportedRecord
from tests.protocol.random_records import values_of

TOPIC_ID = UUID(bytes=bytes(range(0x01, 0x11)))
DIRECTORY_ID = UUID(bytes=bytes(range(0x11, 0x21)))
INCARNATION_ID = UUID(bytes=bytes(range(0x21, 0x31)))
PLAINTEXT = Endpoint("PLAINTEXT", "localhost", 9092)
CONTROLLER = Endpoint("CONTROLLER", "localhost", 9093)
METADATA_FEATURE = FeatureRange("metadata.version", 7, 25)

PARTITION = PartitionRecord(
    partition_id=0,
    topic_id=TOPIC_ID,
    replicas=(1,),
    isr=(1,),
    leader=1,
    leader_epoch=0,
    partition_epoch=0,
    directories=(DIRECTORY_ID,),
)
REGISTRATION = RegisterBrokerRecord(
    broker_id=1,
    incarnation_id=INCARNATION_ID,
    broker_epoch=8,
    end_points=(PLAINTEXT,),
    features=(METADATA_FEATURE,),
    log_dirs=(DIRECTORY_ID,),
)

UNFENCED = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=8, fenced=-1)

# Values written by Kafka's MetadataRecordSerde (4.0 sources), the last four by a Kafka 4.3.1 broker: directories cordoned or not,
# a partition without leader at a clean stop, and one that is led again.
GOLDEN: list[tuple[int, MetadataRecord, str]] = [
    (0, TopicRecord(name="foo", topic_id=TOPIC_ID), "01020004666f6f0102030405060708090a0b0c0d0e0f1000"),
    (
        0,
        ConfigRecord(resource_type=2, resource_name="foo", name="cleanup.policy", value="compact"),
        "0104000204666f6f0f636c65616e75702e706f6c69637908636f6d7061637400",
    ),
    (
        0,
        ConfigRecord(resource_type=2, resource_name="foo", name="cleanup.policy", value=None),
        "0104000204666f6f0f636c65616e75702e706f6c6963790000",
    ),
    (0, FeatureLevelRecord(name="group.version", feature_level=1), "010c000e67726f75702e76657273696f6e000100"),
    (0, BeginTransactionRecord(name="Bootstrap records"), "01170001001212426f6f747374726170207265636f726473"),
    (0, BeginTransactionRecord(), "01170000"),
    (0, EndTransactionRecord(), "01180000"),
    (
        0,
        AbortTransactionRecord(reason="Controller failover"),
        "01190001001414436f6e74726f6c6c6572206661696c6f766572",
    ),
    (0, NoOpRecord(), "01140000"),
    (0, ZkMigrationStateRecord(zk_migration_state=0), "0115000000"),
    (
        1,
        PARTITION,
        "010301000000000102030405060708090a0b0c0d0e0f1002000000010200000001010100000001"
        "0000000000000000021112131415161718191a1b1c1d1e1f2000",
    ),
    (
        2,
        PARTITION,
        "010302000000000102030405060708090a0b0c0d0e0f1002000000010200000001010100000001"
        "0000000000000000021112131415161718191a1b1c1d1e1f2000",
    ),
    (
        2,
        PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, isr=(1,), leader=1, directories=(DIRECTORY_ID,)),
        "010502000000000102030405060708090a0b0c0d0e0f1003000502000000010104000000010811021112131415161718191a1b1c1d1e1f20",
    ),
    (
        3,
        REGISTRATION,
        "01000300000001002122232425262728292a2b2c2d2e2f300000000000000008020a504c41494e544558540a6c6f63616c686f7374"
        "238400000002116d657461646174612e76657273696f6e0007001900000100010011021112131415161718191a1b1c1d1e1f20",
    ),
    (0, UNFENCED, "011100000000010000000000000008010001ff"),
    (
        1,
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=8, in_controlled_shutdown=1),
        "01110100000001000000000000000801010101",
    ),
    (0, UnregisterBrokerRecord(broker_id=1, broker_epoch=8), "01010000000001000000000000000800"),
    (
        0,
        RegisterControllerRecord(
            controller_id=1, incarnation_id=INCARNATION_ID, end_points=(CONTROLLER,), features=(METADATA_FEATURE,)
        ),
        "011b00000000012122232425262728292a2b2c2d2e2f3000020b434f4e54524f4c4c45520a6c6f63616c686f737423850000000211"
        "6d657461646174612e76657273696f6e000700190000",
    ),
    (0, RemoveTopicRecord(topic_id=TOPIC_ID), "0109000102030405060708090a0b0c0d0e0f1000"),
    (
        0,
        ProducerIdsRecord(broker_id=1, broker_epoch=8, next_producer_id=1000),
        "010f0000000001000000000000000800000000000003e800",
    ),
    (
        0,
        ClientQuotaRecord(
            entity=(QuotaEntity("user", "alice"), QuotaEntity("client-id", None)),
            key="producer_byte_rate",
            value=1048576.0,
            remove=False,
        ),
        "010e0003057573657206616c696365000a636c69656e742d696400001370726f64756365725f627974655f7261746541300000000000000000",
    ),
    (
        0,
        UserScramCredentialRecord(
            name="alice", mechanism=1, salt=b"\1\2\3", stored_key=b"\4\5", server_key=b"\6\7", iterations=4096
        ),
        "010b0006616c69636501040102030304050306070000100000",
    ),
    (0, RemoveUserScramCredentialRecord(name="alice", mechanism=1), "01160006616c6963650100"),
    (
        0,
        AccessControlEntryRecord(
            id=TOPIC_ID,
            resource_type=2,
            resource_name="foo",
            pattern_type=3,
            principal="User:alice",
            host="*",
            operation=3,
            permission_type=3,
        ),
        "0112000102030405060708090a0b0c0d0e0f100204666f6f030b557365723a616c696365022a030300",
    ),
    (0, RemoveAccessControlEntryRecord(id=TOPIC_ID), "0113000102030405060708090a0b0c0d0e0f1000"),
    (
        3,
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=13, cordoned_log_dirs=()),
        "01110300000001000000000000000d01030101",
    ),
    (
        3,
        BrokerRegistrationChangeRecord(
            broker_id=1, broker_epoch=49, cordoned_log_dirs=(UUID("feef08b2-02ac-4e64-87b2-015ef3d57635"),)
        ),
        "01110300000001000000000000003101031102feef08b202ac4e6487b2015ef3d57635",
    ),
    (
        2,
        PartitionChangeRecord(
            partition_id=0,
            topic_id=UUID("9696decc-bc4d-4187-a3bd-93dc51ca3bcc"),
            isr=(),
            leader=-1,
            eligible_leader_replicas=(1,),
            last_known_elr=(1,),
        ),
        "010502000000009696deccbc4d4187a3bd93dc51ca3bcc040001010104ffffffff0605020000000107050200000001",
    ),
    (
        2,
        PartitionChangeRecord(
            partition_id=0,
            topic_id=UUID("37c3b75e-ea9f-4437-93fe-37d6da8add39"),
            isr=(1,),
            leader=1,
            eligible_leader_replicas=(),
            last_known_elr=(),
        ),
        "0105020000000037c3b75eea9f443793fe37d6da8add390400050200000001010400000001060101070101",
    ),
]


@pytest.mark.parametrize(("version", "record", "encoded"), GOLDEN)
def test_records_have_kafkas_bytes(version: int, record: MetadataRecord, encoded: str) -> None:
    """A record has, byte for byte, Kafka's form; cut off anywhere, or with an extra byte, that is malformed."""
    assert encode_record(record, version=version).hex() == encoded
    value = bytes.fromhex(encoded)
    assert decode_record(value) == record
    for size in range(len(value)):
        with pytest.raises(MalformedRecord):
            decode_record(value[:size])
    with pytest.raises(MalformedRecord, match="left over"):
        decode_record(value + b"\0")


def test_unknown_tags_are_skipped() -> None:
    """A tagged field that a later Kafka adds to a known version is skipped."""
    value = bytearray(encode_record(TopicRecord(name="foo", topic_id=TOPIC_ID)))
    value[-1:] = bytes.fromhex("02 05 03 aabbcc 90 4e 00".replace(" ", ""))
    assert decode_record(bytes(value)) == TopicRecord(name="foo", topic_id=TOPIC_ID)
    unfenced = bytearray(encode_record(UNFENCED))
    unfenced[-4:] = bytes.fromhex("020001ff7f0100")
    assert decode_record(bytes(unfenced)) == UNFENCED


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("011100000000010000000000000008" + "02" + "0001ff" + "0001ff", "tag 0 after tag 0"),
        ("010e00" + "ffff03", "array of 65534 elements"),
        ("010e00" + "00", "null at byte 3, expected an array"),
        ("010200" + "ffffffffff01", "does not end within 32 bits"),
        ("", "expected frame version 1"),
        ("00140000", "expected frame version 1"),
        ("02140000", "expected frame version 1"),
    ],
)
def test_bytes_that_are_no_record_are_malformed(value: str, complaint: str) -> None:
    """A repeated tag, an array larger than the record, a long integer, and any frame version but 1 are refused."""
    with pytest.raises(MalformedRecord, match=complaint):
        decode_record(bytes.fromhex(value))


@pytest.mark.parametrize("api_key", sorted(RECORD_TYPES))
def test_a_higher_version_is_refused(api_key: int) -> None:
    """A higher version than the known ones is unsupported, and the message lists the known ones."""
    record_class, max_version = RECORD_TYPES[api_key]
    with pytest.raises(
        UnsupportedRecord, match=f"{record_class.__name__} v{max_version + 1}: versions 0 to {max_version}"
    ):
        decode_record(bytes((1, api_key, max_version + 1, 0)))


@pytest.mark.parametrize("api_key", [6, 13, 16, 30, 100])
def test_an_unknown_record_type_is_refused(api_key: int) -> None:
    """An api key that no Kafka up to 4.4 has is unsupported."""
    with pytest.raises(UnsupportedRecord, match=f"api key {api_key} "):
        decode_record(bytes((1, api_key, 0, 0)))


def test_versions_follow_the_metadata_version() -> None:
    """Partitions and registrations are written in metadata.version's version, others in the lowest there is."""
    by_level = {level: record_version(PARTITION, level) for level in (7, 16, 17, 22, 23, 25, 30)}
    assert by_level == {7: 0, 16: 0, 17: 1, 22: 1, 23: 2, 25: 2, 30: 2}
    by_level = {level: record_version(REGISTRATION, level) for level in (7, 8, 16, 17, 29, 30)}
    assert by_level == {7: 1, 8: 2, 16: 2, 17: 3, 29: 3, 30: 4}
    change = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=2, log_dirs=(DIRECTORY_ID,))
    assert record_version(change, 30) == 2


def test_a_value_that_a_version_cannot_hold_is_refused() -> None:
    """Nothing is dropped silently: a field that the version lacks must be at its default."""
    change = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=2, cordoned_log_dirs=())
    with pytest.raises(MalformedRecord, match=r"BrokerRegistrationChangeRecord v2 has no cordoned_log_dirs, got \(\)"):
        encode_record(change, version=2)
    elr = PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, eligible_leader_replicas=(1,))
    with pytest.raises(MalformedRecord, match="has no eligible_leader_replicas"):
        encode_record(elr, metadata_version=22)


def test_directories_are_left_out_where_there_are_none() -> None:
    """Before metadata.version 17 a partition is written without its directories, as Kafka does."""
    decoded = decode_record(encode_record(PARTITION, metadata_version=16))
    assert isinstance(decoded, PartitionRecord)
    assert decoded.directories == ()
    assert decoded.replicas == (1,)


def test_a_value_out_of_range_is_refused() -> None:
    """A number that does not fit its field, or a missing text, raises an error that names the record."""
    with pytest.raises(MalformedRecord, match=re.escape("FeatureLevelRecord(name='x', feature_level=40000)")):
        encode_record(FeatureLevelRecord(name="x", feature_level=40000))
    with pytest.raises(MalformedRecord):
        encode_record(ConfigRecord(resource_type=2, resource_name=None, name="x", value=None))  # type: ignore[arg-type]


@given(st.sampled_from([*RECORD_TYPES.values()]).flatmap(lambda kind: st.tuples(values_of(kind[0]), st.just(kind[1]))))
def test_any_record_is_read_back_as_it_was_written(record: tuple[MetadataRecord, int]) -> None:
    """Any record survives encoding in the newest version of its type."""
    assert decode_record(encode_record(record[0], version=record[1])) == record[0]


@given(st.binary(max_size=120), st.sampled_from(sorted(RECORD_TYPES)), st.integers(0, 4))
def test_hostile_bytes_raise_nothing_else(body: bytes, api_key: int, version: int) -> None:
    """Whatever the bytes, decoding gives a record or one of the two errors."""
    try:
        decode_record(bytes((1, api_key, version)) + body)
    except (MalformedRecord, UnsupportedRecord):
        pass
