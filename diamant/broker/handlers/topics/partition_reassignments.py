"""Reassignments of partitions to brokers (KIP-455)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from diamant.broker.brokers.membership import paced
from diamant.broker.network.api import RequestContext, ResponseFields
from diamant.broker.topics.creation_checks import check_replicas
from diamant.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.alter_partition_reassignments.v1.request import AlterPartitionReassignmentsRequest
    from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest

    from diamant.broker.brokers.table import BrokerTable
    from diamant.broker.topics.topics import Topics


async def alter(topics: Topics, context: RequestContext, request: AlterPartitionReassignmentsRequest) -> ResponseFields:
    """AlterPartitionReassignments (key 45), versions 0 to 1: replace the replicas of partitions.

    Behaviour: with one broker, this node is accepted as a replica, without effect; any other is refused with
    INVALID_REPLICA_ASSIGNMENT unless `diamant.replication.factor.max` allows it. Several brokers share one log, so a reassignment
    is complete immediately. There is never a reassignment to cancel.
    Versions: 1 can forbid changes of the replication factor (KIP-860).
    Deviations: none known on one broker; with several, see above.

    Source: ReplicationControlManager.alterPartitionReassignments (KIP-455).
    """
    may_change = getattr(request, "allow_replication_factor_change", True)
    answered: list[tuple[str, list[dict[str, object]]]] = [(str(topic.name), []) for topic in request.topics]
    every = zip(answered, request.topics, strict=True)
    async for (name, found), one in paced((result, one) for result, topic in every for one in topic.partitions):
        found.append(_altered(topics, name, one, may_change))
    if topics.brokers is not None:
        await topics.sync()
    return {
        "allow_replication_factor_change": may_change,
        "error_code": 0,
        "error_message": None if request.topics else "",
        "responses": [{"name": name, "partitions": found} for name, found in answered],
    }


def _altered(topics: Topics, name: str, partition: Any, may_change_factor: bool) -> dict[str, object]:
    code, message = 0, None
    try:
        _check(topics, name, int(partition.partition_index), partition.replicas)
        if topics.brokers is not None:
            _reassign(topics.brokers, name, int(partition.partition_index), partition.replicas, may_change_factor)
    except KafkaError as error:
        code, message = int(error.code), error.detail or None
    return {"partition_index": int(partition.partition_index), "error_code": code, "error_message": message}


def _reassign(brokers: BrokerTable, name: str, index: int, replicas: Sequence[int], may_change_factor: bool) -> None:
    now = brokers.partition(name, index)
    if not may_change_factor and len(replicas) != len(now.replicas):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {len(now.replicas)} to {len(replicas)}",
        )
    brokers.set_replicas(name, index, [int(replica) for replica in replicas])


def _check(topics: Topics, name: str, index: int, replicas: Any) -> None:
    topic = topics.image.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if index not in topic.partitions:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    if replicas is None:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    check_replicas(topics, [int(broker_id) for broker_id in replicas])


def list_all(context: RequestContext, request: ListPartitionReassignmentsRequest) -> ResponseFields:
    """ListPartitionReassignments (key 46), version 0: always empty, as reassignments are complete immediately.

    Source: ReplicationControlManager.listPartitionReassignments (KIP-455).
    """
    return {"error_code": 0, "error_message": None, "topics": []}
