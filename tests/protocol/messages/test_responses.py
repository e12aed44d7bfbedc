"""Hand-written responses equal the schema's byte for byte, in every version."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias
from uuid import UUID

import pytest

from diamant.protocol.messages.consumer_group_heartbeat import encode_without_assignment
from diamant.protocol.messages.fetch import FetchPartitionResult, FetchTopicResult, encode_fetch_response
from diamant.protocol.messages.list_offsets import (
    ListOffsetsPartitionResult,
    ListOffsetsTopicResult,
    encode_list_offsets_response,
)
from diamant.protocol.messages.metadata import (
    OPERATIONS_NOT_ASKED_FOR,
    MetadataBroker,
    MetadataPartition,
    MetadataTopic,
    encode_metadata_response,
    encode_metadata_topic,
)
from diamant.protocol.messages.offset_commit import encode_offset_commit_response, encode_txn_offset_commit_response
from diamant.protocol.messages.produce import ProducePartitionResult, ProduceTopicResult, encode_produce_response
from diamant.protocol.wire.schemas import encode_response_fields, response_class
from tests.protocol.offset_topics import answered_topic
from tests.protocol.random_messages import kio_read

Made = tuple[bytes, dict[str, Any]]
"""Return a hand-written response, and its values for the schema."""


def random_name(rng: random.Random) -> str:
    return rng.choice(("t", "grüße", "x" * 249))


def random_offset(rng: random.Random) -> int:
    return rng.randrange(-1, 1 << 62)


Nodes: TypeAlias = Sequence[tuple[int, str, int, str | None]]
NODES: Nodes = ((2, "localhost", 9093, "r2"), (3, "localhost", 9094, None))
FIRST_PRODUCE_WITH_LEADER, FIRST_FETCH_WITH_LEADER = 10, 16


def node_fields(nodes: Nodes) -> list[dict[str, Any]]:
    """Return the fields of the addresses of leaders."""
    return [dict(zip(("node_id", "host", "port", "rack"), node, strict=True)) for node in nodes]


def with_leader(one: Any) -> dict[str, Any]:
    """Return the fields of a partition, with those of its leader if it has one."""
    fields: dict[str, Any] = one._asdict()
    if fields.pop("current_leader") is not None:
        fields["current_leader"] = dict(zip(("leader_id", "leader_epoch"), one.current_leader, strict=True))
    return fields


def produce(version: int, rng: random.Random) -> Made:
    def result() -> ProducePartitionResult:
        return ProducePartitionResult(
            index=rng.randrange(1 << 31),
            error_code=rng.choice((0, 87)),
            base_offset=random_offset(rng),
            log_append_time_ms=rng.choice((-1, 1_700_000_000_000)),
            log_start_offset=random_offset(rng),
            record_errors=[(n, rng.choice((None, "bad", ""))) for n in range(rng.choice((0, 0, 1, 3)))],
            error_message=rng.choice((None, None, "", "why")),
            current_leader=rng.choice((None, None, (2, 5))) if version >= FIRST_PRODUCE_WITH_LEADER else None,
        )

    topics = [
        ProduceTopicResult(
            random_name(rng), UUID(int=rng.getrandbits(128)), [result() for _ in range(rng.randint(0, 4))]
        )
        for _ in range(rng.randint(0, 3))
    ]
    rows = [
        {
            "name": topic.name,
            "topic_id": topic.topic_id,
            "partition_responses": [
                with_leader(partition)
                | {
                    "record_errors": [
                        {"batch_index": index, "batch_index_error_message": message}
                        for index, message in partition.record_errors
                    ]
                }
                for partition in topic.partitions
            ],
        }
        for topic in topics
    ]
    nodes = rng.choice(((), NODES)) if version >= FIRST_PRODUCE_WITH_LEADER else ()
    fields = {"throttle_time_ms": 17, "responses": rows, "node_endpoints": node_fields(nodes)}
    return encode_produce_response(version, topics, 17, nodes), fields


def fetch(version: int, rng: random.Random) -> Made:
    def result() -> FetchPartitionResult:
        records = tuple(rng.randbytes(rng.randint(1, 400)) for _ in range(rng.choice((0, 1, 1, 3))))
        return FetchPartitionResult(
            index=rng.randrange(1 << 31),
            error_code=rng.choice((0, 1)),
            high_watermark=random_offset(rng),
            last_stable_offset=random_offset(rng),
            log_start_offset=random_offset(rng),
            aborted_transactions=rng.choice((None, [], [(7, 100)], [(n, n * 10) for n in range(200)])),
            records=records,
            records_size=sum(map(len, records)),
            diverging_epoch=rng.choice((None, None, (3, 1 << 40))),
            preferred_read_replica=rng.choice((-1, 3)),
        )

    def refused(one: FetchPartitionResult) -> FetchPartitionResult:
        leads = rng.choice((None, (2, 5))) if version >= FIRST_FETCH_WITH_LEADER else None
        return one if leads is None else one._replace(diverging_epoch=None, current_leader=leads)

    def partition_fields(one: FetchPartitionResult) -> dict[str, Any]:
        aborted = one.aborted_transactions
        fields = with_leader(one) | {
            "partition_index": one.index,
            # Empty, not null: null makes librdkafka drop the whole response.
            "records": b"".join(one.records),
            "aborted_transactions": aborted and [{"producer_id": one, "first_offset": first} for one, first in aborted],
        }
        if fields.pop("diverging_epoch") is not None:
            fields["diverging_epoch"] = dict(zip(("epoch", "end_offset"), one.diverging_epoch or (), strict=True))
        return fields

    topics = [
        FetchTopicResult(
            random_name(rng), UUID(int=rng.getrandbits(128)), [refused(result()) for _ in range(rng.randint(0, 4))]
        )
        for _ in range(rng.randint(0, 3))
    ]
    rows = [
        {
            "topic": topic.name,
            "topic_id": topic.topic_id,
            "partitions": [partition_fields(one) for one in topic.partitions],
        }
        for topic in topics
    ]
    nodes = rng.choice(((), NODES)) if topics and version >= FIRST_FETCH_WITH_LEADER else ()
    chunks = encode_fetch_response(
        version, topics, error_code=70, session_id=5, throttle_time_ms=17, node_endpoints=nodes
    )
    fields = {"throttle_time_ms": 17, "error_code": 70, "session_id": 5, "responses": rows}
    return b"".join(chunks), {**fields, "node_endpoints": node_fields(nodes)}


def list_offsets(version: int, rng: random.Random) -> Made:
    def result() -> ListOffsetsPartitionResult:
        index, code = rng.randrange(1 << 31), rng.choice((0, 3))
        return ListOffsetsPartitionResult(index, code, random_offset(rng), random_offset(rng), 4)

    topics = [
        ListOffsetsTopicResult(random_name(rng), [result() for _ in range(rng.choice((0, 1, 3, 200)))])
        for _ in range(rng.randint(0, 3))
    ]
    rows = [
        {
            "name": topic.name,
            "partitions": [one._asdict() | {"partition_index": one.index} for one in topic.partitions],
        }
        for topic in topics
    ]
    return encode_list_offsets_response(version, topics, 9), {"throttle_time_ms": 9, "topics": rows}


def metadata(version: int, rng: random.Random) -> Made:
    def partition(number: int) -> MetadataPartition:
        replicas, offline = rng.choice(([1], [1, 2, 3])), rng.choice(([], [2]))
        return MetadataPartition(number, 1, rng.randrange(5), replicas, [1], offline, rng.choice((0, 5)))

    brokers = [MetadataBroker(n, "host", 9092, rng.choice((None, "r1"))) for n in range(rng.randint(0, 3))]
    topics = [
        MetadataTopic(
            random_name(rng),
            rng.choice((None, UUID(int=rng.getrandbits(128)))),
            [partition(number) for number in range(rng.choice((0, 1, 3, 150)))],
            rng.choice((True, False)),
            rng.choice((0, 3)),
            rng.choice((OPERATIONS_NOT_ASKED_FOR, 0x1F)),
        )
        for _ in range(rng.randint(0, 4))
    ]
    told = {
        "cluster_id": rng.choice((None, "4L6g3nShT-eMCtK--X86sw")),
        "controller_id": 1,
        "error_code": 7,
        "throttle_time_ms": 3,
        "cluster_authorized_operations": 99,
    }
    rows = [
        topic._asdict()
        | {
            "topic_authorized_operations": topic.authorized_operations,
            "partitions": [
                one._asdict()
                | {
                    "partition_index": one.index,
                    "replica_nodes": one.replicas,
                    "isr_nodes": one.isr,
                    "offline_replicas": one.offline,
                }
                for one in topic.partitions
            ],
        }
        for topic in topics
    ]
    fields = {"brokers": [broker._asdict() for broker in brokers], "topics": rows, **told}
    return encode_metadata_response(version, brokers=brokers, topics=topics, **told), fields  # type: ignore[arg-type]


def commits(encode: Callable[..., bytes]) -> Callable[[int, random.Random], Made]:
    """Return responses of OffsetCommit or TxnOffsetCommit: no, few and more partitions than cached, with and without errors."""

    def make(version: int, rng: random.Random) -> Made:
        count, allowed = rng.choice((0, 1, 3, 5, 101, 200)), rng.choice(([0], [0, 3, 25]))
        topics, rows = [], []
        codes: dict[tuple[int, int], int] = {}
        for number in range(rng.choice((1, 2))):
            indexes = range(count) if rng.random() < 0.5 else rng.sample(range(1 << 31), count)
            topic_id = UUID(int=rng.getrandbits(128) | 1)
            found = [(index, rng.choice(allowed)) for index in indexes]
            topics.append(answered_topic([index for index, _ in found], name=random_name(rng), topic_id=topic_id))
            partitions = [{"partition_index": index, "error_code": code} for index, code in found]
            rows.append({"name": topics[-1].name, "topic_id": topic_id, "partitions": partitions})
            codes |= {(number, row): code for row, (_, code) in enumerate(found) if code}
        return encode(version, topics, codes), {"topics": rows}

    return make


def consumer_group_heartbeat(_version: int, rng: random.Random) -> Made:
    """Return a response without an assignment."""
    member_id = rng.choice(("", "m", "é" * 100))
    fields = {"member_id": member_id, "member_epoch": -2, "heartbeat_interval_ms": 5000}
    return encode_without_assignment(member_id, -2, 5000), fields


RESPONSES: dict[str, tuple[int, range, Callable[[int, random.Random], Made]]] = {
    "Produce": (0, range(3, 14), produce),
    "Fetch": (1, range(4, 19), fetch),
    "ListOffsets": (2, range(1, 12), list_offsets),
    "Metadata": (3, range(14), metadata),
    "OffsetCommit": (8, range(2, 11), commits(encode_offset_commit_response)),
    "TxnOffsetCommit": (28, range(6), commits(encode_txn_offset_commit_response)),
    "ConsumerGroupHeartbeat": (68, range(2), consumer_group_heartbeat),
}


@pytest.mark.parametrize(
    ("key", "version", "make"),
    [
        pytest.param(key, version, make, id=f"{name}-{version}")
        for name, (key, versions, make) in RESPONSES.items()
        for version in versions
    ],
)
def test_responses_are_those_of_the_schema(key: int, version: int, make: Callable[[int, random.Random], Made]) -> None:
    """Random responses are equal byte for byte."""
    rng = random.Random(version)
    for number in range(40):
        encoded, fields = make(version, rng)
        assert encoded == encode_response_fields(key, version, fields), f"number {number}"


def test_a_partition_of_list_offsets_without_values_has_found_nothing() -> None:
    """A result without values has no error, offset -1, timestamp -1 and epoch -1."""
    topics = [ListOffsetsTopicResult("t", [ListOffsetsPartitionResult(5)])]
    partition = {"partition_index": 5, "error_code": 0, "offset": -1, "timestamp": -1, "leader_epoch": -1}
    expected = encode_response_fields(2, 7, {"topics": [{"name": "t", "partitions": [partition]}]})
    assert encode_list_offsets_response(7, topics) == expected


def metadata_of(version: int, *topics: MetadataTopic | bytes) -> bytes:
    return encode_metadata_response(version, brokers=[], cluster_id=None, controller_id=1, topics=topics)


@pytest.mark.parametrize("version", range(14))
def test_topics_of_metadata_can_be_encoded_beforehand(version: int) -> None:
    """A topic may be passed as bytes encoded earlier."""
    topic = MetadataTopic("t", UUID(int=7), [MetadataPartition(0, 1, 2, [1, 2], [1])])
    assert metadata_of(version, topic, encode_metadata_topic(version, topic)) == metadata_of(version, topic, topic)


@pytest.mark.parametrize("version", range(14))
def test_a_topic_of_metadata_without_a_name(version: int) -> None:
    """An unknown topic id is answered with a null name from version 12, with an empty one before."""
    response = kio_read(response_class(3, version), metadata_of(version, MetadataTopic(None, UUID(int=7), [])))
    assert response.topics[0].name == (None if version >= 12 else "")


def test_names_are_required_before_version_13() -> None:
    """A result of Produce or Fetch without a name cannot be encoded for a version that names topics."""
    for version in (3, 12):
        with pytest.raises(ValueError, match="names topics"):
            encode_produce_response(version, [ProduceTopicResult(None, UUID(int=7), [])])
    for version in (4, 12):
        with pytest.raises(ValueError, match="names topics"):
            encode_fetch_response(version, [FetchTopicResult(None, UUID(int=7), [])])
