"""The records of `__consumer_offsets`: Kafka's own bytes, older versions, and malformed records."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial
from pathlib import Path
from struct import pack
from typing import Any, get_args
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import CorruptBatch
from diamant.protocol.internal_topics.group_records import (
    SHARE_KEYS,
    ConsumerGroupPartitionMetadataKey,
    GroupMetadataKey,
    GroupMetadataMember,
    GroupMetadataValue,
    GroupRecordKey,
    GroupRecordValue,
    OffsetCommitKey,
    OffsetCommitValue,
    encode_offset_commit_key,
    encode_offset_commit_value,
    encode_record,
    parse_key,
    parse_offset_commit_value,
    parse_value,
)
from diamant.protocol.primitives import encode_string
from tests.golden_groups import consumer_offsets_log
from tests.protocol.random_records import values_of

KINDS = [*zip(get_args(GroupRecordKey), get_args(GroupRecordValue), strict=True)]
GROUPS = Path(__file__).parents[2] / "golden" / "groups"
TOPIC_ID = UUID("5c634385-ee50-4809-89c9-5f3acbd41ab3")


SHARE_RECORDS = json.loads((GROUPS / "other_groups_4.3.1.json").read_text(encoding="utf-8"))["records"]["share-live"]


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
    types = set()
    for record in _golden_records():
        assert record.key is not None
        key = parse_key(record.key)
        assert key is not None
        value = None if record.value is None else parse_value(key, record.value)
        assert encode_record(key, value) == (record.key, record.value), key
        types.add(type(key))
    assert {key for key, _ in KINDS} - types == {ConsumerGroupPartitionMetadataKey, *SHARE_KEYS}


@pytest.mark.parametrize("number_key_value", SHARE_RECORDS)
def test_kafka_writes_share_groups_as_we_write_them(number_key_value: tuple[int, str, str]) -> None:
    """The records of a real share group are unchanged byte for byte after parsing and encoding."""
    number, rest, data = number_key_value
    stored = number.to_bytes(2, "big") + encode_string("g") + bytes.fromhex(rest), bytes.fromhex(data)
    key = parse_key(stored[0])
    assert isinstance(key, SHARE_KEYS)
    assert encode_record(key, parse_value(key, stored[1])) == stored


def test_commits_that_kafka_wrote_are_read_with_all_fields() -> None:
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
    """A key of type 0 differs from one of type 1 only in the type number."""
    key = encode_offset_commit_key("g", "t", 3)
    assert parse_key(b"\x00\x00" + key[2:]) == parse_key(key) == OffsetCommitKey("g", "t", 3)


@pytest.mark.parametrize("record_type", [9, 17, 24, 32767])
def test_unknown_types_are_left_alone(record_type: int) -> None:
    """Records of streams groups, and of later brokers, are not an error."""
    assert parse_key(pack(">hh1s", record_type, 1, b"g")) is None


# Only version 1 has an expire timestamp, and it has none of the newer fields.
COMMITS = values_of(OffsetCommitValue, expire_timestamp=st.just(-1))
RECORDS = st.one_of(
    st.tuples(values_of(key), COMMITS if value is OffsetCommitValue else values_of(value)) for key, value in KINDS
)


@given(RECORDS, st.data())
def test_records_are_read_as_they_were_written(record: tuple[Any, Any], data: st.DataObject) -> None:
    """Keys and values of all types survive encoding; those that end too early, and unknown versions, are CorruptBatch."""
    key, value = record
    encoded_key, encoded_value = encode_record(key, value)
    assert parse_key(encoded_key) == key
    assert encoded_value is not None
    assert parse_value(key, encoded_value) == value
    with pytest.raises(CorruptBatch):
        parse_key(encoded_key[: data.draw(st.integers(min_value=2, max_value=len(encoded_key) - 1))])
    with pytest.raises(CorruptBatch):
        parse_value(key, encoded_value[: data.draw(st.integers(min_value=0, max_value=len(encoded_value) - 1))])
    with pytest.raises(CorruptBatch, match="version is 9"):
        parse_value(key, b"\x00\x09" + encoded_value[2:])


@given(st.binary(max_size=60), RECORDS)
def test_garbage_is_corrupt_or_unknown(data: bytes, record: tuple[Any, Any]) -> None:
    """Arbitrary bytes are parsed, unknown, or CorruptBatch."""
    key, _ = record
    for read in (parse_key, parse_offset_commit_value, partial(parse_value, key)):
        for start in (b"", b"\0\0"):
            with suppress(CorruptBatch):
                read(start + data)


def test_an_offset_with_a_retention_time_has_no_leader_epoch() -> None:
    """Only version 1 has an expire timestamp; it has none of the newer fields."""
    value = encode_offset_commit_value(7, 4, "m", 1000, 2000, TOPIC_ID)
    assert value == pack(">hqh1sqq", 1, 7, 1, b"m", 1000, 2000)
    assert parse_offset_commit_value(value) == OffsetCommitValue(7, -1, "m", 1000, 2000)
