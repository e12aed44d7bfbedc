"""FindCoordinator (key 10), versions 0 to 6: this broker, for every group, transaction and share partition.

Versions: 0 has groups only, 1 adds the key type, 4 several keys in one request (KIP-699), 6 share groups (KIP-932).
Behaviour: the first request for a coordinator creates the topic with its state.
Deviations: that request is answered once the topic can be used; Kafka answers COORDINATOR_NOT_AVAILABLE, so clients retry.

Source: KafkaApis.handleFindCoordinatorRequest.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from diamant.broker.client.acl import CLUSTER_NAME
from diamant.broker.coordinators.internal_topic import InternalTopic
from diamant.broker.network.api import REQUEST_ERRORS, Answer, Api, RequestContext, error_of
from diamant.broker.security.authorization import needs
from diamant.broker.security.authorization.needs import Need
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.schemas import decode_request, encode_response_fields

if TYPE_CHECKING:
    from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest as OldRequest
    from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.node import Node
    from diamant.broker.transactions.coordinator import TransactionCoordinator

logger = logging.getLogger(__name__)

KEY = 10
FIRST_BATCHED = 4
GROUP, TRANSACTION, SHARE = range(3)
FIRST_WITH_SHARE = 6
NEEDS = {
    GROUP: needs.DESCRIBE_GROUP,
    TRANSACTION: needs.DESCRIBE_TRANSACTIONAL_ID,
    SHARE: needs.CLUSTER_ACTION,
}
DENIALS = {
    GROUP: "Group authorization failed.",
    TRANSACTION: "Transactional Id authorization failed.",
    SHARE: "Cluster authorization failed.",
}


def handle(
    groups: Lazy[GroupCoordinator],
    transactions: Lazy[TransactionCoordinator],
    node: Node,
    context: RequestContext,
    request: FindCoordinatorRequest,
) -> Answer:
    """Return this broker for every key. The first request for a coordinator waits until its topic exists."""
    key_type = getattr(request, "key_type", GROUP)
    need = NEEDS.get(key_type)
    if need is not None and not any(_may_ask(context, need, key) for key in _keys(context.api_version, request)):
        return _answer(node, context, request, key_type)  # without creating the topic
    if key_type == GROUP and not groups().log.topic.exists:
        return _create_and_answer(groups().log.topic, node, context, request, key_type)
    if key_type == TRANSACTION and not transactions().store.topic.exists:
        return _create_and_answer(transactions().store.topic, node, context, request, key_type)
    return _answer(node, context, request, key_type)


async def _create_and_answer(
    topic: InternalTopic, node: Node, context: RequestContext, request: FindCoordinatorRequest, key_type: int
) -> bytes:
    try:
        await topic.ensure()
    except REQUEST_ERRORS as error:
        logger.error("topic %s could not be created: %s", topic.name, error)
        return _answer(node, context, request, key_type, ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error_of(error)[1]))
    return _answer(node, context, request, key_type)


def _answer(
    node: Node,
    context: RequestContext,
    request: FindCoordinatorRequest,
    key_type: int,
    code: ErrorCode = ErrorCode.NONE,
    message: str = "",
) -> bytes:
    version = context.api_version
    if not (key_type in (GROUP, TRANSACTION) or (key_type == SHARE and version >= FIRST_WITH_SHARE)):
        code, message = ErrorCode.INVALID_REQUEST, f"unknown coordinator key type {key_type}"
    need = NEEDS.get(key_type) if code != ErrorCode.INVALID_REQUEST else None
    entries = []
    for key in _keys(version, request):
        if need is not None and not context.access.allows(need, need_name(need, key)):
            entries.append(_entry(key, need.denial, DENIALS[key_type]))
        elif code:
            entries.append(_entry(key, code, message))
        else:
            connection = context.connection
            place = (node.config.node_id, connection.advertised_host, connection.advertised_port)
            entries.append(_entry(key, code, message, place))
    fields = {"coordinators": entries} if version >= FIRST_BATCHED else entries[0]
    return encode_response_fields(KEY, version, fields)


def _keys(version: int, request: FindCoordinatorRequest) -> Sequence[str]:
    return request.coordinator_keys if version >= FIRST_BATCHED else (cast("OldRequest", request).key,)


def _may_ask(context: RequestContext, need: Need, key: str) -> bool:
    return context.access.allows(need, need_name(need, key), is_asked=False)


def need_name(need: Need, key: str) -> str:
    """Return the resource to authorize for a key: for a share group's partition, the cluster."""
    return CLUSTER_NAME if need is needs.CLUSTER_ACTION else key


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


API = Api(KEY, lambda version, body: decode_request(KEY, version, body), handle)
