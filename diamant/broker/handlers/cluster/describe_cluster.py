"""DescribeCluster (key 60), versions 0 to 2: the brokers of this process, one of which is also the controller.

Versions: 1 adds the endpoint type (KIP-919), which must be 1 (brokers) here; 2 adds the fenced flag (KIP-1073).

Source: KafkaApis.handleDescribeCluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.acl import ResourceType
from diamant.broker.network.api import RequestContext, ResponseFields
from diamant.broker.security.authorization import permissions
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.apis import NOT_REQUESTED

if TYPE_CHECKING:
    from kio.schema.describe_cluster.v2.request import DescribeClusterRequest

    from diamant.broker.node.node import Node

BROKERS, CONTROLLERS = 1, 2


def answer(node: Node, context: RequestContext, request: DescribeClusterRequest) -> ResponseFields:
    """Describe the brokers."""
    endpoint_type = getattr(request, "endpoint_type", BROKERS)
    if endpoint_type != BROKERS:
        is_known = endpoint_type == CONTROLLERS
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        return {
            "error_code": int(code),
            "error_message": (
                "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
                if is_known
                else f"Unsupported endpoint type {endpoint_type}"
            ),
            "cluster_id": "",
            "brokers": [],
        }
    return {
        "error_code": 0,
        "error_message": None,
        "endpoint_type": BROKERS,
        "cluster_id": node.cluster_id,
        "controller_id": node.controller_id,
        "brokers": _brokers(node, context, getattr(request, "include_fenced_brokers", False)),
        "cluster_authorized_operations": (
            cluster_operations(context) if request.include_cluster_authorized_operations else NOT_REQUESTED
        ),
    }


def _brokers(node: Node, context: RequestContext, has_fenced: bool) -> list[dict[str, object]]:
    table = node.topics.brokers
    return [
        {
            "broker_id": broker.broker_id,
            "host": broker.host,
            "port": broker.port,
            "rack": None if table is None else broker.rack,
            "is_fenced": table is not None and not table.is_up(broker.broker_id),
        }
        for broker in node.brokers_for(context.connection, has_fenced=has_fenced)
    ]


def cluster_operations(context: RequestContext) -> int:
    """Return a bit field of the cluster operations that the client may perform; 0 if it may not describe the cluster."""
    may_describe = context.access.allows(permissions.DESCRIBE_CLUSTER)
    return context.access.operations(ResourceType.CLUSTER) if may_describe else 0
