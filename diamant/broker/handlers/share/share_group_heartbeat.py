"""ShareGroupHeartbeat (key 76), version 1: a member of a share group joins, stays, or leaves (KIP-932).

Behaviour: see `groups/membership/share_service.py`. The first heartbeat of any share group creates `__share_group_state`, and
waits for it.
Deviations: a member's first heartbeat already assigns its partitions; in Kafka, the second does.

Source: KafkaApis.handleShareGroupHeartbeat, GroupCoordinatorService.shareGroupHeartbeat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.groups.membership.share_service import ShareHeartbeat
from diamant.broker.network.api import (
    REQUEST_ERRORS,
    RequestContext,
    Response,
    ResponseFields,
    client_host,
    error_fields,
)
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import check

if TYPE_CHECKING:
    from kio.schema.share_group_heartbeat.v1.request import ShareGroupHeartbeatRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator


def answer(groups: GroupCoordinator, context: RequestContext, request: ShareGroupHeartbeatRequest) -> Response:
    """Answer immediately or, if the state topic has to be created first, after that."""
    names = request.subscribed_topic_names
    heartbeat = ShareHeartbeat(
        str(request.group_id),
        str(request.member_id or ""),
        int(request.member_epoch),
        request.rack_id,
        None if names is None else tuple(str(name) for name in names),
        context.client_id or "",
        client_host(context),
    )
    if heartbeat.member_epoch == 0 and groups.share.is_enabled and not groups.share.delivery.state.topic.exists:
        return _with_topic(groups, context, heartbeat)
    return _answer(groups, context, heartbeat)


async def _with_topic(groups: GroupCoordinator, context: RequestContext, heartbeat: ShareHeartbeat) -> ResponseFields:
    await groups.share.delivery.state.topic.ensure()
    return _answer(groups, context, heartbeat)


def _answer(groups: GroupCoordinator, context: RequestContext, heartbeat: ShareHeartbeat) -> ResponseFields:
    try:
        for name in () if context.access.is_open else heartbeat.topic_names or ():
            check(context.access, permissions.DESCRIBE_TOPIC, name)
        return groups.share.heartbeat(heartbeat)
    except REQUEST_ERRORS as error:
        return error_fields(error)
