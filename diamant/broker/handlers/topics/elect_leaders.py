"""ElectLeaders (key 43), versions 0 to 2: no elections, as the only replica of every partition is the leader.

Behaviour: ELECTION_NOT_NEEDED for each named partition. A request for all (null) lists the topics without
partitions, as Kafka does when none needs an election.
Versions: 1 adds the type of election and a top-level error (KIP-460).
Deviations: none known.

Source: ReplicationControlManager.electLeaders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.network.api import Answer, RequestContext
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.schemas import encode_response_fields

if TYPE_CHECKING:
    from kio.schema.elect_leaders.v2.request import ElectLeadersRequest

    from diamant.broker.topics.topics import Topics

KEY = 43
PREFERRED, UNCLEAN = 0, 1


def handle(topics: Topics, context: RequestContext, request: ElectLeadersRequest) -> Answer:
    """Answer for every partition."""
    kind = getattr(request, "election_type", PREFERRED)
    is_known = kind in (PREFERRED, UNCLEAN)
    if request.topic_partitions is None:
        answered = list(topics.by_name) if is_known else []
        results: list[dict[str, object]] = [{"topic": name, "partition_result": []} for name in answered]
    else:
        results = [
            {
                "topic": str(topic.topic),
                "partition_result": [_elect(topics, kind, str(topic.topic), int(index)) for index in topic.partitions],
            }
            for topic in request.topic_partitions
        ]
    code = ErrorCode.NONE if is_known else ErrorCode.INVALID_REQUEST
    fields = {"error_code": int(code), "replica_election_results": results}
    return encode_response_fields(KEY, context.api_version, fields)


def _elect(topics: Topics, kind: int, name: str, index: int) -> dict[str, object]:
    topic = topics.image.topics.get(name)
    if kind not in (PREFERRED, UNCLEAN):
        code, message = ErrorCode.INVALID_REQUEST, f"Unknown election type {kind}"
    elif topic is None:
        code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}"
    elif index not in topic.partitions:
        code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}"
    else:
        code, message = ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    return {"partition_id": index, "error_code": int(code), "error_message": message}
