"""Metadata: responses encoded as the schema does, for every version."""

import random
from uuid import UUID

import pytest

from diamant.protocol.messages.metadata import (
    OPERATIONS_NOT_ASKED_FOR,
    MetadataBroker,
    MetadataPartition,
    MetadataTopic,
    encode_metadata_response,
    encode_metadata_topic,
)
from diamant.protocol.wire.schemas import encode_response_fields, response_class
from tests.protocol.random_messages import kio_read

METADATA = 3
VERSIONS = range(14)


def _random_topic(rng: random.Random) -> MetadataTopic:
    return MetadataTopic(
        rng.choice(("t", "grüße", "x" * 249)),
        rng.choice((None, UUID(int=rng.getrandbits(128)))),
        [
            MetadataPartition(
                n, 1, rng.randrange(5), rng.choice(([1], [1, 2, 3])), [1], rng.choice(([], [2])), rng.choice((0, 5))
            )
            for n in range(rng.choice((0, 1, 3, 150)))
        ],
        rng.choice((True, False)),
        rng.choice((0, 3)),
        rng.choice((OPERATIONS_NOT_ASKED_FOR, 0x1F)),
    )


def _topic_fields(topic: MetadataTopic) -> dict[str, object]:
    return {
        "error_code": topic.error_code,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "topic_authorized_operations": topic.authorized_operations,
        "partitions": [
            {
                "error_code": partition.error_code,
                "partition_index": partition.index,
                "leader_id": partition.leader_id,
                "leader_epoch": partition.leader_epoch,
                "replica_nodes": partition.replicas,
                "isr_nodes": partition.isr,
                "offline_replicas": partition.offline,
            }
            for partition in topic.partitions
        ],
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_responses_are_encoded_as_the_schema_does(version: int) -> None:
    """Random responses are byte for byte those that the schema gives, and kio reads them."""
    rng = random.Random(version)
    for _ in range(20):
        brokers = [MetadataBroker(n, "host", 9092, rng.choice((None, "r1"))) for n in range(rng.randint(0, 3))]
        topics = [_random_topic(rng) for _ in range(rng.randint(0, 4))]
        cluster_id = rng.choice((None, "4L6g3nShT-eMCtK--X86sw"))
        encoded = encode_metadata_response(
            version,
            brokers=brokers,
            cluster_id=cluster_id,
            controller_id=1,
            topics=topics,
            error_code=7,
            throttle_time_ms=3,
            cluster_authorized_operations=99,
        )
        fields = {
            "throttle_time_ms": 3,
            "brokers": [broker._asdict() for broker in brokers],
            "cluster_id": cluster_id,
            "controller_id": 1,
            "topics": [_topic_fields(topic) for topic in topics],
            "cluster_authorized_operations": 99,
            "error_code": 7,
        }
        assert encoded == encode_response_fields(METADATA, version, fields)
        kio_read(response_class(METADATA, version), encoded)


@pytest.mark.parametrize("version", VERSIONS)
def test_topics_can_be_encoded_beforehand(version: int) -> None:
    """A topic's bytes take the place of the topic."""
    topic = _random_topic(random.Random(1))

    def encode(topics: list[MetadataTopic | bytes]) -> bytes:
        return encode_metadata_response(version, brokers=[], cluster_id=None, controller_id=1, topics=topics)

    assert encode([topic, encode_metadata_topic(version, topic)]) == encode([topic, topic])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_without_a_name(version: int) -> None:
    """An unknown topic id is answered with a null name from version 12, with an empty one before."""
    topic = MetadataTopic(None, UUID(int=7), [], error_code=100)
    encoded = encode_metadata_response(version, brokers=[], cluster_id=None, controller_id=1, topics=[topic])
    response = kio_read(response_class(METADATA, version), encoded)
    assert response.topics[0].name == (None if version >= 12 else "")
