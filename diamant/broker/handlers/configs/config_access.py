"""The permissions needed to read and change configurations, by resource type.

Source: ConfigHelper.authorizeResource, ControllerApis.authorizeAlterResource.
"""

from __future__ import annotations

from collections.abc import Mapping

from diamant.broker.acl import CLUSTER_NAME, ResourceType
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.access import Access, check
from diamant.broker.security.authorization.permissions import Permission
from diamant.protocol.kraft import records

TO_READ: Mapping[int, Permission] = {
    records.TOPIC_RESOURCE: permissions.DESCRIBE_CONFIGS_TOPIC,
    records.GROUP_RESOURCE: permissions.DESCRIBE_CONFIGS_GROUP,
    records.BROKER_RESOURCE: permissions.DESCRIBE_CONFIGS_CLUSTER,
    records.BROKER_LOGGER_RESOURCE: permissions.DESCRIBE_CONFIGS_CLUSTER,
    records.CLIENT_METRICS_RESOURCE: permissions.DESCRIBE_CONFIGS_CLUSTER,
}
TO_CHANGE: Mapping[int, Permission] = {
    records.TOPIC_RESOURCE: permissions.ALTER_CONFIGS_TOPIC,
    records.GROUP_RESOURCE: permissions.ALTER_CONFIGS_GROUP,
    records.BROKER_RESOURCE: permissions.ALTER_CONFIGS_CLUSTER,
    records.BROKER_LOGGER_RESOURCE: permissions.ALTER_CONFIGS_CLUSTER,
    records.CLIENT_METRICS_RESOURCE: permissions.ALTER_CONFIGS_CLUSTER,
}

_DENIALS = {
    ResourceType.TOPIC: "Topic authorization failed.",
    ResourceType.GROUP: "Group authorization failed.",
    ResourceType.CLUSTER: "Cluster authorization failed.",
}


def check_resource_access(access: Access, by_type: Mapping[int, Permission], resource_type: int, name: str) -> None:
    """Raise KafkaError unless the client may read or change a resource's configurations. Unknown types pass and fail later."""
    permission = by_type.get(resource_type)
    if permission is not None:
        is_clusters = permission.resource == ResourceType.CLUSTER
        check(access, permission, CLUSTER_NAME if is_clusters else name, _DENIALS[permission.resource])
