"""DeleteRecords (key 21), versions 0 to 2: advance the log start of partitions (KIP-107).

Behaviour: offset -1 means the high watermark. The log start moves immediately and is saved with the next checkpoints. The
next retention pass deletes the segments that lie entirely before it.

Source: ReplicaManager.deleteRecordsOnLocalLog.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, ResponseFields, error_of
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import check
from diamant.broker.topics.internal_names import INTERNAL_TOPICS
from diamant.broker.topics.leader_check import check_leader
from diamant.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.delete_records.v2.request import DeleteRecordsRequest

    from diamant.broker.topics.topics import Topics


def answer(topics: Topics, context: RequestContext, request: DeleteRecordsRequest) -> ResponseFields:
    """Handle every partition separately."""
    answered = [
        {
            "name": str(topic.name),
            "partitions": [_delete(topics, context, str(topic.name), partition) for partition in topic.partitions],
        }
        for topic in request.topics
    ]
    return {"topics": answered}


def _delete(topics: Topics, context: RequestContext, topic: str, partition: Any) -> dict[str, object]:
    index = int(partition.partition_index)
    try:
        check(context.access, permissions.DELETE_TOPIC, topic)
        if topic in INTERNAL_TOPICS:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot delete records of internal topic {topic}")
        log = topics.log(topic, index)
        check_leader(topics.brokers, log, context.connection.broker_id)
        if not log.config.is_deleted:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"Records of partition {topic}-{index} can not be deleted due to the configured policy",
            )
        end = None if topics.brokers is None else topics.brokers.end_at(context.connection.broker_id, log)
        low_watermark = log.delete_records(int(partition.offset), end)
    except REQUEST_ERRORS as error:
        return {"partition_index": index, "low_watermark": -1, "error_code": error_of(error)[0]}
    return {"partition_index": index, "low_watermark": low_watermark, "error_code": 0}
