"""ReadShareGroupState (key 84), version 0: a broker that leads share partitions reads their state (KIP-932).

Deviations: none known.

Source: KafkaApis.handleReadShareGroupStateRequest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diamant.broker.handlers.share.state_answers import answered
from diamant.broker.network.api import Answer, RequestContext
from diamant.protocol.internal_topics.share_records import SharePartitionKey

if TYPE_CHECKING:
    from kio.schema.read_share_group_state.v0.request import ReadShareGroupStateRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator

KEY = 84


def handle(groups: GroupCoordinator, context: RequestContext, request: ReadShareGroupStateRequest) -> Answer:
    """Return each state separately."""

    def read(key: SharePartitionKey, one: Any) -> dict[str, object]:
        stored = groups.share.state_requests.read(key, int(one.leader_epoch))
        batches = stored.batches if stored.live is None else stored.live.state_batches()
        return {
            "state_epoch": stored.state_epoch,
            "start_offset": stored.start_offset,
            "state_batches": [batch._asdict() for batch in batches],
        }

    return answered(KEY, context, str(request.group_id), request.topics, read)
