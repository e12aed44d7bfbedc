"""AlterShareGroupOffsets (key 91), version 0: a share group without members begins elsewhere (KIP-932).

Behaviour: a group that does not exist is created. NON_EMPTY_GROUP refuses the request as a whole.
Deviations: none known.

Source: KafkaApis.handleAlterShareGroupOffsetsRequest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.groups.delivery.share_delivery import NOT_HOSTED
from diamant.broker.network.api import REQUEST_ERRORS, Answer, RequestContext, error_of
from diamant.broker.security.authorization import permissions
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.schemas import encode_response_fields

if TYPE_CHECKING:
    from kio.schema.alter_share_group_offsets.v0.request import AlterShareGroupOffsetsRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.topics.topics import Topics

KEY = 91


def handle(
    groups: GroupCoordinator, topics: Topics, context: RequestContext, request: AlterShareGroupOffsetsRequest
) -> Answer:
    """Move the offsets of each topic separately, once the state topic exists."""
    try:
        groups.share_offsets.group_to_change(str(request.group_id), may_be_new=True)
    except REQUEST_ERRORS as error:
        code, text = error_of(error)
        return encode_response_fields(KEY, context.api_version, {"error_code": code, "error_message": text})
    if not groups.share.delivery.state.topic.exists:
        return _with_topic(groups, topics, context, request)
    return _answer(groups, topics, context, request)


async def _with_topic(
    groups: GroupCoordinator, topics: Topics, context: RequestContext, request: AlterShareGroupOffsetsRequest
) -> bytes:
    await groups.share.delivery.state.topic.ensure()
    return _answer(groups, topics, context, request)


def _answer(
    groups: GroupCoordinator, topics: Topics, context: RequestContext, request: AlterShareGroupOffsetsRequest
) -> bytes:
    responses: list[dict[str, object]] = []
    try:
        group = groups.share_offsets.group_to_change(str(request.group_id), may_be_new=True)
        for asked in request.topics:
            name = str(asked.topic_name)
            topic = topics.by_name.get(name)
            code, message = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), NOT_HOSTED
            if not context.access.allows(permissions.READ_TOPIC, name):
                topic, code, message = None, int(ErrorCode.TOPIC_AUTHORIZATION_FAILED), "Topic authorization failed."
            exists = {} if topic is None else topic.logs
            offsets = {int(one.partition_index): int(one.start_offset) for one in asked.partitions}
            if topic is not None and (found := {number: offsets[number] for number in offsets if number in exists}):
                groups.share_offsets.alter(group, name, topic.topic_id, found)
            partitions = [
                {"partition_index": number}
                if number in exists
                else {"partition_index": number, "error_code": code, "error_message": message}
                for number in offsets
            ]
            topic_id = None if topic is None else topic.topic_id
            entry: dict[str, object] = {"topic_name": name, "topic_id": topic_id, "partitions": partitions}
            responses.insert(0 if topic is None else len(responses), entry)  # as Kafka: what it refuses at first
    except REQUEST_ERRORS as error:
        code, text = error_of(error)
        return encode_response_fields(KEY, context.api_version, {"error_code": code, "error_message": text})
    return encode_response_fields(KEY, context.api_version, {"responses": responses})
