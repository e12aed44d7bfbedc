"""DeleteShareGroupState (key 86), version 0: a broker erases the state of share partitions (KIP-932).

Deviations: none known.

Source: KafkaApis.handleDeleteShareGroupStateRequest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.handlers.share.state_answers import answered
from diamant.broker.network.api import Answer, RequestContext

if TYPE_CHECKING:
    from kio.schema.delete_share_group_state.v0.request import DeleteShareGroupStateRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator

KEY = 86


def handle(groups: GroupCoordinator, context: RequestContext, request: DeleteShareGroupStateRequest) -> Answer:
    """Erase each state separately."""
    return answered(
        KEY, context, str(request.group_id), request.topics, lambda key, _: groups.share.state_requests.remove(key)
    )
