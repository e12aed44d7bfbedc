"""UnregisterBroker (key 64), version 0: remove the registration of a broker that does not belong to this process.

Deviations: a request to unregister a broker of this process is refused (INVALID_REQUEST). Kafka carries it out; the broker
then stays fenced until its next start.

Source: QuorumController.unregisterBroker, ClusterControlManager.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, ResponseFields, error_fields
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.kraft.records import UnregisterBrokerRecord

if TYPE_CHECKING:
    from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest

    from diamant.broker.node.node import Node


async def answer(node: Node, context: RequestContext, request: UnregisterBrokerRequest) -> ResponseFields:
    """Unregister a broker."""
    broker_id = int(request.broker_id)
    try:
        registration = node.metadata.image.brokers.get(broker_id)
        if registration is None:
            raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered")
        if broker_id in node.config.broker_ids:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker ID {broker_id} belongs to this process and is in use")
        node.metadata.append([UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=registration.broker_epoch)])
        await node.topics.sync()
    except REQUEST_ERRORS as error:
        return error_fields(error)
    return {"error_code": 0, "error_message": None}
