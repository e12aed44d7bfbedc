"""Heartbeat (key 12), versions 0 to 4: a member of a classic group is alive, and hears whether it is to join again.

Versions: 3 adds static members (KIP-345).
Deviations: none known.

Source: KafkaApis.handleHeartbeatRequest, GroupCoordinatorService.heartbeat.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from diamant.broker.network.api import Answer, Api, RequestContext
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.schemas import decode_request, encode_response_fields

if TYPE_CHECKING:
    from kio.schema.heartbeat.v4.request import HeartbeatRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator

KEY = 12


def handle(groups: GroupCoordinator, context: RequestContext, request: HeartbeatRequest) -> Answer:
    """Start the member's session again."""
    error = groups.classic.heartbeat(
        str(request.group_id),
        str(request.member_id),
        getattr(request, "group_instance_id", None),
        int(request.generation_id),
    )
    return _encode(context.api_version, error)


@cache
def _encode(version: int, error: ErrorCode) -> bytes:
    """Kept: there are a handful of them."""
    return encode_response_fields(KEY, version, {"error_code": int(error)})


API = Api(KEY, lambda version, body: decode_request(KEY, version, body), handle)
