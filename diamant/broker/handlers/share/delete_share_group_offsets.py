"""DeleteShareGroupOffsets (key 92), version 0: a share group without members forgets topics (KIP-932).

Deviations: none known.

Source: KafkaApis.handleDeleteShareGroupOffsetsRequest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.groups.delivery.share_delivery import NOT_HOSTED
from diamant.broker.network.api import REQUEST_ERRORS, Answer, RequestContext, error_of
from diamant.broker.security.authorization import permissions
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.schemas import encode_response_fields

if TYPE_CHECKING:
    from kio.schema.delete_share_group_offsets.v0.request import DeleteShareGroupOffsetsRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.topics.topics import Topics

KEY = 92


def handle(
    groups: GroupCoordinator, topics: Topics, context: RequestContext, request: DeleteShareGroupOffsetsRequest
) -> Answer:
    """Forget each topic separately."""
    responses: list[dict[str, object]] = []
    try:
        group = groups.share_offsets.group_to_change(str(request.group_id))
        for asked in request.topics:
            name = str(asked.topic_name)
            topic = topics.by_name.get(name)
            if not context.access.allows(permissions.READ_TOPIC, name):
                denied = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                responses.append(
                    {"topic_name": name, "error_code": denied, "error_message": "Topic authorization failed."}
                )
            elif topic is None:
                unknown = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                responses.append({"topic_name": name, "error_code": unknown, "error_message": NOT_HOSTED})
            else:
                groups.share_offsets.delete(group, [topic.topic_id])
                responses.append({"topic_name": name, "topic_id": topic.topic_id})
    except REQUEST_ERRORS as error:
        code, text = error_of(error)
        return encode_response_fields(KEY, context.api_version, {"error_code": code, "error_message": text})
    return encode_response_fields(KEY, context.api_version, {"responses": responses})
