"""Shared parts of the tests of consumer groups: topics, groups in memory, and members that follow the protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from diamant.broker.groups.consumer.consumer_group import ConsumerGroup
from diamant.broker.groups.consumer.consumer_group_records import GroupRecord, apply
from diamant.broker.groups.consumer.member import Assignment, ConsumerGroupMember
from diamant.broker.groups.decisions.change import GroupChange, GroupSettings, Moment
from diamant.broker.groups.decisions.leaving import fence
from diamant.broker.groups.decisions.member_heartbeat import heartbeat
from diamant.broker.groups.decisions.request import MemberRequest
from diamant.broker.groups.decisions.target_assignment import TargetTask
from diamant.broker.groups.decisions.targets import finish_targets, take_targets
from diamant.broker.groups.decisions.topic_patterns import check_pattern
from diamant.protocol.kraft.records import PartitionRecord, RemoveTopicRecord, TopicRecord
from diamant.storage.kraft.image import MetadataImage

SETTINGS = GroupSettings("uniform", 1_000)


class Topics:
    """A cluster's topics, and whether they have changed since the last check."""

    def __init__(self, **counts: int) -> None:
        self.image = MetadataImage()
        self._created = 0
        for name, count in counts.items():
            self.create(name, count)

    def create(self, name: str, count: int, topic_id: UUID | None = None) -> UUID:
        self._created += 1
        topic_id = topic_id or UUID(int=(0x9E3779B97F4A7C15F39CC0605CEDC835 * self._created) % (1 << 128))
        self.image.apply(TopicRecord(name=name, topic_id=topic_id))
        self.grow(name, count)
        return topic_id

    def grow(self, name: str, count: int) -> None:
        topic = self.image.topics[name]
        for partition in range(len(topic.partitions), count):
            self.image.apply(
                PartitionRecord(
                    partition_id=partition,
                    topic_id=topic.topic_id,
                    replicas=(1,),
                    isr=(1,),
                    leader=1,
                    leader_epoch=0,
                    partition_epoch=0,
                )
            )

    def delete(self, name: str) -> None:
        self.image.apply(RemoveTopicRecord(topic_id=self.image.topics[name].topic_id))

    def id(self, name: str) -> UUID:
        return self.image.topics[name].topic_id


def request(
    member_id: str,
    epoch: int,
    *,
    names: Sequence[str] | None = None,
    owned: Mapping[UUID, Sequence[int]] | None = None,
    **fields: Any,
) -> MemberRequest:
    """Return a heartbeat; epoch 0 joins."""
    if epoch == 0:
        owned, names = {}, names if names is not None else ()
    return MemberRequest(
        member_id=member_id,
        member_epoch=epoch,
        instance_id=fields.get("instance_id"),
        rack_id=None,
        rebalance_timeout_ms=fields.get("rebalance_timeout_ms", 60_000 if epoch == 0 else -1),
        subscribed_topic_names=names,
        subscribed_topic_regex=fields.get("regex"),
        server_assignor=fields.get("assignor"),
        owned=owned,
        client_id="client",
        client_host="/127.0.0.1",
    )


class MemoryGroup:
    """A group without a broker: decisions are applied at once and their records kept."""

    def __init__(self, topics: Topics, settings: GroupSettings = SETTINGS) -> None:
        self.group = ConsumerGroup("group")
        self.records: list[GroupRecord] = []
        self.topics = topics
        self.last_change: GroupChange | None = None
        self.task: TargetTask | None = None
        """The heavy task that is under way: what a thread has computed is taken in by `assign_some`."""
        self._parts: list[dict[str, Assignment]] = []
        self._settings = settings

    def change(self, *, may_assign: bool = True) -> GroupChange:
        return GroupChange(
            self.group,
            self.topics.image,
            self._settings,
            Moment(1_000, has_metadata_changed=True, may_assign=lambda: may_assign and self.task is None),
        )

    def heartbeat(self, sent: MemberRequest, *, may_assign: bool = True) -> ConsumerGroupMember:
        """Return the member as in its answer. Raises KafkaError as for a client."""
        change = self.change(may_assign=may_assign)
        member = heartbeat(change, sent, check_pattern)
        self.commit(change)
        return member

    def fence(self, *member_ids: str) -> None:
        change = self.change()
        fence(change, [self.group.members[member_id] for member_id in member_ids])
        self.commit(change)

    def commit(self, change: GroupChange) -> None:
        self.last_change = change
        self.records += change.records
        for key, value in change.records:
            apply(self.group, key, value)
        if change.heavy_task is not None:
            self.task = change.heavy_task
            self._parts = self.task.run_in_parts()

    def assign_some(self) -> None:
        """Apply a part of a heavy task's result; the last part ends the task."""
        if self.task is None:
            return
        change = self.change()
        if self._parts:
            take_targets(change, self._parts.pop(0), self.task)
        else:
            finish_targets(change, self.task)
            self.task = None
        self.commit(change)


def replayed(records: Sequence[GroupRecord], *, is_compacted: bool) -> ConsumerGroup:
    """Return the group as restored by a restart; `is_compacted`: only the last record of each key, without tombstones."""
    group = ConsumerGroup("group")
    latest = {(type(key), key): value for key, value in records}
    for (_, key), value in latest.items() if is_compacted else (((type(key), key), value) for key, value in records):
        if not is_compacted or value is not None:
            apply(group, key, value)
    return group


def state_of(group: ConsumerGroup) -> dict[str, Any]:
    """Return the complete state of a group, for comparisons."""
    state = dict(vars(group))
    state["holders"] = {topic_id: dict(sorted(held.items())) for topic_id, held in group.holders.epochs.items()}
    return state
