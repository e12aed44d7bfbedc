"""DescribeShareGroupOffsets (key 90), versions 0 to 1: where share groups are, and what they have not done (KIP-932).

Versions: 1 has the lag (KIP-1226).
Behaviour: an offset of -1 for a partition that no member has fetched, or that does not exist.
Deviations: none known.

Source: KafkaApis.handleDescribeShareGroupOffsetsRequest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diamant.broker.network.api import REQUEST_ERRORS, Answer, RequestContext, error_of
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import check
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.schemas import encode_response_fields

if TYPE_CHECKING:
    from kio.schema.describe_share_group_offsets.v1.request import DescribeShareGroupOffsetsRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.topics.topics import Topics

KEY = 90


def handle(
    groups: GroupCoordinator, topics: Topics, context: RequestContext, request: DescribeShareGroupOffsetsRequest
) -> Answer:
    """Describe each group separately."""
    described: list[dict[str, object]] = []
    for group in request.groups:
        group_id = str(group.group_id)
        try:
            check(context.access, permissions.DESCRIBE_GROUP, group_id, "Group authorization failed.")
            groups.log.topic.check_at(context.connection.broker_id, group_id)
            found = _topics(groups, topics, context, group_id, group.topics)
            described.append({"group_id": group_id, "topics": found})
        except REQUEST_ERRORS as error:
            code, message = error_of(error)
            described.append({"group_id": group_id, "error_code": code, "error_message": message})
    return encode_response_fields(KEY, context.api_version, {"groups": described})


def _topics(
    groups: GroupCoordinator, topics: Topics, context: RequestContext, group_id: str, asked: Any
) -> list[dict[str, object]]:
    offsets = groups.share_offsets
    wanted: list[tuple[str, list[int]]] = []
    initialized = offsets.initialized(group_id)
    if asked is None:
        for known in initialized:
            if context.access.allows(permissions.DESCRIBE_TOPIC, known.topic_name, is_asked=False):
                wanted.append((known.topic_name, list(known.partitions)))
    else:
        wanted = [(str(one.topic_name), [int(number) for number in one.partitions]) for one in asked]
    described: list[dict[str, object]] = []
    for name, numbers in wanted:
        topic = topics.by_name.get(name)
        code = 0
        if not context.access.allows(permissions.DESCRIBE_TOPIC, name):
            code, topic = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED), None
        partitions = []
        for number in numbers:
            fields: dict[str, object] = {"partition_index": number, "start_offset": -1, "lag": -1, "error_code": code}
            if topic is not None:
                found = offsets.of(group_id, topic.topic_id, number, topic.logs.get(number))
                fields |= {"start_offset": found.start_offset, "leader_epoch": found.leader_epoch, "lag": found.lag}
            partitions.append(fields)
        topic_id = None if topic is None else topic.topic_id
        described.append({"topic_name": name, "topic_id": topic_id, "partitions": partitions})
    return described
