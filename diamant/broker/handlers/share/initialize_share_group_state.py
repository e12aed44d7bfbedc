"""InitializeShareGroupState (key 83), version 0: a broker begins the state of share partitions (KIP-932).

Deviations: none known.

Source: KafkaApis.handleInitializeShareGroupStateRequest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.handlers.share.state_answers import answered
from diamant.broker.network.api import Answer, RequestContext

if TYPE_CHECKING:
    from kio.schema.initialize_share_group_state.v0.request import InitializeShareGroupStateRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator

KEY = 83


def handle(groups: GroupCoordinator, context: RequestContext, request: InitializeShareGroupStateRequest) -> Answer:
    """Begin each state separately."""
    requests = groups.share.state_requests
    return answered(
        KEY,
        context,
        str(request.group_id),
        request.topics,
        lambda key, one: requests.initialize(key, int(one.state_epoch), int(one.start_offset)),
    )
