"""ShareAcknowledge (key 79), versions 1 to 2: a member accepts, releases or rejects records, or renews its locks (KIP-932).

Versions: 2 lets a member renew its locks (KIP-1222).
Behaviour: the batches of a partition take effect all together or not at all, and are in the state topic before the response is
sent. Epoch -1 ends the session and releases the records that its member still holds. The response lists only partitions with
acknowledgements, since any other partition makes librdkafka abort its process.

Source: KafkaApis.handleShareAcknowledgeRequest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diamant.broker.groups.delivery.share_delivery import LOCK_DURATION_MS
from diamant.broker.groups.delivery.share_sessions import FINAL_EPOCH
from diamant.broker.handlers.share.acknowledgements import acknowledged, endpoints, failed, requested_session
from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, ResponseFields

if TYPE_CHECKING:
    from kio.schema.share_acknowledge.v2.request import ShareAcknowledgeRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.topics.topics import Topics


def answer(
    groups: GroupCoordinator, topics: Topics, context: RequestContext, request: ShareAcknowledgeRequest
) -> ResponseFields:
    """Acknowledge each partition separately."""
    delivery = groups.share.delivery
    asked = requested_session(context, request)
    try:
        groups.share.check_enabled()
        delivery.sessions.for_acknowledgement(asked)
    except REQUEST_ERRORS as error:
        refused = failed(error)
        return {"error_code": refused.code, "error_message": refused.message}
    outcome = acknowledged(delivery, topics, context, asked, request)
    if asked.epoch == FINAL_EPOCH:
        delivery.end_session(asked.key)
    responses: dict[Any, list[dict[str, object]]] = {}
    for (topic_id, index), (code, message, leader) in outcome.items():
        responses.setdefault(topic_id, []).append(
            {
                "partition_index": index,
                "error_code": code,
                "error_message": message,
                "current_leader": dict(zip(("leader_id", "leader_epoch"), leader, strict=True)),
            }
        )
    return {
        "acquisition_lock_timeout_ms": delivery.value_of(asked.group_id, LOCK_DURATION_MS),
        "responses": [{"topic_id": topic_id, "partitions": found} for topic_id, found in responses.items()],
        "node_endpoints": [
            {"node_id": broker_id, "host": host, "port": port, "rack": rack}
            for broker_id, host, port, rack in endpoints(topics, context, outcome.values())
        ],
    }
