"""ReadShareGroupStateSummary (key 87), versions 0 to 1: a broker reads how far share partitions are (KIP-932).

Versions: 1 has the number of completed records (KIP-1226).
Deviations: none known.

Source: KafkaApis.handleReadShareGroupStateSummaryRequest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diamant.broker.groups.share.share_partition import UNKNOWN_OFFSET
from diamant.broker.handlers.share.state_answers import answered
from diamant.broker.network.api import Answer, RequestContext
from diamant.protocol.internal_topics.share_records import SharePartitionKey

if TYPE_CHECKING:
    from kio.schema.read_share_group_state_summary.v1.request import ReadShareGroupStateSummaryRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator

KEY = 87


def handle(groups: GroupCoordinator, context: RequestContext, request: ReadShareGroupStateSummaryRequest) -> Answer:
    """Return each state separately."""

    def read(key: SharePartitionKey, one: Any) -> dict[str, object]:
        stored = groups.share.state_requests.summary(key, int(one.leader_epoch))
        if stored is None:
            return {"start_offset": UNKNOWN_OFFSET, "delivery_complete_count": UNKNOWN_OFFSET}
        return {
            "state_epoch": stored.state_epoch,
            "leader_epoch": stored.leader_epoch,
            "start_offset": stored.start_offset,
            "delivery_complete_count": stored.completed_count,
        }

    return answered(KEY, context, str(request.group_id), request.topics, read)
