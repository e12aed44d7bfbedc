"""FindCoordinator (key 10), versions 0 to 6: this broker, for every group, transaction and share partition.

Versions: 0 has groups only, 1 adds the key type, 4 several keys in one request (KIP-699), 6 share groups (KIP-932).
Behaviour: the topic in which a coordinator keeps its state is created with the first request for such a coordinator.
Deviations: that request is answered when the topic can be used; Kafka answers COORDINATOR_NOT_AVAILABLE, to be asked again.

Source: KafkaApis.handleFindCoordinatorRequest.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

from diamant.broker.coordinators.internal_topic import InternalTopic
from diamant.broker.network.api import REQUEST_ERRORS, Answer, Api, RequestContext, error_of
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


def handle(
    groups: Lazy[GroupCoordinator],
    transactions: Lazy[TransactionCoordinator],
    node: Node,
    context: RequestContext,
    request: FindCoordinatorRequest,
) -> Answer:
    """Name this broker for every key. The first to ask for a coordinator waits until its topic is there."""
    key_type = getattr(request, "key_type", GROUP)
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
    keys = request.coordinator_keys if version >= FIRST_BATCHED else (cast("OldRequest", request).key,)
    is_found = code == ErrorCode.NONE
    entries = [
        {
            "key": key,
            "node_id": node.config.node_id if is_found else -1,
            "host": context.connection.advertised_host if is_found else "",
            "port": context.connection.advertised_port if is_found else -1,
            "error_code": int(code),
            "error_message": message,
        }
        for key in keys
    ]
    fields = {"coordinators": entries} if version >= FIRST_BATCHED else entries[0]
    return encode_response_fields(KEY, version, fields)


API = Api(KEY, lambda version, body: decode_request(KEY, version, body), handle)
