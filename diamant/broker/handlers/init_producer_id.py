"""InitProducerId (key 22), versions 0 to 5: a fresh producer id for an idempotent producer.

Versions: 3 lets a producer name its old id and epoch (KIP-360): an idempotent one gets a new id all the same, as from
Kafka.
Deviations: transactional ids are refused until there is a transaction coordinator.

Source: TransactionCoordinator.handleInitProducerId.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diamant.broker.dispatch import Api, RequestContext
from diamant.broker.server import Answer
from diamant.protocol.errors import ErrorCode
from diamant.protocol.schemas import decode_request, encode_response_fields

if TYPE_CHECKING:
    from diamant.broker.broker import Broker

KEY = 22


def handle(broker: Broker, context: RequestContext, request: Any) -> Answer:
    """Hand out the next id; a coroutine only when a new block of ids has to be recorded first."""
    version = context.api_version
    if request.transactional_id is not None:
        is_empty = request.transactional_id == ""
        return _encode(version, ErrorCode.INVALID_REQUEST if is_empty else ErrorCode.UNSUPPORTED_VERSION, -1)
    producer_id = broker.producer_ids.take()
    if producer_id is None:
        return _with_new_block(broker, version)
    return _encode(version, ErrorCode.NONE, producer_id)


async def _with_new_block(broker: Broker, version: int) -> bytes:
    return _encode(version, ErrorCode.NONE, await broker.producer_ids.take_slowly())


def _encode(version: int, code: ErrorCode, producer_id: int) -> bytes:
    return encode_response_fields(
        KEY,
        version,
        {"error_code": int(code), "producer_id": producer_id, "producer_epoch": 0 if code is ErrorCode.NONE else -1},
    )


API = Api(KEY, lambda version, body: decode_request(KEY, version, body), handle)
