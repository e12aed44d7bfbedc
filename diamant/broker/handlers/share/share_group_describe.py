"""ShareGroupDescribe (key 77), version 1: share groups with members and assignments (KIP-932).

Source: KafkaApis.handleShareGroupDescribe, GroupMetadataManager.shareGroupDescribe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.acl import ResourceType
from diamant.broker.groups.coordinator.shard_order import in_described_order
from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, ResponseFields, error_fields
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import check
from diamant.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.share_group_describe.v1.request import ShareGroupDescribeRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator


def answer(groups: GroupCoordinator, context: RequestContext, request: ShareGroupDescribeRequest) -> ResponseFields:
    """Describe each group separately."""
    described = []
    group_ids = [str(group_id) for group_id in request.group_ids]
    empty_ids = [group_id for group_id in group_ids if not group_id]
    for group_id in empty_ids + in_described_order(groups.log.topic, filter(None, group_ids)):
        try:
            check(context.access, permissions.DESCRIBE_GROUP, group_id, "Group authorization failed.")
            groups.log.topic.check_at(context.connection.broker_id, group_id)
            fields = groups.share.described(group_id)
            if not all(
                context.access.allows(permissions.DESCRIBE_TOPIC, name)
                for name in groups.share.assigned_topics(group_id)
            ):
                raise KafkaError(
                    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                    "The group has described topic(s) that the client is not authorized to describe.",
                )
            if request.include_authorized_operations:
                fields["authorized_operations"] = context.access.operations(ResourceType.GROUP, group_id)
        except REQUEST_ERRORS as error:
            fields = {"group_id": group_id, **error_fields(error)}
            if fields["error_code"] == ErrorCode.INVALID_GROUP_ID:
                fields["error_message"] = None
        described.append(fields)
    return {"groups": described}
