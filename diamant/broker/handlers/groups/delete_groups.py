"""DeleteGroups (key 42), versions 0 to 3: delete groups without members, with their committed offsets.

Versions: 3 adds a message for each group, which Kafka fills for streams groups only (KIP-1331).

Source: KafkaApis.handleDeleteGroupsRequest, GroupCoordinatorShard.deleteGroups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, ResponseFields, error_of
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import check

if TYPE_CHECKING:
    from kio.schema.delete_groups.v2.request import DeleteGroupsRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator


def answer(groups: GroupCoordinator, context: RequestContext, request: DeleteGroupsRequest) -> ResponseFields:
    """Delete each group that may be deleted."""
    results = []
    for group_id in dict.fromkeys(map(str, request.groups_names)):
        code = 0
        try:
            check(context.access, permissions.DELETE_GROUP, group_id)
            groups.log.topic.check_at(context.connection.broker_id, group_id)
            groups.deletion.delete(group_id)
        except REQUEST_ERRORS as error:
            code = error_of(error)[0]
        results.append({"group_id": group_id, "error_code": code})
    return {"results": results}
