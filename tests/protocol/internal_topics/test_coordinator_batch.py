"""Batches of coordinators equal those of the general writer for the same records."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diamant.protocol.batches.batch_records import build_batch, iter_records
from diamant.protocol.batches.header import Record
from diamant.protocol.internal_topics.coordinator_batch import build_coordinator_batch, encode_records
from diamant.protocol.internal_topics.group_records import encode_offset_commit_key, encode_offset_commit_value
from diamant.protocol.internal_topics.offset_records import encode_offset_records
from diamant.protocol.messages.offset_columns import TopicOffsets
from tests.builder import TIMESTAMP

INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(max_size=80)
KEY_VALUES = st.lists(st.tuples(st.binary(max_size=200), st.none() | st.binary(max_size=200)), min_size=1, max_size=90)


@st.composite
def topic_offsets(draw: st.DrawFn) -> TopicOffsets:
    """Return a topic with any number of partitions, perhaps with repeated ones."""
    rows = draw(st.lists(st.tuples(INT32, INT64, INT32, NAMES), max_size=70))
    partitions, offsets, epochs, texts = zip(*rows, strict=True) if rows else ((), (), (), ())
    metadata = draw(st.sampled_from((None, texts)))
    topic_id = draw(st.none() | st.uuids())
    return TopicOffsets(draw(NAMES), topic_id, partitions, offsets, epochs, metadata)


@given(
    KEY_VALUES,
    st.sampled_from((-1, 0)),
    st.integers(0, 4),
    st.none() | st.fixed_dictionaries({"producer_id": st.integers(0, 2**63 - 1), "producer_epoch": INT16}),
)
def test_batches_are_those_of_the_general_writer(
    records: list[tuple[bytes, bytes | None]], base_sequence: int, codec: int, producer: dict[str, int] | None
) -> None:
    """Batches are equal byte for byte, with tombstones and long records, in every codec; a producer makes one transactional."""
    fields = {"base_sequence": base_sequence, "codec": codec, **(producer or {})}
    batch = build_coordinator_batch(encode_records(records), len(records), timestamp=TIMESTAMP, **fields)
    numbered = [Record(offset, TIMESTAMP, *record) for offset, record in enumerate(records)]
    assert batch == build_batch(numbered, is_transactional=producer is not None, **fields)


def single_records(
    group_id: str, topics: list[TopicOffsets], expire_timestamp: int = -1
) -> list[tuple[bytes, bytes | None]]:
    """Encode each committed offset as a single record."""
    return [
        (
            encode_offset_commit_key(group_id, topic.name, partition),
            encode_offset_commit_value(offset, epoch, text, TIMESTAMP, expire_timestamp, topic.topic_id),
        )
        for topic in topics
        for partition, offset, epoch, text in zip(
            topic.partitions, topic.offsets, topic.leader_epochs, topic.metadata or [""] * len(topic.partitions), strict=True
        )
    ]  # fmt: skip


@given(NAMES, st.lists(topic_offsets(), max_size=3), st.sampled_from((-1, TIMESTAMP + 5)))
def test_offsets_are_those_of_single_records(group_id: str, topics: list[TopicOffsets], expire_timestamp: int) -> None:
    """Offsets are encoded like single records, in order, for the first time and from the cache."""
    records = single_records(group_id, topics, expire_timestamp)
    for _ in range(2):
        encoded = encode_offset_records(group_id, topics, TIMESTAMP, expire_timestamp)
        assert encoded.payload == encode_records(records)
        assert encoded.record_count == len(records)
        assert [value for values in encoded.values for value in values] == [value for _, value in records]
        assert [len(values) for values in encoded.values] == [len(topic.partitions) for topic in topics]


def test_cached_records_depend_on_all_their_fields() -> None:
    """Cached records differ by group, topic, place in the batch and topic id."""
    plain = TopicOffsets("t", None, (0, 1), (5, 6), (-1, -1), None)
    other = plain._replace(name="u")
    named = plain._replace(topic_id=UUID(int=1))
    for group_id, topics in (
        ("g", [plain]),
        ("h", [plain]),
        ("g", [other]),
        ("g", [other, plain]),
        ("g", [named]),
        ("g", [named, plain]),
        ("g", [plain._replace(partitions=(1, 0))]),
        ("g", [plain._replace(offsets=(8, 9))]),
    ):
        found = encode_offset_records(group_id, topics, TIMESTAMP)
        assert found.payload == encode_records(single_records(group_id, topics))


@pytest.mark.slow
def test_many_partitions_are_encoded_without_being_remembered() -> None:
    """A commit of thousands of partitions, with deltas and lengths above one byte, is encoded without the cache."""
    partitions = tuple(range(20_000))
    topic = TopicOffsets("t", None, partitions, partitions, (7,) * len(partitions), None)
    encoded = encode_offset_records("g" * 300, [topic], TIMESTAMP)
    records = list(iter_records(build_coordinator_batch(encoded.payload, encoded.record_count, timestamp=TIMESTAMP)))
    assert [record.offset for record in records] == list(partitions)
    assert records[-1].key == encode_offset_commit_key("g" * 300, "t", 19_999)
    assert records[-1].value == encoded.values[0][-1] == encode_offset_commit_value(19_999, 7, "", TIMESTAMP)
