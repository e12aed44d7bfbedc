"""Requests about offsets and groups, in short form."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from diamant.broker.broker import Broker
from diamant.protocol.errors import ErrorCode
from diamant.protocol.internal_topics.consumer_protocol import Subscription, empty_assignment
from tests.broker.request_fields import join_group, offset_commit
from tests.broker.wire import FIND_COORDINATOR, WireClient
from tests.protocol.internal_topics.subscriptions import encode_subscription
from tests.waiting import PATIENCE_S

OFFSET_COMMIT, OFFSET_FETCH, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP = 8, 9, 11, 13, 14
DESCRIBE_GROUPS, LIST_GROUPS, DELETE_GROUPS, OFFSET_DELETE = 15, 16, 42, 47

NONE = ErrorCode.NONE


class Member(NamedTuple):
    """A member of a classic group, in its first generation."""

    group_id: str
    member_id: str
    generation: int


async def wait_until_loaded(broker: Broker) -> None:
    """Wait until every readable partition is loaded."""
    async with asyncio.timeout(PATIENCE_S):
        await broker.services.groups().loaded()


async def find_coordinator(client: WireClient, key: str = "g", key_type: int = 0) -> ErrorCode:
    """Send FindCoordinator as clients do: again, while the topic that the first one creates is not there."""
    while True:
        answer = await client.call(FIND_COORDINATOR, 4, {"key_type": key_type, "coordinator_keys": [key]})
        code = ErrorCode(answer.coordinators[0].error_code)
        if code is not ErrorCode.COORDINATOR_NOT_AVAILABLE:
            return code


async def commit(
    client: WireClient,
    group_id: str,
    offsets: Mapping[tuple[str | UUID, int], int],
    *,
    version: int = 9,
    member: Member | None = None,
    metadata: str | None = None,
    **fields: Any,
) -> list[ErrorCode]:
    """Commit offsets by (topic or its id, partition); return their codes, in that order."""
    topics: dict[str | UUID, list[tuple[int, int, str | None]]] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, []).append((partition, offset, metadata))
    identity: dict[str, Any] = {} if member is None else {"member_id": member.member_id, "epoch": member.generation}
    request = {
        **offset_commit(group_id, *topics.items(), leader_epoch=3, **identity),
        "retention_time_ms": -1,
        **fields,
    }
    answer = await client.call(OFFSET_COMMIT, version, request)
    return [ErrorCode(partition.error_code) for topic in answer.topics for partition in topic.partitions]


async def fetch(
    client: WireClient,
    group_id: str,
    topics: Mapping[str, Sequence[int]] | None = None,
    *,
    version: int = 8,
    require_stable: bool = False,
    **fields: Any,
) -> dict[tuple[str, int], int | ErrorCode]:
    """Return offsets by (topic, partition), or their error."""
    wanted = None
    if topics is not None:
        wanted = [{"name": name, "partition_indexes": list(partitions)} for name, partitions in topics.items()]
    group: dict[str, Any] = {"group_id": group_id, "topics": wanted, **fields}
    if version >= 8:
        answer = await client.call(OFFSET_FETCH, version, {"groups": [group], "require_stable": require_stable})
        answer = answer.groups[0]
    else:
        answer = await client.call(OFFSET_FETCH, version, {**group, "require_stable": require_stable})
    if version >= 2 and answer.error_code != NONE:
        raise AssertionError(ErrorCode(answer.error_code).name)
    return {
        (topic.name, partition.partition_index): ErrorCode(partition.error_code) or partition.committed_offset
        for topic in answer.topics
        for partition in topic.partitions
    }


async def fetch_error(client: WireClient, group_id: str) -> ErrorCode:
    """Return the group's error of an OffsetFetch."""
    request = {"groups": [{"group_id": group_id, "topics": None}], "require_stable": False}
    answer = await client.call(OFFSET_FETCH, 8, request)
    return ErrorCode(answer.groups[0].error_code)


async def list_groups(
    client: WireClient, *, states: Sequence[str] = (), types: Sequence[str] = ()
) -> dict[str, tuple[str, str, str]]:
    """Return protocol type, state and type of groups."""
    answer = await client.call(LIST_GROUPS, 5, {"states_filter": states, "types_filter": types})
    assert answer.error_code == NONE
    return {group.group_id: (group.protocol_type, group.group_state, group.group_type) for group in answer.groups}


async def delete_groups(client: WireClient, *group_ids: str) -> dict[str, ErrorCode]:
    """Delete groups; return a code for each."""
    answer = await client.call(DELETE_GROUPS, 2, {"groups_names": group_ids})
    return {result.group_id: ErrorCode(result.error_code) for result in answer.results}


async def delete_offsets(
    client: WireClient, group_id: str, *places: tuple[str, int]
) -> ErrorCode | dict[tuple[str, int], ErrorCode]:
    """Delete offsets; return the group's error, or codes by place."""
    topics = [{"name": topic, "partitions": [{"partition_index": partition}]} for topic, partition in places]
    answer = await client.call(OFFSET_DELETE, 0, {"group_id": group_id, "topics": topics})
    if answer.error_code != NONE:
        return ErrorCode(answer.error_code)
    return {
        (topic.name, partition.partition_index): ErrorCode(partition.error_code)
        for topic in answer.topics
        for partition in topic.partitions
    }


async def join(
    client: WireClient,
    group_id: str,
    *topics: str,
    protocol_type: str = "consumer",
    sync: bool = True,
    assignment: bytes | None = None,
) -> Member:
    """Become the only member of a classic group, subscribed to `topics`; with its assignment, by default an empty one, unless
    not `sync`.
    """
    metadata = encode_subscription(Subscription(topics=topics))
    answer = await client.call(JOIN_GROUP, 3, join_group(group_id, metadata, protocol_type=protocol_type))
    assert answer.error_code == NONE, answer
    member = Member(group_id, answer.member_id, answer.generation_id)
    if sync:
        request = {
            "group_id": group_id,
            "generation_id": member.generation,
            "member_id": member.member_id,
            "assignments": [{"member_id": member.member_id, "assignment": assignment or empty_assignment()}],
        }
        answer = await client.call(SYNC_GROUP, 2, request)
        assert answer.error_code == NONE, answer
    return member


async def leave(client: WireClient, member: Member) -> None:
    """Leave the group."""
    answer = await client.call(LEAVE_GROUP, 2, {"group_id": member.group_id, "member_id": member.member_id})
    assert answer.error_code == NONE
