"""JoinGroup (key 11), versions 0 to 9: a member joins a classic group; the answer is sent when the join phase ends.

Versions: 1 adds the rebalance timeout (before, the session timeout is used), 4 makes new dynamic members rejoin with their id
(MEMBER_ID_REQUIRED, KIP-394), 5 adds static members (KIP-345), 7 the protocol type in the answer and a nullable protocol name,
8 a reason (KIP-800), 9 skip_assignment (KIP-814).
Behaviour and deviations: `groups/classic/joining.py`.

Source: KafkaApis.handleJoinGroupRequest, GroupCoordinatorService.joinGroup, JoinGroupResponse.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from diamant.broker.groups.classic.events import UNKNOWN_MEMBER_ID, GroupProtocol, JoinAnswer, JoinRequest
from diamant.broker.network.api import Answer, RequestContext, client_host
from diamant.protocol.wire.schemas import encode_response_fields

if TYPE_CHECKING:
    from kio.schema.join_group.v9.request import JoinGroupRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator

KEY = 11
FIRST_WITH_REBALANCE_TIMEOUT = 1
FIRST_WITH_NULLABLE_PROTOCOL_NAME = 7
_MILLISECOND = timedelta(milliseconds=1)


def handle(groups: GroupCoordinator, context: RequestContext, request: JoinGroupRequest) -> Answer:
    """Join a group. The answer may take as long as the rebalance timeout."""
    version = context.api_version
    session_timeout = request.session_timeout
    has_rebalance_timeout = version >= FIRST_WITH_REBALANCE_TIMEOUT
    instance_id = getattr(request, "group_instance_id", None)
    client_id = context.client_id or ""
    member_id = str(request.member_id)
    join = JoinRequest(
        member_id=member_id,
        group_instance_id=None if instance_id is None else str(instance_id),
        client_id=client_id,
        client_host=client_host(context),
        session_timeout_ms=session_timeout // _MILLISECOND,
        rebalance_timeout_ms=(request.rebalance_timeout if has_rebalance_timeout else session_timeout) // _MILLISECOND,
        protocol_type=str(request.protocol_type),
        protocols=tuple(GroupProtocol(str(protocol.name), protocol.metadata) for protocol in request.protocols),
        version=version,
        fresh_id=f"{client_id if instance_id is None else instance_id}-{uuid4()}"
        if member_id == UNKNOWN_MEMBER_ID
        else "",
    )
    return groups.classic.join(str(request.group_id), join, partial(_encode, version))


def _encode(version: int, answer: JoinAnswer) -> bytes:
    protocol_name = answer.protocol_name or None
    if version < FIRST_WITH_NULLABLE_PROTOCOL_NAME:
        protocol_name = protocol_name or ""
    return encode_response_fields(
        KEY,
        version,
        {
            "error_code": int(answer.error),
            "generation_id": answer.generation_id,
            "protocol_type": answer.protocol_type,
            "protocol_name": protocol_name,
            "leader": answer.leader,
            "skip_assignment": answer.skip_assignment,
            "member_id": answer.member_id,
            "members": [member._asdict() for member in answer.members],
        },
    )
