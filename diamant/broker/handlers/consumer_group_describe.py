"""ConsumerGroupDescribe (key 69), versions 0 to 1: consumer groups with members and assignments (KIP-848).

Versions: 1 adds the protocol that a member uses (KIP-1099).
Behaviour: a group that is not a consumer group is GROUP_ID_NOT_FOUND, which has clients ask DescribeGroups for it.
Deviations: none known.

Source: KafkaApis.handleConsumerGroupDescribe, GroupMetadataManager.consumerGroupDescribe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diamant.broker.dispatch import REQUEST_ERRORS, Api, RequestContext, error_of
from diamant.broker.server import Answer
from diamant.protocol.schemas import decode_request, encode_response_fields

if TYPE_CHECKING:
    from diamant.broker.broker import Broker

KEY = 69
AUTHORIZED_OPERATIONS = -(1 << 31)
"""Not known: there is no authorizer that could say."""


def handle(broker: Broker, context: RequestContext, request: Any) -> Answer:
    """Describe each group for itself."""
    groups = []
    for group_id in request.group_ids:
        try:
            fields = broker.groups.consumer.describe(str(group_id))
        except REQUEST_ERRORS as error:
            code, message = error_of(error)
            fields = {"group_id": str(group_id), "error_code": code, "error_message": message}
        groups.append({"authorized_operations": AUTHORIZED_OPERATIONS, **fields})
    return encode_response_fields(KEY, context.api_version, {"groups": groups})


API = Api(KEY, lambda version, body: decode_request(KEY, version, body), handle)
