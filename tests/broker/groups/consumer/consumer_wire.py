"""Members of consumer groups on the wire, for tests with a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from diamant.broker.broker import Broker
from diamant.protocol.errors import ErrorCode
from diamant.protocol.kraft.records import GROUP_RESOURCE, ConfigRecord
from tests.broker.groups.offsets.offset_requests import find_coordinator
from tests.broker.request_fields import offset_commit
from tests.broker.wire import WireClient

OFFSET_COMMIT, OFFSET_FETCH, DELETE_GROUPS, HEARTBEAT, DESCRIBE = 8, 9, 42, 68, 69
A, B, C = ("a" * 22, "b" * 22, "c" * 22)
PROPERTIES = {
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.min.session.timeout.ms": "10",
    "group.consumer.min.heartbeat.interval.ms": "10",
    "group.consumer.max.size": "3",
    "offsets.topic.num.partitions": "2",
}
T1, T2 = {"t1": [0, 1, 2, 3]}, {"t2": [0, 1]}


class Members:
    """Sends requests of members of consumer groups; partitions are {topic name: [numbers]}."""

    def __init__(self, wire: WireClient, broker: Broker) -> None:
        self.wire = wire
        self.broker = broker

    async def heartbeat(
        self,
        group: str,
        member: str,
        epoch: int,
        *,
        names: Sequence[str] | None = None,
        owned: Mapping[str, Sequence[int]] | None = None,
        version: int = 1,
        **fields: Any,
    ) -> Any:
        ids = self.broker.node.topics.image.topics
        if epoch == 0:
            fields = {"rebalance_timeout_ms": 5_000, "topic_partitions": [], **fields}
        if owned is not None:
            fields["topic_partitions"] = [
                {"topic_id": ids[name].topic_id, "partitions": partitions} for name, partitions in owned.items()
            ]
        return await self.wire.call(
            HEARTBEAT,
            version,
            {
                "group_id": group,
                "member_id": member,
                "member_epoch": epoch,
                "instance_id": None,
                "rack_id": None,
                "rebalance_timeout_ms": -1,
                "subscribed_topic_names": names,
                "subscribed_topic_regex": None,
                "server_assignor": None,
                "topic_partitions": None,
                **fields,
            },
        )

    async def beat(self, group: str, member: str, epoch: int, **fields: Any) -> tuple[int, dict[str, list[int]] | None]:
        """Send a heartbeat that must succeed; return the member's epoch, and its assignment if the answer has one."""
        answer = await self.heartbeat(group, member, epoch, **fields)
        assert answer.error_code == ErrorCode.NONE, answer
        return answer.member_epoch, None if answer.assignment is None else self.named(answer.assignment)

    async def error(self, group: str, member: str, epoch: int, **fields: Any) -> ErrorCode:
        answer = await self.heartbeat(group, member, epoch, **fields)
        assert answer.assignment is None
        assert answer.error_message
        return ErrorCode(int(answer.error_code))

    async def describe(self, group: str) -> Any:
        answer = await self.wire.call(DESCRIBE, 1, {"group_ids": [group], "include_authorized_operations": False})
        return answer.groups[0]

    async def state(self, group: str) -> tuple[str, int, int]:
        """Return state, group epoch and assignment epoch."""
        described = await self.describe(group)
        assert described.error_code == ErrorCode.NONE
        return described.group_state, described.group_epoch, described.assignment_epoch

    async def wait_until_gone(self, group: str, member: str) -> None:
        async with asyncio.timeout(60):
            while any(found.member_id == member for found in (await self.describe(group)).members):
                await asyncio.sleep(0.01)

    async def wait_for_epoch(self, group: str, epoch: int) -> None:
        async with asyncio.timeout(60):
            while (await self.state(group))[1] < epoch:
                await asyncio.sleep(0.01)

    async def wait_until_loaded(self, group: str) -> None:
        async with asyncio.timeout(60):
            while (await self.describe(group)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                await asyncio.sleep(0.01)

    def named(self, assignment: Any) -> dict[str, list[int]]:
        topics = self.broker.node.topics.image.topics_by_id
        return {topics[entry.topic_id].name: sorted(entry.partitions) for entry in assignment.topic_partitions}


async def prepare(wire: WireClient) -> None:
    await wire.create("t1", 4)
    await wire.create("t2", 2)
    await find_coordinator(wire)


def configure(broker: Broker, group: str, name: str, value: str) -> None:
    broker.node.metadata.append(
        [ConfigRecord(resource_type=GROUP_RESOURCE, resource_name=group, name=name, value=value)]
    )


async def commit(
    members: Members, group: str, member: str, epoch: int, *, topic: str = "t1", version: int = 9
) -> ErrorCode:
    fields = offset_commit(group, (topic, [(0, 1, "")]), member_id=member, epoch=epoch)
    answer = await members.wire.call(OFFSET_COMMIT, version, fields)
    return ErrorCode(int(answer.topics[0].partitions[0].error_code))


async def fetch(members: Members, group: str, member: str | None, epoch: int) -> ErrorCode:
    asked = {
        "group_id": group,
        "member_id": member,
        "member_epoch": epoch,
        "topics": [{"name": "t1", "partition_indexes": [0]}],
    }
    answer = await members.wire.call(OFFSET_FETCH, 9, {"groups": [asked], "require_stable": False})
    return ErrorCode(int(answer.groups[0].error_code))
