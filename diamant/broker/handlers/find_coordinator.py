"""FindCoordinator (key 10), versions 0 to 6: this broker, for every group, transaction and share partition.

Versions: 0 has groups only, 1 adds the key type, 4 several keys in one request (KIP-699), 6 share groups (KIP-932).
Deviations: none known.

Source: KafkaApis.handleFindCoordinatorRequest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diamant.broker.dispatch import Api, RequestContext
from diamant.broker.server import Answer
from diamant.protocol.errors import ErrorCode
from diamant.protocol.schemas import decode_request, encode_response_fields

if TYPE_CHECKING:
    from diamant.broker.broker import Broker

KEY = 10
FIRST_BATCHED = 4
GROUP, TRANSACTION, SHARE = range(3)
FIRST_WITH_SHARE = 6


def handle(broker: Broker, context: RequestContext, request: Any) -> Answer:
    """Name this broker for every key."""
    version = context.api_version
    key_type = getattr(request, "key_type", GROUP)
    keys = request.coordinator_keys if version >= FIRST_BATCHED else (request.key,)
    is_known = key_type in (GROUP, TRANSACTION) or (key_type == SHARE and version >= FIRST_WITH_SHARE)
    entries = [
        {
            "key": key,
            "node_id": broker.config.node_id if is_known else -1,
            "host": context.connection.advertised_host if is_known else "",
            "port": context.connection.advertised_port if is_known else -1,
            "error_code": int(ErrorCode.NONE if is_known else ErrorCode.INVALID_REQUEST),
            "error_message": "" if is_known else f"unknown coordinator key type {key_type}",
        }
        for key in keys
    ]
    fields = {"coordinators": entries} if version >= FIRST_BATCHED else entries[0]
    return encode_response_fields(KEY, version, fields)


API = Api(KEY, lambda version, body: decode_request(KEY, version, body), handle)
