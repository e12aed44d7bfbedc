"""Requests with which the leaders of share partitions read and change the partitions' states (KIP-932).

Each partition succeeds or fails on its own; without a group id, the response has no partitions. Clients need CLUSTER_ACTION.

Source: ShareCoordinatorService, KafkaApis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from diamant.broker.groups.delivery.state_requests import WrittenState
from diamant.broker.groups.share.share_partition import UNKNOWN_OFFSET
from diamant.broker.network.api import REQUEST_ERRORS, RequestContext, ResponseFields, error_fields
from diamant.protocol.internal_topics.share_records import SharePartitionKey, StateBatch
from diamant.storage.uuid_text import ZERO_ID

if TYPE_CHECKING:
    from kio.schema.delete_share_group_state.v0.request import DeleteShareGroupStateRequest
    from kio.schema.initialize_share_group_state.v0.request import InitializeShareGroupStateRequest
    from kio.schema.read_share_group_state.v0.request import ReadShareGroupStateRequest
    from kio.schema.read_share_group_state_summary.v1.request import ReadShareGroupStateSummaryRequest
    from kio.schema.write_share_group_state.v1.request import WriteShareGroupStateRequest

    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator


def initialize(
    groups: GroupCoordinator, _context: RequestContext, request: InitializeShareGroupStateRequest
) -> ResponseFields:
    """InitializeShareGroupState (key 83), version 0: create the states."""
    requests = groups.share.state_requests
    return _each(
        request.group_id,
        request.topics,
        lambda key, one: requests.initialize(key, int(one.state_epoch), int(one.start_offset)),
    )


def read(groups: GroupCoordinator, _context: RequestContext, request: ReadShareGroupStateRequest) -> ResponseFields:
    """ReadShareGroupState (key 84), version 0: return the states."""

    def state(key: SharePartitionKey, one: Any) -> dict[str, object]:
        stored = groups.share.state_requests.read(key, int(one.leader_epoch))
        start, _, batches = stored.current()
        return {
            "state_epoch": stored.state_epoch,
            "start_offset": start,
            "state_batches": [batch._asdict() for batch in batches],
        }

    return _each(request.group_id, request.topics, state)


def write(groups: GroupCoordinator, _context: RequestContext, request: WriteShareGroupStateRequest) -> ResponseFields:
    """WriteShareGroupState (key 85), versions 0 to 1: change the states. 1 adds the number of completed records (KIP-1226)."""

    def change(key: SharePartitionKey, one: Any) -> None:
        batches = [
            StateBatch(
                int(batch.first_offset), int(batch.last_offset), int(batch.delivery_state), int(batch.delivery_count)
            )
            for batch in one.state_batches
        ]
        count = int(getattr(one, "delivery_complete_count", UNKNOWN_OFFSET))
        written = WrittenState(int(one.state_epoch), int(one.leader_epoch), int(one.start_offset), count, batches)
        groups.share.state_requests.write(key, written)

    return _each(request.group_id, request.topics, change)


def delete(groups: GroupCoordinator, _context: RequestContext, request: DeleteShareGroupStateRequest) -> ResponseFields:
    """DeleteShareGroupState (key 86), version 0: delete the states."""
    return _each(request.group_id, request.topics, lambda key, _: groups.share.state_requests.remove(key))


def read_summary(
    groups: GroupCoordinator, _context: RequestContext, request: ReadShareGroupStateSummaryRequest
) -> ResponseFields:
    """ReadShareGroupStateSummary (key 87), versions 0 to 1: return the start offsets. 1 adds the number of completed records."""

    def summary(key: SharePartitionKey, one: Any) -> dict[str, object]:
        stored = groups.share.state_requests.summary(key, int(one.leader_epoch))
        if stored is None:
            return {"start_offset": UNKNOWN_OFFSET, "delivery_complete_count": UNKNOWN_OFFSET}
        return {
            "state_epoch": stored.state_epoch,
            "leader_epoch": stored.leader_epoch,
            "start_offset": stored.start_offset,
            "delivery_complete_count": stored.completed_count,
        }

    return _each(request.group_id, request.topics, summary)


def _each(
    group_id: str, topics: Iterable[Any], work: Callable[[SharePartitionKey, Any], Mapping[str, object] | None]
) -> ResponseFields:
    """Call `work` with the key and fields of each share partition in a request. It returns the fields of the result."""
    results: list[dict[str, object]] = []
    for topic in topics if group_id else ():
        partitions = []
        for one in topic.partitions:
            number = int(one.partition)
            fields: dict[str, object] = {"partition": number}
            try:
                fields |= work(SharePartitionKey(str(group_id), topic.topic_id or ZERO_ID, number), one) or {}
            except REQUEST_ERRORS as error:
                fields |= error_fields(error)
            partitions.append(fields)
        results.append({"topic_id": topic.topic_id, "partitions": partitions})
    return {"results": results}
