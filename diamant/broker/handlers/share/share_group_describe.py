"""ShareGroupDescribe (key 77), version 1: share groups with members and assignments (KIP-932).

Deviations: none known.

Source: KafkaApis.handleShareGroupDescribe, GroupMetadataManager.shareGroupDescribe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.acl import ResourceType
from diamant.broker.groups.coordinator.shard_order import in_described_order
from diamant.broker.network.api import REQUEST_ERRORS, Answer, RequestContext, error_of
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import check
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.wire.schemas import encode_response_fields

if TYPE_CHECKING:
    from kio.schema.share_group_describe.v1.request import ShareGroupDescribeRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator

KEY = 77


def handle(groups: GroupCoordinator, context: RequestContext, request: ShareGroupDescribeRequest) -> Answer:
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
            code, message = error_of(error)
            fields = {
                "group_id": group_id,
                "error_code": code,
                "error_message": None if code == ErrorCode.INVALID_GROUP_ID else message,
            }
        described.append(fields)
    return encode_response_fields(KEY, context.api_version, {"groups": described})
