"""The records of `__consumer_offsets`: Kafka's own bytes, older versions, and malformed records."""

from __future__ import annotations

from collections import Counter
from struct import pack
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.header import Record
from diamant.protocol.batches.records import iter_records
from diamant.protocol.errors import CorruptBatch
from diamant.protocol.internal_topics import group_records
from diamant.protocol.internal_topics.group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    GroupMetadataMember,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    PartitionRacks,
    TopicMetadata,
    TopicPartitions,
    encode_offset_commit_key,
    encode_offset_commit_value,
    encode_record,
    parse_key,
    parse_offset_commit_value,
    parse_value,
)
from tests.golden_groups import consumer_offsets_log

TOPIC_ID = UUID("5c634385-ee50-4809-89c9-5f3acbd41ab3")


def _golden_records() -> list[Record]:
    log = consumer_offsets_log()
    return [
        record
        for position, header in iter_headers(log)
        if not header.is_control
        for record in iter_records(log, position)
    ]


def test_kafka_writes_what_we_write() -> None:
    """Records of a real broker, of every type, are unchanged byte for byte after parsing and encoding."""
    types: Counter[str] = Counter()
    for record in _golden_records():
        assert record.key is not None
        key = parse_key(record.key)
        assert key is not None
        value = None if record.value is None else parse_value(key, record.value)
        assert encode_record(key, value) == (record.key, record.value), key
        types[type(key).__name__] += 1
    assert set(types) == {
        "OffsetCommitKey",
        "GroupMetadataKey",
        "ConsumerGroupMetadataKey",
        "ConsumerGroupMemberMetadataKey",
        "ConsumerGroupTargetAssignmentMetadataKey",
        "ConsumerGroupTargetAssignmentMemberKey",
        "ConsumerGroupCurrentMemberAssignmentKey",
        "ConsumerGroupRegularExpressionKey",
    }


def test_what_kafka_wrote_means_what_was_asked() -> None:
    """Commits of real clients are read with their offsets, metadata, retention and topic."""
    commits = {}
    for record in _golden_records():
        assert record.key is not None
        key = parse_key(record.key)
        if isinstance(key, OffsetCommitKey) and record.value is not None:
            commits[key.group_id, key.topic, key.partition] = parse_offset_commit_value(record.value)
    commit = commits["simple-v8", "orders", 0]
    assert commit[:3] == (10, 5, "héllo 😀")
    assert commit.topic_id is not None
    assert commit.expire_timestamp == -1
    old = commits["simple-v2", "orders", 2]
    assert old[:3] == (12, -1, "")
    assert old.expire_timestamp - old.commit_timestamp == 10**12
    assert commits["classic", "orders", 0][:3] == (5, -1, "meta")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (pack(">hqhqq", 1, 7, 0, 1000, 2000), OffsetCommitValue(7, -1, "", 1000, 2000)),
        (pack(">hqh1sq", 0, 7, 1, b"m", 1000), OffsetCommitValue(7, -1, "m", 1000)),
        (pack(">hqhq", 2, 7, 0, 1000), OffsetCommitValue(7, -1, "", 1000)),
        (pack(">hqihq", 3, 7, 4, 0, 1000), OffsetCommitValue(7, 4, "", 1000)),
        (pack(">hqiBqB", 4, 7, 4, 1, 1000, 0), OffsetCommitValue(7, 4, "", 1000)),
    ],
)
def test_offsets_of_all_versions(value: bytes, expected: OffsetCommitValue) -> None:
    """Values of older brokers are parsed with the fields of their version."""
    assert parse_offset_commit_value(value) == expected


def test_groups_of_all_versions() -> None:
    """In version 0 the session timeout replaces the missing rebalance timeout; version 2 adds the state's timestamp."""
    text = pack(">h1s", 1, b"x")
    head = text + pack(">i", 3) + text + text
    member_0 = text * 3 + pack(">i", 9000) + pack(">i1s", 1, b"s") + pack(">i1s", 1, b"a")
    member = GroupMetadataMember("x", None, "x", "x", 9000, 9000, b"s", b"a")
    key = GroupMetadataKey("g")
    assert parse_value(key, b"\x00\x00" + head + pack(">i", 1) + member_0) == GroupMetadataValue(
        "x", 3, "x", "x", -1, (member,)
    )
    member_1 = text * 3 + pack(">ii", 500, 9000) + pack(">i1s", 1, b"s") + pack(">i1s", 1, b"a")
    assert parse_value(key, b"\x00\x02" + head + pack(">qi", 77, 1) + member_1) == GroupMetadataValue(
        "x", 3, "x", "x", 77, (member._replace(rebalance_timeout_ms=500),)
    )


def test_the_first_key_version_is_read() -> None:
    """Keys of type 0 equal those of type 1 but for the number."""
    key = encode_offset_commit_key("g", "t", 3)
    assert parse_key(b"\x00\x00" + key[2:]) == parse_key(key) == OffsetCommitKey("g", "t", 3)


@pytest.mark.parametrize("record_type", [9, 10, 11, 15, 17, 24, 32767])
def test_unknown_types_are_left_alone(record_type: int) -> None:
    """Records of share and streams groups, and of later brokers, are no error."""
    assert parse_key(pack(">hh1s", record_type, 1, b"g")) is None


