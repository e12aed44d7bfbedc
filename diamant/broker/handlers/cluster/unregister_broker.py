"""UnregisterBroker (key 64), version 0: there are no other brokers, and this one cannot unregister itself.

Deviations: a Kafka node that is asked to unregister itself does so and stays fenced until its next start; here the answer
is INVALID_REQUEST.

Source: QuorumController.unregisterBroker, ClusterControlManager.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.network.api import REQUEST_ERRORS, Answer, RequestContext, error_of
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.kraft.records import UnregisterBrokerRecord
from diamant.protocol.wire.schemas import encode_response_fields

if TYPE_CHECKING:
    from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest

    from diamant.broker.node.node import Node

KEY = 64


def handle(node: Node, context: RequestContext, request: UnregisterBrokerRequest) -> Answer:
    """Unregister a broker. Always a coroutine, as the metadata log may have to be synced."""
    return _unregister(node, context.api_version, int(request.broker_id))


async def _unregister(node: Node, version: int, broker_id: int) -> bytes:
    code, message = 0, None
    try:
        registration = node.metadata.image.brokers.get(broker_id)
        if registration is None:
            raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered")
        if broker_id in node.config.broker_ids:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker ID {broker_id} is this broker, which is in use")
        node.metadata.append([UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=registration.broker_epoch)])
        await node.topics.sync()
    except REQUEST_ERRORS as error:
        code, message = error_of(error)
    return encode_response_fields(KEY, version, {"error_code": code, "error_message": message})
