"""ConsumerGroupHeartbeat (key 68), versions 0 to 1: a member of a consumer group joins, stays, or leaves (KIP-848).

Versions: 1 has member ids created by clients (KIP-1082) and subscriptions by regular expression.
Behaviour and deviations: `groups/membership/consumer_service.py`.

Source: KafkaApis.handleConsumerGroupHeartbeat, GroupCoordinatorService.consumerGroupHeartbeat.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from diamant.broker.groups.decisions.request import MemberRequest
from diamant.broker.network.api import REQUEST_ERRORS, Answer, RequestContext, client_host, error_fields
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import check
from diamant.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeat,
    decode_unchanged,
    encode_without_assignment,
)
from diamant.protocol.wire.schemas import decode_request, encode_response_fields
from diamant.storage.uuid_text import ZERO_ID

if TYPE_CHECKING:
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator

KEY = 68
_MILLISECOND = timedelta(milliseconds=1)


def handle(groups: GroupCoordinator, context: RequestContext, request: ConsumerGroupHeartbeat) -> Answer:
    """Answer immediately."""
    version = context.api_version
    owned = request.topic_partitions
    member = MemberRequest(
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        subscribed_topic_names=request.subscribed_topic_names,
        subscribed_topic_regex=request.subscribed_topic_regex,
        server_assignor=request.server_assignor,
        owned=None if owned is None else {topic_id or ZERO_ID: partitions for topic_id, partitions in owned},
        client_id=context.client_id or "",
        client_host=client_host(context),
    )
    try:
        for name in () if context.access.is_open else request.subscribed_topic_names or ():
            check(context.access, permissions.DESCRIBE_TOPIC, name)
        fields = groups.consumer.heartbeat(request.group_id, member, version, context.access)
        if "assignment" not in fields:
            return encode_without_assignment(
                fields["member_id"], fields["member_epoch"], fields.get("heartbeat_interval_ms", 0)
            )
    except REQUEST_ERRORS as error:
        fields = error_fields(error)
    return encode_response_fields(KEY, version, fields)


def decode(version: int, body: memoryview) -> ConsumerGroupHeartbeat:
    """Decode a request. Raises ProtocolError."""
    unchanged = decode_unchanged(version, body)
    if unchanged is not None:
        return unchanged
    request = decode_request(KEY, version, body)
    names, owned = request.subscribed_topic_names, request.topic_partitions
    return ConsumerGroupHeartbeat(
        str(request.group_id),
        str(request.member_id),
        int(request.member_epoch),
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout // _MILLISECOND,
        None if names is None else [str(name) for name in names],
        getattr(request, "subscribed_topic_regex", None),
        request.server_assignor,
        None if owned is None else [(entry.topic_id, entry.partitions) for entry in owned],
    )
