"""WriteShareGroupState (key 85), versions 0 to 1: a broker that leads share partitions changes their state (KIP-932).

Versions: 1 has the number of completed records (KIP-1226).
Deviations: none known.

Source: KafkaApis.handleWriteShareGroupStateRequest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diamant.broker.groups.delivery.state_requests import WrittenState
from diamant.broker.groups.share.share_partition import UNKNOWN_OFFSET
from diamant.broker.handlers.share.state_answers import answered
from diamant.broker.network.api import Answer, RequestContext
from diamant.protocol.internal_topics.share_records import SharePartitionKey, StateBatch

if TYPE_CHECKING:
    from kio.schema.write_share_group_state.v1.request import WriteShareGroupStateRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator

KEY = 85


def handle(groups: GroupCoordinator, context: RequestContext, request: WriteShareGroupStateRequest) -> Answer:
    """Change each state separately."""

    def write(key: SharePartitionKey, one: Any) -> None:
        batches = [
            StateBatch(
                int(batch.first_offset), int(batch.last_offset), int(batch.delivery_state), int(batch.delivery_count)
            )
            for batch in one.state_batches
        ]
        count = int(getattr(one, "delivery_complete_count", UNKNOWN_OFFSET))
        written = WrittenState(int(one.state_epoch), int(one.leader_epoch), int(one.start_offset), count, batches)
        groups.share.state_requests.write(key, written)

    return answered(KEY, context, str(request.group_id), request.topics, write)
