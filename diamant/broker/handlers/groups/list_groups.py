"""ListGroups (key 16), versions 0 to 5: the groups of this broker.

Versions: 4 adds the state and a filter by it (KIP-518), 5 the type and a filter by it (KIP-848). Filters ignore case; an empty
filter matches all groups.

Source: KafkaApis.handleListGroupsRequest, GroupMetadataManager.listGroups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.groups.coordinator.shard_order import in_listed_order
from diamant.broker.groups.store.group import Group
from diamant.broker.network.api import RequestContext, ResponseFields
from diamant.broker.security.authorization import permissions
from diamant.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.list_groups.v5.request import ListGroupsRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator

CONSUMER_PROTOCOL_TYPE = "consumer"


def answer(groups: GroupCoordinator, context: RequestContext, request: ListGroupsRequest) -> ResponseFields:
    """List the groups that match the filters."""
    if groups.loading.is_loading:
        return {"error_code": int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)}
    states = {str(state).lower() for state in getattr(request, "states_filter", ())}
    types = {str(kind).lower() for kind in getattr(request, "types_filter", ())}
    access = context.access
    is_for_all = access.allows(permissions.DESCRIBE_CLUSTER, is_asked=False)
    listed = []
    for group_id in in_listed_order(groups.log.topic, groups.groups):
        if not is_for_all and not access.allows(permissions.DESCRIBE_GROUP, group_id, is_asked=False):
            continue
        if not groups.log.topic.is_at(context.connection.broker_id, group_id):
            continue
        group = groups.groups[group_id]
        state = group.state
        if (not states or state.lower() in states) and (not types or group.group_type in types):
            listed.append(
                {
                    "group_id": group_id,
                    "protocol_type": _protocol_type(group),
                    "group_state": state,
                    "group_type": group.group_type,
                }
            )
    return {"groups": listed}


def _protocol_type(group: Group) -> str:
    if group.classic is not None:
        return group.classic.protocol_type or ""
    if group.share is not None or group.other is not None:
        return group.group_type
    return "" if group.consumer is None else CONSUMER_PROTOCOL_TYPE
