"""AlterPartitionReassignments (key 45), versions 0 to 1: with one broker, partitions never move.

Behaviour: this node is accepted as a target, without effect; any other is INVALID_REPLICA_ASSIGNMENT, unless
`diamant.replication.factor.max` allows it. There is never a reassignment to cancel.
Versions: 1 may forbid a change of the replication factor (KIP-860), which cannot happen here.
Deviations: none known.

Source: ReplicationControlManager.alterPartitionReassignments (KIP-455).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diamant.broker.network.api import Answer, RequestContext
from diamant.broker.topics.creation_checks import check_replicas
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.wire.schemas import encode_response_fields

if TYPE_CHECKING:
    from kio.schema.alter_partition_reassignments.v1.request import AlterPartitionReassignmentsRequest

    from diamant.broker.topics.topics import Topics

KEY = 45


def handle(topics: Topics, context: RequestContext, request: AlterPartitionReassignmentsRequest) -> Answer:
    """Answer for every partition."""
    fields = {
        "allow_replication_factor_change": getattr(request, "allow_replication_factor_change", True),
        "error_code": 0,
        "error_message": None if request.topics else "",
        "responses": [
            {
                "name": str(topic.name),
                "partitions": [_answer(topics, str(topic.name), partition) for partition in topic.partitions],
            }
            for topic in request.topics
        ],
    }
    return encode_response_fields(KEY, context.api_version, fields)


def _answer(topics: Topics, name: str, partition: Any) -> dict[str, object]:
    code, message = 0, None
    try:
        _check(topics, name, int(partition.partition_index), partition.replicas)
    except KafkaError as error:
        code, message = int(error.code), error.detail or None
    return {"partition_index": int(partition.partition_index), "error_code": code, "error_message": message}


def _check(topics: Topics, name: str, index: int, replicas: Any) -> None:
    topic = topics.image.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if index not in topic.partitions:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    if replicas is None:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    check_replicas(topics, [int(broker_id) for broker_id in replicas])
