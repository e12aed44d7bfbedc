"""Heartbeat (key 12), versions 0 to 4: a member of a classic group shows that it is alive, and learns if it must rejoin.

Versions: 3 adds static members (KIP-345).

Source: KafkaApis.handleHeartbeatRequest, GroupCoordinatorService.heartbeat.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from diamant.broker.network.api import Answer, RequestContext
from diamant.protocol.errors import ErrorCode
from diamant.protocol.messages.heartbeat import HeartbeatRequest, decode_heartbeat_request
from diamant.protocol.wire.schemas import encode_response_fields

if TYPE_CHECKING:
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator

KEY = 12


def handle(groups: GroupCoordinator, context: RequestContext, request: HeartbeatRequest) -> Answer:
    """Restart the member's session."""
    error = groups.classic.heartbeat(request.group_id, request.member_id, request.group_instance_id, request.generation)
    return _encode(context.api_version, error)


@cache
def _encode(version: int, error: ErrorCode) -> bytes:
    """Encode a response. Responses are cached, since only a few different ones exist."""
    return encode_response_fields(KEY, version, {"error_code": int(error)})


decode = decode_heartbeat_request
