"""Requests about groups whose answers are compared with a real Kafka's in every value, including the order of lists.

`python -m tests.broker.groups.coordinator.answer_cases ADDRESS` sends them to a new broker with
`offsets.topic.num.partitions=3` and prints the answers. Apache Kafka 4.3.1 produced tests/golden/groups/answers_4.3.1.json
in this way. `ADDRESS classic` is for a broker that also has
`group.coordinator.rebalance.protocols=classic` (answers_classic_4.3.1.json). Kafka 4.4.0 gives the same answers.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any
from uuid import UUID

from tests.broker.wire import FIND_COORDINATOR, METADATA, WireClient

OFFSET_COMMIT, OFFSET_FETCH, DESCRIBE_GROUPS, LIST_GROUPS = 8, 9, 15, 16
CONSUMER_GROUP_HEARTBEAT, CONSUMER_GROUP_DESCRIBE = 68, 69

GROUPS = [f"group-{number * 7 % 20}" for number in range(20)]
TOPICS = ("topic-1", "topic-2", "topic-3")
UNKNOWN = [UUID(int=number << 64) for number in (77, 78)]
ASKED = ("group-3", "no such", "group-1", "", "group-2", "group-3", "group-9")
"""What DescribeGroups is asked."""


async def ask(address: str) -> dict[str, Any]:
    """Create groups, request their state, and return the answers as JSON values."""
    answers: dict[str, Any] = {}
    async with WireClient(address) as wire:
        await _make_groups(wire)
        for version, fields in ((4, {}), (5, {}), (5, {"states_filter": ["empty"]})):
            listed = await wire.call(LIST_GROUPS, version, fields)
            answers[f"list {version} {fields}"] = [str(group.group_id) for group in listed.groups]
        for version in (2, 5, 6):
            fields = {"groups": ASKED, "include_authorized_operations": True}
            described = await wire.call(DESCRIBE_GROUPS, version, fields)
            answers[f"describe {version}"] = [
                [
                    str(group.group_id),
                    int(group.error_code),
                    getattr(group, "authorized_operations", None),
                    group.group_state,
                ]
                for group in described.groups
            ]
        for is_asked in (True, False):
            answers[f"describe consumers, operations {is_asked}"] = await _describe_consumers(wire, is_asked)
        known = await wire.call(METADATA, 12, {"topics": [{"topic_id": UUID(int=0), "name": name} for name in TOPICS]})
        ids = {str(topic.name): topic.topic_id for topic in known.topics}
        names = {topic_id: name for name, topic_id in ids.items()} | {id_: str(id_) for id_ in UNKNOWN}
        by_id = [(UNKNOWN[0], [0, 1]), (ids["topic-2"], [1, 0]), (UNKNOWN[1], [2]), (ids["topic-1"], [0, 7])]
        for group in ("group-3", "no such", "consumers-1"):
            for topics in (by_id, by_id[:1], None):
                fetched = await wire.call(OFFSET_FETCH, 10, {"groups": [_fetch(group, topics)]})
                answers[f"fetch {group} {len(topics or ())}"] = _offsets(fetched, names)
    return answers


async def ask_classic(address: str) -> dict[str, Any]:
    """Return the answers about consumer groups of a broker with the classic protocol only."""
    async with WireClient(address) as wire:
        await _make_groups(wire, consumers=())
        joined = await wire.call(CONSUMER_GROUP_HEARTBEAT, 1, _join("consumers-1", "member-1"))
        return {
            "join": [int(joined.error_code), joined.error_message],
            "describe": await _describe_consumers(wire, is_asked=True),
        }


async def _describe_consumers(wire: WireClient, is_asked: bool) -> Any:
    fields = {
        "group_ids": ["consumers-1", "group-3", "", "no such", "consumers-2", "consumers-1"],
        "include_authorized_operations": is_asked,
    }
    described = await wire.call(CONSUMER_GROUP_DESCRIBE, 1, fields)
    return [
        [
            *(str(group.group_id), int(group.error_code), group.error_message, group.authorized_operations),
            [member.member_id for member in group.members],
        ]
        for group in described.groups
    ]


async def _make_groups(wire: WireClient, consumers: tuple[str, ...] = ("consumers-1", "consumers-2")) -> None:
    for name in TOPICS:
        await wire.create(name, 3)
    await _retried(wire, FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["group"]})
    for group in GROUPS:
        partitions = [{"partition_index": index, "committed_offset": 5} for index in (2, 0, 1)]
        fields = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": name, "partitions": partitions} for name in ("topic-3", "topic-1", "topic-2")],
        }
        await _retried(wire, OFFSET_COMMIT, 9, fields)
    for group in consumers:
        for number in range(1, 8):
            await _retried(wire, CONSUMER_GROUP_HEARTBEAT, 1, _join(group, f"member-{number}"))


async def _retried(wire: WireClient, api_key: int, version: int, fields: Any) -> None:
    """Retry until there is no error: a real Kafka needs a moment for its coordinator's topic, and for new topics."""
    async with asyncio.timeout(60):
        while True:
            answer = await wire.call(api_key, version, fields)
            entries = getattr(answer, "coordinators", None) or [
                partition for topic in getattr(answer, "topics", ()) for partition in topic.partitions
            ]
            if not any(entry.error_code for entry in entries or [answer]):
                return


def _join(group: str, member_id: str) -> dict[str, Any]:
    return {
        "group_id": group,
        "member_id": member_id,
        "member_epoch": 0,
        "rebalance_timeout": 60000,
        "subscribed_topic_names": ["topic-1"],
        "topic_partitions": [],
    }


def _fetch(group: str, topics: Any) -> dict[str, Any]:
    entries = topics and [{"topic_id": topic_id, "partition_indexes": indexes} for topic_id, indexes in topics]
    return {"group_id": group, "member_id": None, "member_epoch": -1, "topics": entries}


def _offsets(answer: Any, names: dict[Any, str]) -> Any:
    (group,) = answer.groups
    return [
        [
            names[topic.topic_id],
            [[one.partition_index, one.committed_offset, int(one.error_code)] for one in topic.partitions],
        ]
        for topic in group.topics
    ]


if __name__ == "__main__":
    recorded = asyncio.run((ask_classic if "classic" in sys.argv[2:] else ask)(sys.argv[1]))
    print("{" + ",\n".join(f"{json.dumps(name)}: {json.dumps(answer)}" for name, answer in recorded.items()) + "}")
