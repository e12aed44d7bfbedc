"""ConsumerGroupDescribe (key 69), versions 0 to 1: consumer groups with members and assignments (KIP-848).

Versions: 1 adds the protocol that a member uses (KIP-1099).
Behaviour: a group that is not a consumer group is GROUP_ID_NOT_FOUND, which has clients ask DescribeGroups for it. An empty group
id is INVALID_GROUP_ID without a message.
Deviations: none known.

Source: KafkaApis.handleConsumerGroupDescribe, GroupMetadataManager.consumerGroupDescribe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.groups.coordinator.shard_order import in_asked_order
from diamant.broker.network.api import REQUEST_ERRORS, Answer, Api, RequestContext, error_of
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.authorized_operations import GROUP_OPERATIONS, NOT_REQUESTED
from diamant.protocol.wire.schemas import decode_request, encode_response_fields

if TYPE_CHECKING:
    from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator

KEY = 69


def handle(groups: GroupCoordinator, context: RequestContext, request: ConsumerGroupDescribeRequest) -> Answer:
    """Describe each group for itself."""
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_REQUESTED
    described = []
    group_ids = [str(group_id) for group_id in request.group_ids]
    if groups.consumer.is_enabled:
        empty_ids = [group_id for group_id in group_ids if not group_id]
        group_ids = empty_ids + in_asked_order(groups.log.topic, filter(None, group_ids))
    for group_id in group_ids:
        try:
            fields = {"authorized_operations": operations, **groups.consumer.describe(group_id)}
        except REQUEST_ERRORS as error:
            code, message = error_of(error)
            if code == ErrorCode.INVALID_GROUP_ID:
                message = None
            fields = {"group_id": group_id, "error_code": code, "error_message": message}
        described.append(fields)
    return encode_response_fields(KEY, context.api_version, {"groups": described})


API = Api(KEY, lambda version, body: decode_request(KEY, version, body), handle)
