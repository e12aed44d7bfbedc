"""DescribeGroups (key 15), versions 0 to 6: state and members of classic groups.

Versions: 3 adds authorized operations, 4 instance ids, 6 the error GROUP_ID_NOT_FOUND with a message; in earlier versions, a
missing group is in state Dead. Groups of other protocols count as missing; ConsumerGroupDescribe describes consumer groups.

Source: KafkaApis.handleDescribeGroupsRequest, GroupMetadataManager.describeGroups, ClassicGroup.describe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.acl import ResourceType
from diamant.broker.groups.coordinator.shard_order import in_described_order
from diamant.broker.groups.store.group import Group
from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, ResponseFields, error_of
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import check
from diamant.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.describe_groups.v6.request import DescribeGroupsRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator

FIRST_WITH_GROUP_ID_NOT_FOUND = 6


def answer(groups: GroupCoordinator, context: RequestContext, request: DescribeGroupsRequest) -> ResponseFields:
    """Describe groups, including missing ones."""
    version = context.api_version
    described = []
    for group_id in in_described_order(groups.log.topic, map(str, request.groups)):
        try:
            check(context.access, permissions.DESCRIBE_GROUP, group_id)
            groups.log.topic.check_at(context.connection.broker_id, group_id)
            groups.check_usable(group_id, may_be_empty=True)
            group = groups.group(group_id)
            if group is None:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
            if group.group_type != "classic":
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a classic group.")
            fields = _describe(group)
        except REQUEST_ERRORS as error:
            code, message = error_of(error)
            fields = {"group_id": group_id, "error_code": code}
            if code == ErrorCode.GROUP_ID_NOT_FOUND:
                fields["group_state"] = "Dead"
                if version >= FIRST_WITH_GROUP_ID_NOT_FOUND:
                    fields["error_message"] = message
                else:
                    fields["error_code"] = 0
        if getattr(request, "include_authorized_operations", False) and not fields["error_code"]:
            fields["authorized_operations"] = context.access.operations(ResourceType.GROUP, group_id)
        described.append(fields)
    return {"groups": described}


def _describe(group: Group) -> dict[str, object]:
    classic = group.classic
    if classic is None:
        return {"group_id": group.group_id, "error_code": 0, "group_state": group.state}
    is_stable = group.state == "Stable"
    return {
        "group_id": group.group_id,
        "error_code": 0,
        "group_state": group.state,
        "protocol_type": classic.protocol_type or "",
        "protocol_data": (classic.protocol_name or "") if is_stable else "",
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata(classic.protocol_name) if is_stable else b"",
                "member_assignment": member.assignment,
            }
            for member in classic.members.values()
        ],
    }
