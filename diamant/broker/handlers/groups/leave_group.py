"""LeaveGroup (key 13), versions 0 to 5: members leave a classic group, or an administrator removes them.

Versions: up to 2, one member id; from 3 on, a list of member ids and instance ids, with a result for each (KIP-345); 5 adds a
reason (KIP-800).
Behaviour: an empty member id with an instance id removes a static member.

Source: KafkaApis.handleLeaveGroupRequest, GroupCoordinatorService.leaveGroup, LeaveGroupResponse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from diamant.broker.groups.classic.events import Leaver
from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, ResponseFields, error_of

if TYPE_CHECKING:
    from kio.schema.leave_group.v5.request import LeaveGroupRequest, MemberIdentity

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator

FIRST_BATCHED = 3


def answer(groups: GroupCoordinator, context: RequestContext, request: LeaveGroupRequest) -> ResponseFields:
    """Remove the members; return a result for each."""
    version = context.api_version
    members = request.members if version >= FIRST_BATCHED else (cast("MemberIdentity", request),)
    leavers = [Leaver(str(member.member_id), getattr(member, "group_instance_id", None)) for member in members]
    try:
        results = groups.classic.leave(str(request.group_id), leavers)
    except REQUEST_ERRORS as error:
        return {"error_code": error_of(error)[0]}
    if version < FIRST_BATCHED:
        return {"error_code": int(results[0].error)}
    entries = [
        {"member_id": member_id, "group_instance_id": instance_id, "error_code": int(error)}
        for member_id, instance_id, error in results
    ]
    return {"members": entries}
