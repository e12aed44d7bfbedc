"""ConsumerGroupDescribe (key 69), versions 0 to 1: consumer groups with members and assignments (KIP-848).

Versions: 1 adds the protocol that a member uses (KIP-1099).
Behaviour: a group that is not a consumer group is GROUP_ID_NOT_FOUND, after which clients send DescribeGroups. An empty group
id is INVALID_GROUP_ID without a message.

Source: KafkaApis.handleConsumerGroupDescribe, GroupMetadataManager.consumerGroupDescribe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from diamant.broker.acl import ResourceType
from diamant.broker.groups.coordinator.shard_order import in_described_order
from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, ResponseFields, error_fields
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import Access, check
from diamant.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator


def answer(groups: GroupCoordinator, context: RequestContext, request: ConsumerGroupDescribeRequest) -> ResponseFields:
    """Describe each group separately."""
    access = context.access
    described = []
    group_ids = [str(group_id) for group_id in request.group_ids]
    if groups.consumer.is_enabled:
        empty_ids = [group_id for group_id in group_ids if not group_id]
        group_ids = empty_ids + in_described_order(groups.log.topic, filter(None, group_ids))
    for group_id in group_ids:
        try:
            check(access, permissions.DESCRIBE_GROUP, group_id, "Group authorization failed.")
            groups.log.topic.check_at(context.connection.broker_id, group_id)
            fields = groups.consumer.describe(group_id)
            check_assignments(access, fields)
            if request.include_authorized_operations:
                fields["authorized_operations"] = access.operations(ResourceType.GROUP, group_id)
        except REQUEST_ERRORS as error:
            fields = {"group_id": group_id, **error_fields(error)}
            if fields["error_code"] == ErrorCode.INVALID_GROUP_ID:
                fields["error_message"] = None
        described.append(fields)
    return {"groups": described}


def check_assignments(access: Access, fields: Mapping[str, Any]) -> None:
    """Raise KafkaError if members of a described group have partitions of topics that the client may not describe."""
    if access.is_open:
        return
    names = {
        partitions["topic_name"]
        for member in fields["members"]
        for kind in ("assignment", "target_assignment")
        for partitions in member[kind]["topic_partitions"]
    }
    if not all(access.allows(permissions.DESCRIBE_TOPIC, name) for name in names):
        raise KafkaError(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "The group has described topic(s) that the client is not authorized to describe.",
        )
