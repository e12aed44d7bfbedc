"""OffsetForLeaderEpoch (key 23), versions 2 to 4: the end offset of a leader epoch.

Clients use it to check that the log was not truncated below their position.

Versions: 3 adds the replica id, 4 is flexible.

Source: ReplicaManager.lastOffsetForLeaderEpoch (KIP-101, KIP-320).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, ResponseFields, error_of
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import check
from diamant.broker.topics.leader_check import check_leader

if TYPE_CHECKING:
    from kio.schema.offset_for_leader_epoch.v4.request import OffsetForLeaderEpochRequest

    from diamant.broker.topics.topics import Topics


def answer(topics: Topics, context: RequestContext, request: OffsetForLeaderEpochRequest) -> ResponseFields:
    """Handle every partition separately."""
    answered = [
        {
            "topic": str(topic.topic),
            "partitions": [_end_offset(topics, context, str(topic.topic), partition) for partition in topic.partitions],
        }
        for topic in request.topics
    ]
    return {"topics": answered}


def _end_offset(topics: Topics, context: RequestContext, topic: str, partition: Any) -> dict[str, object]:
    index = int(partition.partition)
    try:
        if not context.access.allows(permissions.CLUSTER_ACTION, is_asked=False):
            check(context.access, permissions.DESCRIBE_TOPIC, topic)
        log = topics.log(topic, index)
        check_leader(topics.brokers, log, context.connection.broker_id, partition.current_leader_epoch)
        epoch_end = log.end_offset_for_epoch(partition.leader_epoch)
    except REQUEST_ERRORS as error:
        return {"error_code": error_of(error)[0], "partition": index, "leader_epoch": -1, "end_offset": -1}
    return {
        "error_code": 0,
        "partition": index,
        "leader_epoch": epoch_end.leader_epoch,
        "end_offset": epoch_end.end_offset,
    }
