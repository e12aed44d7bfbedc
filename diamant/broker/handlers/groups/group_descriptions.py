"""Descriptions of consumer groups and share groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from diamant.broker.acl import ResourceType
from diamant.broker.groups.coordinator.shard_order import in_described_order
from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, ResponseFields, error_fields
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import check
from diamant.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest
    from kio.schema.share_group_describe.v1.request import ShareGroupDescribeRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator


def describe_consumer_groups(
    groups: GroupCoordinator, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> ResponseFields:
    """ConsumerGroupDescribe (key 69), versions 0 to 1: consumer groups with members and assignments (KIP-848).

    Versions: 1 adds the protocol that a member uses (KIP-1099).
    Behaviour: the error for a group that is not a consumer group is GROUP_ID_NOT_FOUND, after which clients send DescribeGroups;
    for an empty group id it is INVALID_GROUP_ID without a message.

    Source: KafkaApis.handleConsumerGroupDescribe, GroupMetadataManager.consumerGroupDescribe.
    """

    def describe(group_id: str) -> tuple[dict[str, object], Iterable[str]]:
        fields = groups.consumer.describe(group_id)
        return fields, (
            partitions["topic_name"]
            for member in fields["members"]
            for kind in ("assignment", "target_assignment")
            for partitions in member[kind]["topic_partitions"]
        )

    return _described(groups, context, request, describe, in_order=groups.consumer.is_enabled)


def describe_share_groups(
    groups: GroupCoordinator, context: RequestContext, request: ShareGroupDescribeRequest
) -> ResponseFields:
    """ShareGroupDescribe (key 77), version 1: share groups with members and assignments (KIP-932).

    Source: KafkaApis.handleShareGroupDescribe, GroupMetadataManager.shareGroupDescribe.
    """

    def describe(group_id: str) -> tuple[dict[str, object], Iterable[str]]:
        return groups.share.described(group_id), groups.share.assigned_topics(group_id)

    return _described(groups, context, request, describe)


def _described(
    groups: GroupCoordinator,
    context: RequestContext,
    request: ConsumerGroupDescribeRequest | ShareGroupDescribeRequest,
    describe: Callable[[str], tuple[dict[str, object], Iterable[str]]],
    *,
    in_order: bool = True,
) -> ResponseFields:
    """Describe each group separately. `describe` returns a group's fields and the topics assigned to its members."""
    access, described = context.access, []
    group_ids = [str(group_id) for group_id in request.group_ids]
    if in_order:
        empty_ids = [group_id for group_id in group_ids if not group_id]
        group_ids = empty_ids + in_described_order(groups.log.topic, filter(None, group_ids))
    for group_id in group_ids:
        try:
            check(access, permissions.DESCRIBE_GROUP, group_id, "Group authorization failed.")
            groups.log.topic.check_at(context.connection.broker_id, group_id)
            fields, topics = describe(group_id)
            may_see = access.is_open or all(
                map(partial(access.allows, permissions.DESCRIBE_TOPIC), dict.fromkeys(topics))
            )
            if not may_see:
                raise KafkaError(
                    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                    "The group has described topic(s) that the client is not authorized to describe.",
                )
            if request.include_authorized_operations:
                fields["authorized_operations"] = access.operations(ResourceType.GROUP, group_id)
        except REQUEST_ERRORS as error:
            fields = {"group_id": group_id, **error_fields(error)}
            if fields["error_code"] == ErrorCode.INVALID_GROUP_ID:
                fields["error_message"] = None
        described.append(fields)
    return {"groups": described}
