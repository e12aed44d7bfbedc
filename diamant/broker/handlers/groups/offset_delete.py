"""OffsetDelete (key 47), version 0: delete a group's committed offsets of some partitions (KIP-496).

Behaviour: topics that members of the group read are refused (GROUP_SUBSCRIBED_TO_TOPIC); a missing offset is not an error.

Source: KafkaApis.handleOffsetDeleteRequest, OffsetMetadataManager.deleteOffsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, ResponseFields, error_of
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import allowed_names
from diamant.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.offset_delete.v0.request import OffsetDeleteRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.topics.topics import Topics


def answer(
    groups: GroupCoordinator, topics: Topics, context: RequestContext, request: OffsetDeleteRequest
) -> ResponseFields:
    """Delete offsets."""
    places = [
        (str(topic.name), partition.partition_index) for topic in request.topics for partition in topic.partitions
    ]
    access = context.access
    visible = allowed_names(access, permissions.READ_TOPIC, (topic for topic, _ in places))
    images = topics.image.topics
    existing = dict.fromkeys(
        (topic, partition)
        for topic, partition in places
        if topic in visible and topic in topics.by_name and partition in images[topic].partitions
    )
    try:
        subscribed = groups.removal.delete(str(request.group_id), existing)
    except REQUEST_ERRORS as error:
        return {"error_code": error_of(error)[0]}
    results: dict[str, list[dict[str, int]]] = {}
    for topic, partition in places:
        code = ErrorCode.NONE
        if topic not in visible:
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif (topic, partition) not in existing:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif topic in subscribed:
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        results.setdefault(topic, []).append({"partition_index": partition, "error_code": int(code)})
    answered = [{"name": topic, "partitions": partitions} for topic, partitions in results.items()]
    return {"topics": answered}
