"""WriteTxnMarkers (key 27), versions 1 and 2: end a producer's transaction in individual partitions.

Behaviour: Kafka uses it between brokers; here it serves `kafka-transactions --abort`, which ends transactions that no
coordinator knows. Versions: 2 adds the transaction version: with TV2, the marker's epoch must be above the epoch of the open
transaction. A broker without a replica answers UNKNOWN_TOPIC_OR_PARTITION.

Source: KafkaApis.handleWriteTxnMarkersRequest, ProducerAppendInfo.checkProducerEpoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, ResponseFields, error_of
from diamant.broker.topics.leader_check import check_leader
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from kio.schema.write_txn_markers.v2.request import WriteTxnMarkersRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.node import Node

TV2 = 2


def answer(
    groups: Lazy[GroupCoordinator], node: Node, context: RequestContext, request: WriteTxnMarkersRequest
) -> ResponseFields:
    """Append a marker to each named partition."""
    markers = [
        {
            "producer_id": marker.producer_id,
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {
                            "partition_index": index,
                            "error_code": _write(groups, node, context, marker, topic.name, index),
                        }
                        for index in topic.partition_indexes
                    ],
                }
                for topic in marker.topics
            ],
        }
        for marker in request.markers
    ]
    return {"markers": markers}


def _write(
    groups: Lazy[GroupCoordinator], node: Node, context: RequestContext, marker: Any, topic: str, partition: int
) -> int:
    from diamant.broker.transactions.markers import write_marker

    try:
        log, brokers, broker_id = node.topics.log(topic, partition), node.topics.brokers, context.connection.broker_id
        if brokers is not None and broker_id not in brokers.partition(topic, partition).replicas:
            return int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        check_leader(brokers, log, broker_id)
        if getattr(marker, "transaction_version", 0) >= TV2:
            _check_raised_epoch(log, marker)
        write_marker(
            node,
            groups,
            log,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            is_commit=marker.transaction_result,
            coordinator_epoch=marker.coordinator_epoch,
        )
    except REQUEST_ERRORS as error:
        return error_of(error)[0]
    return int(ErrorCode.NONE)


def _check_raised_epoch(log: Log, marker: Any) -> None:
    state = log.producers.state_of(marker.producer_id)
    if state is not None and state.current_txn_first_offset >= 0 and marker.producer_epoch <= state.producer_epoch:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"the marker's epoch {marker.producer_epoch} must be above {state.producer_epoch}, "
            f"the epoch of the open transaction of producer {marker.producer_id} in {log.topic}-{log.partition}",
        )
