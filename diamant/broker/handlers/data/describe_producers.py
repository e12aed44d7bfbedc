"""DescribeProducers (key 61), version 0: the idempotent and transactional producers of a partition (KIP-664).

Behaviour: lists every producer in the partition's state, with the start of its open transaction (-1: none). With several
brokers, followers answer, too.

Source: KafkaApis.handleDescribeProducersRequest, Partition.activeProducerState, UnifiedLog.activeProducers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, ResponseFields, error_of
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import check
from diamant.broker.topics.leader_check import check_leader
from diamant.protocol.errors import ErrorCode
from diamant.storage.checkpoints.producer_snapshot import ProducerEntry

if TYPE_CHECKING:
    from kio.schema.describe_producers.v0.request import DescribeProducersRequest

    from diamant.broker.topics.topics import Topics


def answer(topics: Topics, context: RequestContext, request: DescribeProducersRequest) -> ResponseFields:
    """Describe each named partition."""
    answered = [
        {
            "name": topic.name,
            "partitions": [_partition(topics, context, topic.name, index) for index in topic.partition_indexes],
        }
        for topic in request.topics
    ]
    return {"topics": answered}


def _partition(topics: Topics, context: RequestContext, topic: str, index: int) -> dict[str, object]:
    try:
        check(context.access, permissions.READ_TOPIC, topic)
        log = topics.log(topic, index)
        check_leader(topics.brokers, log, context.connection.broker_id, may_follow=True)
        producers = log.producers.active_producers
    except REQUEST_ERRORS as error:
        code, message = error_of(error)
        if code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            message = None if topic in topics.by_name else "This server does not host this topic-partition."
        return {"partition_index": index, "error_code": code, "error_message": message}
    return {
        "partition_index": index,
        "error_code": 0,
        "error_message": None,
        "active_producers": [_producer(entry) for entry in producers],
    }


def _producer(entry: ProducerEntry) -> dict[str, int]:
    return {
        "producer_id": entry.producer_id,
        "producer_epoch": entry.producer_epoch,
        "last_sequence": entry.last_sequence,
        "last_timestamp": entry.timestamp,
        "coordinator_epoch": entry.coordinator_epoch,
        "current_txn_start_offset": entry.current_txn_first_offset,
    }
