"""Records of `__transaction_state`: bytes of a real Kafka, and malformed records."""

from __future__ import annotations

from itertools import takewhile

import pytest

from diamant.protocol.errors import ProtocolError
from diamant.protocol.internal_topics.transaction_records import (
    TransactionPartitions,
    TransactionValue,
    encode_key,
    encode_value,
    parse_key,
    parse_value,
)
from tests.protocol.internal_topics.test_record_schemas import from_kafka

FROM_KAFKA = {
    # Empty: InitProducerId of a new id
    "0001000000000000000400000000ea600000000001a1ff7f47c2ffffffffffffffff0100080000000000000004": TransactionValue(
        4, 0, 60_000, 0, None, 1795287893954, -1, 4
    ),
    # Ongoing: two partitions, added by a Produce of version 12
    "0001000000000000000400010000ea6001020c743137393532383738393303000000010000000000000001a1ff7f4a89000001a1ff7f4a4f"
    "020008000000000000000402020002": TransactionValue(
        4, 1, 60_000, 1, (TransactionPartitions("t1795287893", (1, 0)),), 1795287894665, 1795287894607, 4, -1, 2
    ),
    # CompleteCommit: an empty list of partitions, not null
    "0001000000000000000400020000ea600401000001a1ff7f4b37000001a1ff7f4a4f020008000000000000000402020002": (
        TransactionValue(4, 2, 60_000, 4, (), 1795287894839, 1795287894607, 4, -1, 2)
    ),
}
"""Values written by Kafka 4.3.1 with transaction.version 2."""


@pytest.mark.parametrize("data", FROM_KAFKA)
def test_values_of_kafka(data: str) -> None:
    """Kafka's bytes are unchanged after parsing and encoding."""
    value = parse_value(bytes.fromhex(data))
    assert value == FROM_KAFKA[data]
    assert encode_value(value, 1).hex() == data


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    "partitions",
    [
        None,
        (),
        (TransactionPartitions("a", (0,)),),
        (TransactionPartitions("topic", (1, 2, 300)), TransactionPartitions("x" * 200, (0,))),
    ],
)
def test_both_versions_keep_everything(version: int, partitions: tuple[TransactionPartitions, ...] | None) -> None:
    """A value survives encoding; version 0 has no tagged fields."""
    value = TransactionValue(1 << 40, 32_767, 900_000, 2, partitions, 5, 6, 7, 8, 2, 9)
    older = {"previous_producer_id": -1, "next_producer_id": -1, "client_version": 0, "next_producer_epoch": -1}
    assert parse_value(encode_value(value, version)) == (value if version else value._replace(**older))


def test_values_with_every_field_of_kafka_survive() -> None:
    """Values that Kafka's own classes wrote survive byte for byte, also the field that no coordinator uses yet."""
    values = [value for _, value in takewhile(lambda record: record[1], from_kafka("__transaction_state")) if value]
    assert [encode_value(parse_value(value), value[1]) for value in values] == values
    assert {parse_value(value).next_producer_epoch for value in values} == {-1, 27}


def test_keys_have_kafkas_bytes() -> None:
    """Keys have Kafka's bytes; keys of later versions return None."""
    assert encode_key("early") == b"\x00\x00\x00\x05early"
    assert parse_key(encode_key("\u00e9" * 1000)) == "\u00e9" * 1000
    assert parse_key(b"\x00\x01anything") is None


def test_unknown_tags_are_skipped() -> None:
    """Unknown tagged fields of a later Kafka are skipped."""
    value = TransactionValue(1, 2, 3, 0, None, 4, 5, 6)
    data = encode_value(value, 1)
    assert data[-11:-9] == b"\x01\x00"
    assert parse_value(data[:-11] + b"\x02" + data[-10:] + b"\x09\x03abc") == value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        bytes.fromhex("ffff") + bytes(40),
        encode_value(TransactionValue(1, 2, 3, 0, (TransactionPartitions("t", (1,)),), 4, 5), 0)[:-1],
        encode_value(TransactionValue(1, 2, 3, 0, (TransactionPartitions("t", (1,)),), 4, 5), 1)[:-1],
        bytes.fromhex("0000") + bytes(15) + b"\x7f\xff\xff\xff",
        bytes.fromhex("0001") + bytes(15) + b"\xff\xff\xff\xff\x0f",
    ],
)
def test_an_invalid_value_is_refused(data: bytes) -> None:
    """Truncated values and lengths beyond the data are refused."""
    with pytest.raises(ProtocolError):
        parse_value(data)


@pytest.mark.parametrize(
    "key", [b"", b"\x00", b"\x00\x00", b"\x00\x00\xff\xff", b"\x00\x00\x00\x05abc", b"\x00\x00\x00\x01ab"]
)
def test_an_invalid_key_is_refused(key: bytes) -> None:
    """A key must consist of exactly a version and one string."""
    with pytest.raises(ProtocolError):
        parse_key(key)
