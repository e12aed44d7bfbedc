"""SyncGroup (key 14), versions 0 to 5: the leader sends the assignments, each member gets its own.

Versions: 3 adds static members (KIP-345), 5 protocol type and name in both directions (KIP-559).
Behaviour and deviations: `groups/classic/syncing.py`.

Source: KafkaApis.handleSyncGroupRequest, GroupCoordinatorService.syncGroup.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from diamant.broker.groups.classic.events import SyncAnswer, SyncRequest
from diamant.broker.network.api import Answer, RequestContext
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.schemas import encode_response_fields

if TYPE_CHECKING:
    from kio.schema.sync_group.v5.request import SyncGroupRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator

KEY = 14
FIRST_WITH_PROTOCOL = 5


def handle(groups: GroupCoordinator, context: RequestContext, request: SyncGroupRequest) -> Answer:
    """Synchronise a member. The answer may take as long as the rebalance timeout."""
    version = context.api_version
    encode = partial(_encode, version)
    if version >= FIRST_WITH_PROTOCOL and (request.protocol_type is None or request.protocol_name is None):
        # KIP-559 requires both from version 5 on.
        return encode(SyncAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    sync = SyncRequest(
        member_id=str(request.member_id),
        group_instance_id=getattr(request, "group_instance_id", None),
        generation_id=int(request.generation_id),
        protocol_type=getattr(request, "protocol_type", None),
        protocol_name=getattr(request, "protocol_name", None),
        assignments=tuple((str(entry.member_id), entry.assignment) for entry in request.assignments),
    )
    return groups.classic.sync(str(request.group_id), sync, encode)


def _encode(version: int, answer: SyncAnswer) -> bytes:
    return encode_response_fields(
        KEY,
        version,
        {
            "error_code": int(answer.error),
            "protocol_type": answer.protocol_type,
            "protocol_name": answer.protocol_name,
            "assignment": answer.assignment,
        },
    )
