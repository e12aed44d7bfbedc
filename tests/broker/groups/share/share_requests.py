"""The requests of one member of a share group, in few words, and their answers as plain values."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from tests.broker.request_fields import SET, alteration
from tests.broker.wire import FIND_COORDINATOR, INCREMENTAL_ALTER_CONFIGS, WireClient

SHARE_GROUP_HEARTBEAT, SHARE_GROUP_DESCRIBE, SHARE_FETCH, SHARE_ACKNOWLEDGE = 76, 77, 78, 79
DESCRIBE_SHARE_OFFSETS, ALTER_SHARE_OFFSETS, DELETE_SHARE_OFFSETS = 90, 91, 92
GROUP_RESOURCE = 32
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)

Acks = Sequence[tuple[int, int, Sequence[int]]]


async def configure(wire: WireClient, group_id: str, **values: str) -> None:
    """Set configurations of a group: `share_auto_offset_reset="earliest"`."""
    changes = [(name.replace("_", "."), SET, value) for name, value in values.items()]
    answer = await wire.call(INCREMENTAL_ALTER_CONFIGS, 1, alteration(GROUP_RESOURCE, group_id, *changes))
    assert int(answer.responses[0].error_code) == 0


async def wait_for_coordinator(wire: WireClient, key: str, key_type: int = 0) -> None:
    """Wait for the coordinator of a group, or of another type of key; Kafka has to create its topic first."""
    for _ in range(50):
        answer = await wire.call(FIND_COORDINATOR, 6, {"key_type": key_type, "coordinator_keys": [key]})
        if int(answer.coordinators[0].error_code) == 0:
            return
        await asyncio.sleep(0.2)


class ShareMemberClient:
    """A member that counts its epochs itself. `code`, `acquired`: of the last fetch's first partition."""

    def __init__(self, wire: WireClient, group_id: str, topic: str, topic_id: UUID, member_id: str) -> None:
        self.wire, self.group_id, self.topic, self.topic_id, self.member_id = wire, group_id, topic, topic_id, member_id
        self.member_epoch = 0
        self.session_epoch = 0

    async def heartbeat(self, epoch: int | None = None) -> Any:
        """Send a heartbeat with the present epoch, or another."""
        epoch = self.member_epoch if epoch is None else epoch
        names = [self.topic] if epoch == 0 else None
        fields = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "member_epoch": epoch,
            "subscribed_topic_names": names,
        }
        answer = await self.wire.call(SHARE_GROUP_HEARTBEAT, 1, fields)
        if int(answer.error_code) == 0:
            self.member_epoch = answer.member_epoch
        return answer

    async def wait_until_assigned(self) -> None:
        """Send heartbeats until partitions are assigned."""
        for _ in range(500):
            answer = await self.heartbeat()
            if answer.assignment is not None and answer.assignment.topic_partitions:
                return
            await asyncio.sleep(0.02)
        raise AssertionError("no partition was assigned")

    async def fetch(
        self,
        epoch: int | None = None,
        *,
        acks: Acks = (),
        partition: int = 0,
        topic_id: UUID | None = None,
        adds: bool = True,
        version: int = 2,
        max_records: int = 100,
        wait_ms: int = 300,
        **others: Any,
    ) -> Any:
        """Send a ShareFetch with the next epoch of the session, or another."""
        epoch = self.session_epoch if epoch is None else epoch
        fields = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "share_session_epoch": epoch,
            "max_wait_ms": wait_ms,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": max_records,
            "batch_size": 100,
            "topics": self._topics(topic_id, partition, acks) if adds else [],
            "forgotten_topics_data": [],
            **others,
        }
        answer = await self.wire.call(SHARE_FETCH, version, fields)
        if int(answer.error_code) == 0:
            self.session_epoch = epoch + 1
        return answer

    async def acknowledge(
        self,
        acks: Acks,
        epoch: int | None = None,
        *,
        partition: int = 0,
        topic_id: UUID | None = None,
        version: int = 2,
        is_renew_ack: bool = False,
    ) -> Any:
        """Send a ShareAcknowledge with the next epoch of the session, or another."""
        epoch = self.session_epoch if epoch is None else epoch
        fields = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "share_session_epoch": epoch,
            "is_renew_ack": is_renew_ack,
            "topics": self._topics(topic_id, partition, acks),
        }
        answer = await self.wire.call(SHARE_ACKNOWLEDGE, version, fields)
        if int(answer.error_code) == 0:
            self.session_epoch = epoch + 1
        return answer

    def _topics(self, topic_id: UUID | None, partition: int, acks: Acks) -> list[dict[str, object]]:
        batches = [
            {"first_offset": first, "last_offset": last, "acknowledge_types": list(types)}
            for first, last, types in acks
        ]
        partitions = [{"partition_index": partition, "acknowledgement_batches": batches}]
        return [{"topic_id": topic_id or self.topic_id, "partitions": partitions}]


def plain(answer: Any) -> list[Any]:
    """Return an answer's error and, for each partition, its number, its errors and what was acquired."""
    partitions = []
    for topic in answer.responses:
        for one in topic.partitions:
            entry: list[Any] = [one.partition_index, int(one.error_code), one.error_message]
            if hasattr(one, "acquired_records"):
                entry += [int(one.acknowledge_error_code), one.acknowledge_error_message, acquired_of(one)]
            partitions.append(entry)
    return [int(answer.error_code), answer.error_message, partitions]


def acquired_of(partition: Any) -> list[list[int]]:
    """First and last offset and delivery count of the acquired ranges."""
    return [[one.first_offset, one.last_offset, one.delivery_count] for one in partition.acquired_records]


def acquired(answer: Any) -> list[list[int]]:
    """As `acquired_of`, of the only partition; none if it is not in the answer."""
    assert int(answer.error_code) == 0
    found = [one for topic in answer.responses for one in topic.partitions]
    return acquired_of(found[0]) if found else []


def code(answer: Any) -> int:
    """Return the error code of the request, or of its only partition (of the acknowledgement, for a fetch)."""
    if int(answer.error_code):
        return int(answer.error_code)
    (topic,) = answer.responses
    (one,) = topic.partitions
    return int(one.error_code) or int(getattr(one, "acknowledge_error_code", 0))
