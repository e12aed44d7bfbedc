"""Records of internal topics in Kafka's JSON: every type and version is among Kafka's own, and any bytes have an answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.internal_topics.record_schemas import (
    CANNOT_BE_DECODED,
    GROUP_RECORDS,
    SHARE_STATE_RECORDS,
    TRANSACTION_RECORDS,
    RecordSchema,
    decode,
)
from tests.effort import examples

TOPICS: Mapping[str, Mapping[int, RecordSchema]] = {
    "__consumer_offsets": GROUP_RECORDS,
    "__transaction_state": TRANSACTION_RECORDS,
    "__share_group_state": SHARE_STATE_RECORDS,
}
GOLDEN = Path(__file__).parents[2] / "golden" / "coordinator-records"


def from_kafka(topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of records that Kafka's own classes wrote."""
    log = (GOLDEN / f"{topic}-0" / f"{0:020d}.log").read_bytes()
    return [(record.key, record.value) for record in iter_records(log)]


@pytest.mark.parametrize("topic", TOPICS)
def test_kafkas_records_have_every_type_and_version(topic: str) -> None:
    """Each version of each type in the table is decoded from bytes of Kafka, and no other."""
    decoded = [decode(TOPICS[topic], *record) for record in from_kafka(topic)]
    found = {
        (name, parts["value"]["version"])
        for name, parts in decoded
        if name != CANNOT_BE_DECODED and isinstance(parts["value"], dict)
    }
    assert found == {
        (record_type.name, str(version))
        for record_type in TOPICS[topic].values()
        for version in range(record_type.max_version + 1)
    }


def test_fields_that_came_with_kafka_4_4() -> None:
    """The epochs of described topologies, new with Kafka 4.4, are decoded; Kafka 4.3 skips their tags."""
    number = next(number for number, one in GROUP_RECORDS.items() if one.name == "STREAMS_GROUP_METADATA")
    key = number.to_bytes(2, "big") + b"\x00\x01g"
    value = bytes(2) + (5).to_bytes(4, "big") + bytes(8) + b"\x02\x02\x04\xff\xff\xff\xfe\x03\x04\x00\x00\x00\x07"
    _, parts = decode(GROUP_RECORDS, key, value)
    assert parts["value"] == {
        "version": "0",
        "data": {
            "epoch": 5,
            "metadataHash": 0,
            "storedDescriptionTopologyEpoch": -2,
            "failedDescriptionTopologyEpoch": 7,
        },
    }


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_any_bytes_have_an_answer(data: st.DataObject) -> None:
    """Strategy: a record of Kafka with bytes replaced, or cut. Invariant: it is decoded, or kept in hexadecimal with a reason."""
    topic = data.draw(st.sampled_from(sorted(TOPICS)))
    key, value = data.draw(st.sampled_from([record for record in from_kafka(topic) if all(record)]))
    broken = []
    for part in (key, value):
        assert part is not None
        changed = bytearray(part)
        for position, byte in data.draw(
            st.dictionaries(st.integers(0, len(part) - 1), st.integers(0, 255), max_size=3)
        ).items():
            changed[position] = byte
        broken.append(bytes(changed[: data.draw(st.integers(0, len(part)))] if data.draw(st.booleans()) else changed))
    name, decoded = decode(TOPICS[topic], *broken)
    if name == CANNOT_BE_DECODED:
        assert decoded["reason"]
        assert decoded["value"] == broken[1].hex()
