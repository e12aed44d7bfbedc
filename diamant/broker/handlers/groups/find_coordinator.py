"""FindCoordinator (key 10), versions 0 to 6: the coordinators of groups, transactions and share partitions.

Versions: 0 has groups only, 1 adds the key type, 4 several keys in one request (KIP-699), 6 share groups (KIP-932).
Behaviour: the coordinator is this broker or, with several brokers, the leader of the partition that has the key's state. The
first request creates the topic for that state, and is answered immediately with COORDINATOR_NOT_AVAILABLE; the client retries.
Deviations: further requests wait until the topic exists; with `diamant.auto.create.topics.answer=ready`, so does the first.

Source: KafkaApis.handleFindCoordinatorRequest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from diamant.broker.acl import CLUSTER_NAME
from diamant.broker.config.broker_table import CREATE_ANSWER, READY
from diamant.broker.coordinators.internal_topic import coordinator_of
from diamant.broker.network.api import ConnectionInfo, RequestContext, Response, ResponseFields
from diamant.broker.security.authorization import permissions
from diamant.broker.security.authorization.permissions import Permission
from diamant.broker.topics.internal_names import GROUP_OFFSETS_TOPIC, SHARE_GROUP_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from diamant.protocol.errors import ErrorCode
from diamant.storage.uuid_text import uuid_from_text

if TYPE_CHECKING:
    from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest as OldRequest
    from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest

    from diamant.broker.node.node import Node
    from diamant.broker.topics.auto_creation import AutoCreation

FIRST_BATCHED = 4
GROUP, TRANSACTION, SHARE = range(3)
FIRST_WITH_SHARE = 6
NOT_AVAILABLE = "The coordinator is not available."
TOPICS = {GROUP: GROUP_OFFSETS_TOPIC, TRANSACTION: TRANSACTION_STATE_TOPIC, SHARE: SHARE_GROUP_STATE_TOPIC}
NEEDS = {
    GROUP: permissions.DESCRIBE_GROUP,
    TRANSACTION: permissions.DESCRIBE_TRANSACTIONAL_ID,
    SHARE: permissions.CLUSTER_ACTION,
}
DENIALS = {
    GROUP: "Group authorization failed.",
    TRANSACTION: "Transactional Id authorization failed.",
    SHARE: "Cluster authorization failed.",
}


def answer(creation: AutoCreation, node: Node, context: RequestContext, request: FindCoordinatorRequest) -> Response:
    """Return the coordinator of every key. Create the topic for their state if it does not exist."""
    key_type = getattr(request, "key_type", GROUP)
    permission = NEEDS.get(key_type)
    name = TOPICS.get(key_type)
    may_ask = permission is not None and any(
        _may_ask(context, permission, key) for key in _keys(context.api_version, request)
    )
    if not may_ask or name is None or name in node.topics.by_name:
        return _answer(node, context, request, key_type)
    if creation.is_pending(name) or node.config[CREATE_ANSWER] == READY:
        return _answer_settled(creation, name, node, context, request, key_type)
    creation.begin([name])
    return _not_available(node, context, request, key_type)


async def _answer_settled(
    creation: AutoCreation,
    name: str,
    node: Node,
    context: RequestContext,
    request: FindCoordinatorRequest,
    key_type: int,
) -> ResponseFields:
    creation.begin([name])
    await creation.settled([name])
    answer = _answer if name in node.topics.by_name else _not_available
    return answer(node, context, request, key_type)


def _not_available(
    node: Node, context: RequestContext, request: FindCoordinatorRequest, key_type: int
) -> ResponseFields:
    message = "" if context.api_version >= FIRST_BATCHED else NOT_AVAILABLE
    return _answer(node, context, request, key_type, ErrorCode.COORDINATOR_NOT_AVAILABLE, message)


def _answer(
    node: Node,
    context: RequestContext,
    request: FindCoordinatorRequest,
    key_type: int,
    code: ErrorCode = ErrorCode.NONE,
    message: str = "",
) -> ResponseFields:
    version = context.api_version
    if not (key_type in (GROUP, TRANSACTION) or (key_type == SHARE and version >= FIRST_WITH_SHARE)):
        code, message = ErrorCode.INVALID_REQUEST, f"unknown coordinator key type {key_type}"
    permission = NEEDS.get(key_type) if code != ErrorCode.INVALID_REQUEST else None
    entries = []
    for key in _keys(version, request):
        if permission is not None and not context.access.allows(permission, need_name(permission, key)):
            entries.append(_entry(key, permission.denial, DENIALS[key_type]))
        elif code:
            entries.append(_entry(key, code, message))
        elif key_type == SHARE and not _is_share_key(key):
            entries.append(_entry(key, ErrorCode.INVALID_REQUEST, ""))
        else:
            entries.append(
                _found(node, context.connection, TOPICS.get(key_type), key, is_batched=version >= FIRST_BATCHED)
            )
    return {"coordinators": entries} if version >= FIRST_BATCHED else entries[0]


def _found(
    node: Node, connection: ConnectionInfo, topic: str | None, key: str, *, is_batched: bool
) -> dict[str, int | str]:
    brokers = node.topics.brokers
    if brokers is None or topic is None:
        place = (node.config.node_id, connection.advertised_host, connection.advertised_port)
        return _entry(key, ErrorCode.NONE, "", place)
    broker_id = coordinator_of(brokers, topic, key)
    if broker_id is None or broker_id < 0:
        return _entry(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "" if is_batched else NOT_AVAILABLE)
    address = brokers.address(broker_id, connection.listener_name, connection.advertised_host)
    return _entry(key, ErrorCode.NONE, "", address[:3])


def _keys(version: int, request: FindCoordinatorRequest) -> Sequence[str]:
    return request.coordinator_keys if version >= FIRST_BATCHED else (cast("OldRequest", request).key,)


def _is_share_key(key: str) -> bool:
    """Return whether a key names a share partition: a group, a topic's id and a partition (`SharePartitionKey.validate`)."""
    try:
        group_id, topic_id, partition = key.rsplit(":", 2)
        uuid_from_text(topic_id)
        int(partition)
    except ValueError:
        return False
    return bool(group_id)


def _may_ask(context: RequestContext, permission: Permission, key: str) -> bool:
    return context.access.allows(permission, need_name(permission, key), is_asked=False)


def need_name(permission: Permission, key: str) -> str:
    """Return the resource to authorize for a key: the group or transactional id itself, or the cluster for a share partition."""
    return CLUSTER_NAME if permission is permissions.CLUSTER_ACTION else key


def _entry(key: str, code: ErrorCode, message: str, place: tuple[int, str, int] = (-1, "", -1)) -> dict[str, int | str]:
    node_id, host, port = place
    return {
        "key": key,
        "node_id": node_id,
        "host": host,
        "port": port,
        "error_code": int(code),
        "error_message": message,
    }