_text = st.text(max_size=20)
_int32 = st.integers(-(2**31), 2**31 - 1)
_int64 = st.integers(-(2**63), 2**63 - 1)
_uuid = st.uuids()
_assignment = st.lists(
    st.builds(
        TopicPartitions,
        _uuid,
        st.lists(_int32, max_size=3).map(tuple),
        st.none() | st.lists(_int32, max_size=3).map(tuple),
    ),
    max_size=3,
).map(tuple)
_racks = st.lists(st.builds(PartitionRacks, _int32, st.lists(_text, max_size=2).map(tuple)), max_size=2).map(tuple)
_classic = st.builds(
    ClassicMemberMetadata, _int32, st.lists(st.builds(ClassicProtocol, _text, st.binary(max_size=9))).map(tuple)
)
_member = st.builds(
    GroupMetadataMember,
    _text,
    st.none() | _text,
    _text,
    _text,
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.binary(max_size=9),
    st.binary(max_size=9),
)
_records = st.one_of(
    st.tuples(
        st.builds(OffsetCommitKey, _text, _text, _int32),
        st.builds(OffsetCommitValue, _int64, _int32, _text, _int64, st.just(-1), st.none() | st.just(TOPIC_ID)),
    ),
    st.tuples(
        st.builds(GroupMetadataKey, _text),
        st.builds(
            GroupMetadataValue,
            _text,
            _int32,
            st.none() | _text,
            st.none() | _text,
            _int64,
            st.lists(_member, max_size=3).map(tuple),
        ),
    ),
    st.tuples(st.builds(ConsumerGroupMetadataKey, _text), st.builds(ConsumerGroupMetadataValue, _int32, _int64)),
    st.tuples(
        st.builds(ConsumerGroupPartitionMetadataKey, _text),
        st.builds(
            ConsumerGroupPartitionMetadataValue,
            st.lists(st.builds(TopicMetadata, st.just(TOPIC_ID), _text, _int32, _racks), max_size=3).map(tuple),
        ),
    ),
    st.tuples(
        st.builds(ConsumerGroupMemberMetadataKey, _text, _text),
        st.builds(
            ConsumerGroupMemberMetadataValue,
            st.none() | _text,
            st.none() | _text,
            _text,
            _text,
            st.lists(_text, max_size=3).map(tuple),
            st.none() | _text,
            _int32,
            st.none() | _text,
            st.none() | _classic,
        ),
    ),
    st.tuples(
        st.builds(ConsumerGroupTargetAssignmentMetadataKey, _text),
        st.builds(ConsumerGroupTargetAssignmentMetadataValue, _int32, _int64),
    ),
    st.tuples(
        st.builds(ConsumerGroupTargetAssignmentMemberKey, _text, _text),
        st.builds(ConsumerGroupTargetAssignmentMemberValue, _assignment),
    ),
    st.tuples(
        st.builds(ConsumerGroupCurrentMemberAssignmentKey, _text, _text),
        st.builds(
            ConsumerGroupCurrentMemberAssignmentValue, _int32, _int32, st.integers(0, 127), _assignment, _assignment
        ),
    ),
    st.tuples(
        st.builds(ConsumerGroupRegularExpressionKey, _text, _text),
        st.builds(ConsumerGroupRegularExpressionValue, st.lists(_text, max_size=3).map(tuple), _int64, _int64),
    ),
)


@settings(deadline=None)
@given(_records)
def test_records_are_read_as_they_were_written(record: tuple[Any, Any]) -> None:
    """Keys and values of all types survive encoding and parsing."""
    key, value = record
    encoded_key, encoded_value = encode_record(key, value)
    assert parse_key(encoded_key) == key
    assert encoded_value is not None
    assert parse_value(key, encoded_value) == value


@settings(deadline=None)
@given(_records, st.data())
def test_what_is_cut_off_is_corrupt(record: tuple[Any, Any], data: st.DataObject) -> None:
    """Keys and values that end too early are CorruptBatch and nothing else, as are values of unknown versions."""
    key, value = record
    encoded_key, encoded_value = encode_record(key, value)
    assert encoded_value is not None
    with pytest.raises(CorruptBatch):
        parse_key(encoded_key[: data.draw(st.integers(min_value=2, max_value=len(encoded_key) - 1))])
    with pytest.raises(CorruptBatch):
        parse_value(key, encoded_value[: data.draw(st.integers(min_value=0, max_value=len(encoded_value) - 1))])
    with pytest.raises(CorruptBatch, match="version is 9"):
        parse_value(key, b"\x00\x09" + encoded_value[2:])


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_garbage_is_corrupt_or_unknown(data: bytes) -> None:
    """Arbitrary bytes are parsed, unknown, or CorruptBatch."""
    for read in (parse_key, parse_offset_commit_value, *_value_readers()):
        try:
            read(data)
        except CorruptBatch:
            continue


def _value_readers() -> list[Any]:
    keys = [
        OffsetCommitKey("g", "t", 0),
        GroupMetadataKey("g"),
        ConsumerGroupMetadataKey("g"),
        ConsumerGroupPartitionMetadataKey("g"),
        ConsumerGroupMemberMetadataKey("g", "m"),
        ConsumerGroupTargetAssignmentMetadataKey("g"),
        ConsumerGroupTargetAssignmentMemberKey("g", "m"),
        ConsumerGroupCurrentMemberAssignmentKey("g", "m"),
        ConsumerGroupRegularExpressionKey("g", "r"),
    ]
    return [lambda data, key=key: parse_value(key, b"\x00\x00" + data) for key in keys]


def test_an_offset_with_a_retention_time_has_no_leader_epoch() -> None:
    """Only version 1 has an expire timestamp; it has none of the newer fields."""
    value = encode_offset_commit_value(7, 4, "m", 1000, 2000, TOPIC_ID)
    assert value == pack(">hqh1sqq", 1, 7, 1, b"m", 1000, 2000)
    assert group_records.parse_offset_commit_value(value) == OffsetCommitValue(7, -1, "m", 1000, 2000)
