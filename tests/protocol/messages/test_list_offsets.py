"""ListOffsets: responses encoded as kio reads them, for every version."""

import random

import pytest

from diamant.protocol.messages.list_offsets import (
    ListOffsetsPartitionResult,
    ListOffsetsTopicResult,
    encode_list_offsets_response,
)
from diamant.protocol.wire.schemas import encode_response_fields, response_class
from tests.protocol.random_messages import kio_read

LIST_OFFSETS = 2
VERSIONS = range(1, 12)


@pytest.mark.parametrize("version", VERSIONS)
def test_responses_are_encoded_as_the_schema_does(version: int) -> None:
    """Random responses are byte for byte those that the schema gives, and kio reads them."""
    rng = random.Random(version)
    for _ in range(30):
        topics = [
            ListOffsetsTopicResult(
                rng.choice(("t", "grüße", "x" * 200)),
                [
                    ListOffsetsPartitionResult(
                        rng.randrange(1 << 31),
                        rng.choice((0, 3)),
                        rng.randrange(-1, 1 << 62),
                        rng.randrange(1 << 62),
                        4,
                    )
                    for _ in range(rng.choice((0, 1, 3, 200)))
                ],
            )
            for _ in range(rng.randint(0, 3))
        ]
        fields = {
            "throttle_time_ms": 9,
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {
                            "partition_index": partition.index,
                            "error_code": partition.error_code,
                            "timestamp": partition.timestamp,
                            "offset": partition.offset,
                            "leader_epoch": partition.leader_epoch,
                        }
                        for partition in topic.partitions
                    ],
                }
                for topic in topics
            ],
        }
        encoded = encode_list_offsets_response(version, topics, 9)
        assert encoded == encode_response_fields(LIST_OFFSETS, version, fields)
        kio_read(response_class(LIST_OFFSETS, version), encoded)


def test_defaults_say_nothing_found() -> None:
    """A partition's result without values is no error, offset -1, timestamp -1, epoch -1."""
    topics = [ListOffsetsTopicResult("t", [ListOffsetsPartitionResult(5)])]
    response = kio_read(response_class(LIST_OFFSETS, 7), encode_list_offsets_response(7, topics))
    (partition,) = response.topics[0].partitions
    assert (partition.partition_index, partition.offset, partition.timestamp, partition.leader_epoch) == (5, -1, -1, -1)
