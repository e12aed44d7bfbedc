"""Making Metadata responses wrong or outdated, by changing their decoded fields in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.error_response import ErrorAnswer, NameOf, Wants, identity
from diamant.protocol.wire.error_shape import Fields

UNKNOWN_NODE = -1

# The error codes with which Kafka's Metadata responses name no leader.
_WITHOUT_LEADER = frozenset({ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.LISTENER_NOT_FOUND})


def make_stale(response: Fields, stale: Mapping[str, Any], wants: Wants, name_of: NameOf) -> None:
    """Change the topics that `wants` selects in a Metadata response. `stale` is as in `FaultSpec`, without `missing`.

    If no broker has the new `leader_id`, a broker is added with it; its `host` and `port` are by default those of the first
    broker. Otherwise, `host` and `port` replace the address of every broker.
    """
    brokers = response["brokers"]
    address = {name: stale[name] for name in ("host", "port") if name in stale}
    leader_id = stale.get("leader_id")
    if leader_id is None or any(broker["node_id"] == leader_id for broker in brokers):
        for broker in brokers:
            broker.update(address)
    elif leader_id >= 0 and brokers:
        brokers.append({**brokers[0], **address, "node_id": leader_id})
    for topic in response["topics"]:
        name = name_of(topic)
        if not wants(name, None):
            continue
        count = stale.get("partition_count")
        if count is not None:
            topic["partitions"] = [one for one in topic["partitions"] if one["partition_index"] < count]
        for partition in topic["partitions"]:
            if not wants(name, partition["partition_index"]):
                continue
            if leader_id is not None:
                partition["leader_id"] = leader_id
                if leader_id == UNKNOWN_NODE:
                    partition["error_code"] = int(ErrorCode.LEADER_NOT_AVAILABLE)
            if "leader_epoch" in stale:
                partition["leader_epoch"] = stale["leader_epoch"]


def leave_out(response: Fields, wants: Wants, name_of: NameOf) -> None:
    """Remove the topics that `wants` selects from the response to a request for all topics."""
    response["topics"] = [topic for topic in response["topics"] if not wants(name_of(topic), None)]


def put_topic_errors(
    answer: ErrorAnswer, code: ErrorCode, response: Fields, wants: Wants, name_of: NameOf, *, is_for_partition: bool
) -> None:
    """Put an error into the topics, or partitions of topics, that `wants` selects in a response that describes topics."""
    for position, topic in enumerate(response["topics"]):
        name = name_of(topic)
        if not is_for_partition:
            if wants(name, None):
                response["topics"][position] = {**answer.element(topic), "is_internal": topic.get("is_internal", False)}
            continue
        for partition in topic["partitions"]:
            if wants(name, identity(partition)["partition_index"]):
                partition["error_code"] = int(code)
                if code in _WITHOUT_LEADER:
                    partition["leader_id"] = UNKNOWN_NODE
