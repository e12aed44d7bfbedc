"""DescribeQuorum (key 55), versions 0 to 2: the metadata quorum, in which this node is the only voter.

Behaviour: the only partition is `__cluster_metadata-0`; the high watermark is the end of the durable log. Other brokers of this
process are observers that have fetched the whole log. Versions: 1 adds times (KIP-836), 2 directory ids, endpoints and messages
(KIP-853).
Deviations: the voter's endpoint is the one set when the directory was formatted. No socket listens there, as there are no
other voters.

Source: KafkaRaftClient.handleDescribeQuorumRequest, LeaderState.describeQuorum (KIP-595).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.network.api import RequestContext, ResponseFields
from diamant.broker.topics.internal_names import METADATA_TOPIC
from diamant.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.describe_quorum.v2.request import DescribeQuorumRequest

    from diamant.broker.node.node import Node


def answer(node: Node, context: RequestContext, request: DescribeQuorumRequest) -> ResponseFields:
    """Describe the quorum."""
    asked = [
        (str(topic.topic_name), int(partition.partition_index))
        for topic in request.topics
        for partition in topic.partitions
    ]
    if asked != [(METADATA_TOPIC, 0)]:
        return _refusal(request)
    metadata = node.metadata
    now_ms = node.env.clock.now_ms()
    voter = {
        "replica_id": metadata.node_id,
        "replica_directory_id": metadata.directory_id if metadata.voters is not None else None,
        "log_end_offset": metadata.end_offset,
        "last_fetch_timestamp": now_ms,
        "last_caught_up_timestamp": now_ms,
    }
    observers = [{**voter, "replica_id": broker_id} for broker_id in metadata.broker_ids[1:]]
    partition = {
        "partition_index": 0,
        "error_code": 0,
        "error_message": "",
        "leader_id": metadata.node_id,
        "leader_epoch": metadata.epoch,
        "high_watermark": metadata.synced_offset,
        "current_voters": [voter],
        "observers": observers,
    }
    nodes = [
        {"node_id": member.id, "listeners": [endpoint._asdict() for endpoint in member.endpoints]}
        for member in (metadata.voters.voters if metadata.voters is not None else ())
    ]
    return {
        "error_code": 0,
        "error_message": "",
        "topics": [{"topic_name": METADATA_TOPIC, "partitions": [partition]}],
        "nodes": nodes,
    }


def _refusal(request: DescribeQuorumRequest) -> dict[str, object]:
    return {
        "error_code": 0,
        "error_message": "",
        "topics": [
            {
                "topic_name": str(topic.topic_name),
                "partitions": [
                    {
                        "partition_index": int(partition.partition_index),
                        "error_code": int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                        "error_message": "This server does not host this topic-partition.",
                    }
                    for partition in topic.partitions
                ],
            }
            for topic in request.topics
        ],
    }
