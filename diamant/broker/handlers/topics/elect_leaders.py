"""ElectLeaders (key 43), versions 0 to 2: elect the preferred replicas as leaders, or replicas that are not in sync.

Behaviour: with one broker, the answer for each named partition is ELECTION_NOT_NEEDED. If the request is for all partitions
(null), the response lists all topics, each with only those partitions that needed an election.
Versions: 1 adds the type of election and a top-level error (KIP-460).

Source: ReplicationControlManager.electLeaders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.brokers.membership import paced
from diamant.broker.network.api import RequestContext, ResponseFields
from diamant.protocol.errors import ErrorCode
from diamant.protocol.kraft.records import NO_LEADER

if TYPE_CHECKING:
    from kio.schema.elect_leaders.v2.request import ElectLeadersRequest

    from diamant.broker.brokers.table import BrokerTable
    from diamant.broker.topics.topics import Topics
    from diamant.storage.kraft.image import PartitionImage, TopicImage

PREFERRED, UNCLEAN = 0, 1
NOT_NEEDED = "Leader election not needed for topic partition."


async def answer(topics: Topics, context: RequestContext, request: ElectLeadersRequest) -> ResponseFields:
    """Elect leaders where necessary, and report each partition."""
    kind = getattr(request, "election_type", PREFERRED)
    is_known = kind in (PREFERRED, UNCLEAN)
    asked = request.topic_partitions
    if asked is not None:
        named = [(str(topic.topic), [int(index) for index in topic.partitions]) for topic in asked]
    else:
        image = topics.image
        named = [(name, list(image.topics[name].partitions)) for name in topics.by_name] if is_known else []
    results: list[tuple[str, list[dict[str, object]]]] = [(name, []) for name, _ in named]
    every = zip(results, named, strict=True)
    async for (name, found), index in paced((result, index) for result, (_, indexes) in every for index in indexes):
        elected = _elect(topics, kind, name, index)
        if asked is not None or elected["error_code"] != ErrorCode.ELECTION_NOT_NEEDED:
            found.append(elected)
    if topics.brokers is not None:
        await topics.sync()
    code = ErrorCode.NONE if is_known else ErrorCode.INVALID_REQUEST
    answered = [{"topic": name, "partition_result": found} for name, found in results]
    return {"error_code": int(code), "replica_election_results": answered}


def _hold_election(
    brokers: BrokerTable, kind: int, topic: TopicImage, partition: PartitionImage
) -> tuple[ErrorCode, str | None]:
    """Elect a leader if necessary; return the error code and message (ReplicationControlManager.electLeader)."""
    first = partition.replicas[0]
    if partition.leader == first if kind == PREFERRED else partition.leader != NO_LEADER:
        return ErrorCode.ELECTION_NOT_NEEDED, NOT_NEEDED
    if kind == PREFERRED and first in partition.isr and brokers.is_up(first):
        brokers.move_leader(topic.name, partition.partition_id, first)
        return ErrorCode.NONE, None
    if kind == UNCLEAN and any(map(brokers.is_up, partition.replicas)):
        brokers.elect_unclean(topic.name, partition.partition_id)
        return ErrorCode.NONE, None
    code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE if kind == PREFERRED else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    return code, (
        "The preferred leader was not available."
        if kind == PREFERRED
        else "Eligible topic partition leaders are not available."
    )


def _elect(topics: Topics, kind: int, name: str, index: int) -> dict[str, object]:
    topic = topics.image.topics.get(name)
    message: str | None
    if kind not in (PREFERRED, UNCLEAN):
        code, message = ErrorCode.INVALID_REQUEST, f"Unknown election type {kind}"
    elif topic is None:
        code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}"
    elif index not in topic.partitions:
        code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}"
    elif topics.brokers is None:
        code, message = ErrorCode.ELECTION_NOT_NEEDED, NOT_NEEDED
    else:
        code, message = _hold_election(topics.brokers, kind, topic, topic.partitions[index])
    return {"partition_id": index, "error_code": int(code), "error_message": message}
