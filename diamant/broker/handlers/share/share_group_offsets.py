"""Requests that describe, move and delete the offsets of share groups (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diamant.broker.groups.delivery.share_delivery import NOT_HOSTED
from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, Response, ResponseFields, error_fields
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import check
from diamant.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.alter_share_group_offsets.v0.request import AlterShareGroupOffsetsRequest
    from kio.schema.delete_share_group_offsets.v0.request import DeleteShareGroupOffsetsRequest
    from kio.schema.describe_share_group_offsets.v1.request import DescribeShareGroupOffsetsRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.topics.topics import Topics


def describe(
    groups: GroupCoordinator, topics: Topics, context: RequestContext, request: DescribeShareGroupOffsetsRequest
) -> ResponseFields:
    """DescribeShareGroupOffsets (key 90), versions 0 to 1: the start offsets and lags of share groups (KIP-932).

    Versions: 1 adds the lag (KIP-1226).
    Behaviour: the offset is -1 for a partition that no member has fetched, or that does not exist.

    Source: KafkaApis.handleDescribeShareGroupOffsetsRequest.
    """
    described: list[dict[str, object]] = []
    for group in request.groups:
        group_id = str(group.group_id)
        try:
            check(context.access, permissions.DESCRIBE_GROUP, group_id, "Group authorization failed.")
            groups.log.topic.check_at(context.connection.broker_id, group_id)
            found = _described(groups, topics, context, group_id, group.topics)
            described.append({"group_id": group_id, "topics": found})
        except REQUEST_ERRORS as error:
            described.append({"group_id": group_id, **error_fields(error)})
    return {"groups": described}


def _described(
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


def alter(
    groups: GroupCoordinator, topics: Topics, context: RequestContext, request: AlterShareGroupOffsetsRequest
) -> Response:
    """AlterShareGroupOffsets (key 91), version 0: move the start offsets of a share group without members (KIP-932).

    Behaviour: a group that does not exist is created. If the group has members, the whole request is refused (NON_EMPTY_GROUP).

    Source: KafkaApis.handleAlterShareGroupOffsetsRequest.
    """
    try:
        groups.share_offsets.group_to_change(str(request.group_id), may_be_new=True)
    except REQUEST_ERRORS as error:
        return error_fields(error)
    if not groups.share.delivery.state.topic.exists:
        return _with_topic(groups, topics, context, request)
    return _altered(groups, topics, context, request)


async def _with_topic(
    groups: GroupCoordinator, topics: Topics, context: RequestContext, request: AlterShareGroupOffsetsRequest
) -> ResponseFields:
    await groups.share.delivery.state.topic.ensure()
    return _altered(groups, topics, context, request)


def _altered(
    groups: GroupCoordinator, topics: Topics, context: RequestContext, request: AlterShareGroupOffsetsRequest
) -> ResponseFields:
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
            responses.insert(0 if topic is None else len(responses), entry)  # as in Kafka, refused topics come first
    except REQUEST_ERRORS as error:
        return error_fields(error)
    return {"responses": responses}


def delete(
    groups: GroupCoordinator, topics: Topics, context: RequestContext, request: DeleteShareGroupOffsetsRequest
) -> ResponseFields:
    """DeleteShareGroupOffsets (key 92), version 0: delete the offsets of topics in a share group without members (KIP-932).

    Source: KafkaApis.handleDeleteShareGroupOffsetsRequest.
    """
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
        return error_fields(error)
    return {"responses": responses}
