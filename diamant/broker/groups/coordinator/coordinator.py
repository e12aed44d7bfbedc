"""The group coordinator: the groups by id, and the operations that requests perform on them.

A change is decided, written and applied in one turn of the loop. So memory always has the state that replaying the log would
give, and answered changes survive SIGKILL.

Source: GroupCoordinatorService, GroupCoordinatorShard, CoordinatorRuntime.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from diamant.broker.groups.coordinator.group_deletion import GroupDeletion
from diamant.broker.groups.coordinator.loading import GroupLoading
from diamant.broker.groups.coordinator.offset_commits import OffsetCommits
from diamant.broker.groups.coordinator.offset_expiry import OffsetExpiry
from diamant.broker.groups.coordinator.offset_removal import OffsetRemoval
from diamant.broker.groups.store.group import Group
from diamant.broker.groups.store.log import GroupLog
from diamant.broker.groups.store.other_group import OtherGroup
from diamant.broker.topics.internal_names import GROUP_OFFSETS_TOPIC, SHARE_GROUP_STATE_TOPIC
from diamant.broker.topics.topic import Topic
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics.group_records import SHARE_KEYS, GroupMetadataValue, GroupRecordKey
from diamant.protocol.internal_topics.other_group_keys import OtherGroupKey

if TYPE_CHECKING:
    from diamant.broker.brokers.table import LeaderMove
    from diamant.broker.groups.classic.classic_group import ClassicGroup
    from diamant.broker.groups.consumer.consumer_group import ConsumerGroup
    from diamant.broker.groups.membership.classic_service import ClassicGroups
    from diamant.broker.groups.membership.consumer_service import ConsumerGroups
    from diamant.broker.groups.membership.share_offsets import ShareOffsets
    from diamant.broker.groups.membership.share_service import ShareGroups
    from diamant.broker.node.node import Node


class GroupCoordinator:
    """All groups of the broker. Belongs to the loop thread."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.log = GroupLog(node)
        self.groups: dict[str, Group] = {}
        self.commits = OffsetCommits(node, self, self.log, lambda group, member_id: self.classic.seen(group, member_id))
        self.removal = OffsetRemoval(self, self.log)
        self.deletion = GroupDeletion(self, self.log, self.removal, lambda group: self.share.forget(group))
        self.loading = GroupLoading(node, self, self.log, self.commits, self.removal, self._restore)
        self.expiry = OffsetExpiry(node, self, self.loading, self.removal, self.deletion)
        self._is_stopped = False
        node.scheduler.every("expiry of offsets", node.config.offsets_retention_check_interval_ms, self.expiry.expire)
        node.topics.listeners.append(self)
        if node.topics.brokers is not None:
            node.topics.brokers.listeners.append(self.partitions_moved)
        self._use(node.topics.by_name.get(GROUP_OFFSETS_TOPIC))

    @cached_property
    def classic(self) -> ClassicGroups:
        """The service of groups with the classic protocol, created on first use."""
        from diamant.broker.groups.membership.classic_service import ClassicGroups

        return ClassicGroups(self._node, self, self.log, lambda: self.consumer.classic_members)

    @cached_property
    def consumer(self) -> ConsumerGroups:
        """The service of groups with the consumer protocol (KIP-848), created on first use."""
        from diamant.broker.groups.membership.consumer_service import ConsumerGroups

        return ConsumerGroups(self._node, self, self.log, lambda group: self.classic.rebalance(group))

    @cached_property
    def share(self) -> ShareGroups:
        """The service of share groups (KIP-932), created on first use."""
        from diamant.broker.groups.delivery.share_delivery import ShareDelivery
        from diamant.broker.groups.delivery.share_state import ShareState
        from diamant.broker.groups.membership.share_service import ShareGroups

        return ShareGroups(self._node, self, self.log, ShareDelivery(self._node, ShareState(self._node)))

    @cached_property
    def share_offsets(self) -> ShareOffsets:
        """The service for the start offsets of share groups, created on first use."""
        from diamant.broker.groups.membership.share_offsets import ShareOffsets

        return ShareOffsets(self.share, self)

    async def stop(self) -> None:
        """Cancel timers and answer parked requests. From now on, requests are refused, so that no more are parked."""
        self._is_stopped = True
        await self.loading.stop()
        if "classic" in self.__dict__:
            self.classic.stop(self.groups.values())
        if "consumer" in self.__dict__:
            self.consumer.runner.stop()
        if "share" in self.__dict__:
            self.share.timers.close()
            await self.share.delivery.starts.stop()
            await self.share.delivery.state.stop()

    async def loaded(self) -> None:
        """Wait until every readable partition is loaded."""
        await self.loading.loaded()

    def check_usable(self, group_id: str | None, *, may_be_empty: bool = False) -> None:
        """Check that requests about a group can be answered now.

        Raises KafkaError INVALID_GROUP_ID if the id is None, or "" without `may_be_empty`; NOT_COORDINATOR if there is no
        `__consumer_offsets`, or the group's partition cannot be used; COORDINATOR_LOAD_IN_PROGRESS if that partition is not
        loaded yet, which moves it to the front of the queue; COORDINATOR_NOT_AVAILABLE if the broker is stopping.
        """
        if self._is_stopped:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the broker is stopping")
        if not group_id and (group_id is None or not may_be_empty):
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "The group id must not be empty.")
        self.loading.check(group_id)

    # -- groups --------------------------------------------------------------------------------------------------

    def group(self, group_id: str) -> Group | None:
        """Return the group with this id, of any type, or None."""
        return self.groups.get(group_id)

    def group_or_new(self, group_id: str) -> Group:
        """Return the group with this id. Create a simple one in memory if missing: write a record for it, or `forget` it."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id)
        return group

    def forget(self, group_id: str) -> None:
        """Drop a group without members and offsets from memory, after its tombstones were written."""
        group = self.groups.get(group_id)
        if group is not None and group.is_simple and not group.offsets:
            del self.groups[group_id]

    def adopt(self, group: Group) -> None:
        """Register a group that has offsets."""
        self.groups[group.group_id] = group

    def become(
        self,
        group: Group,
        *,
        classic: ClassicGroup | None = None,
        consumer: ConsumerGroup | None = None,
        error: ErrorCode = ErrorCode.REBALANCE_IN_PROGRESS,
    ) -> None:
        """Replace a group's members of any type by those of `classic` or `consumer`, or by none. Only this method does so.

        Stops the old members' timers, answers their parked requests with `error` (by default, they have to rejoin), and starts
        the new members' sessions. The caller must have written the records of the change.
        """
        was_classic, was_consumer = group.classic, group.consumer
        if group.share is not None:
            self.share.release(group.share)
        group.classic, group.consumer, group.share, group.other = classic, consumer, None, None
        if was_classic is not None:
            self.classic.release(was_classic, error)
        if was_consumer is not None:
            self.consumer.runner.release(was_consumer)
        if classic is not None:
            self.classic.begin(classic)
        if consumer is not None:
            self.consumer.runner.begin(consumer)

    def _restore(self, group: Group, key: GroupRecordKey | OtherGroupKey, value: Any) -> None:
        if isinstance(value, GroupMetadataValue):
            self.classic.restore(group, value)
        elif isinstance(key, OtherGroupKey):
            if group.classic is not None or group.consumer is not None:
                return
            if group.other is None or group.other.group_type != key.group_type:
                group.other = OtherGroup(key.group_type)
            group.other.restore(key, value)
        elif isinstance(key, SHARE_KEYS):
            self.share.restore(group, key, value)
        else:
            self.consumer.runner.restore(group, key, value)

    def partitions_moved(self, moves: Sequence[LeaderMove]) -> None:
        """Answer the parked requests of groups that another broker now coordinates, and unload the share partitions that
        another broker now leads (called through `BrokerTable.listeners`).
        """
        if "share" in self.__dict__:
            self.share.delivery.partitions_moved(moves)
        moved = {move.partition for move in moves if move.topic == GROUP_OFFSETS_TOPIC}
        if not moved:
            return
        for group in self.groups.values():
            if group.classic is not None and self.log.topic.partition_of(group.group_id) in moved:
                self.classic.coordinator_moved(group.classic)

    def disconnected(self, peer: str) -> None:
        """End the share sessions of a closed connection (`ConnectionInfo.peer`)."""
        if "share" in self.__dict__:
            self.share.delivery.disconnected(peer)

    # -- events of topics ----------------------------------------------------------------------------------------

    def transaction_ended(self, partition: int, producer_id: int, is_commit: bool) -> None:
        """Commit or drop a producer's pending offsets after its transaction marker was appended to `partition` of the topic."""
        self.loading.when_read(partition, lambda: self.commits.end_transaction(partition, producer_id, is_commit))

    def topic_created(self, topic: Topic) -> None:
        """Use the new topic if it is `__consumer_offsets` or `__share_group_state` (called through `Topics.listeners`)."""
        if topic.name == GROUP_OFFSETS_TOPIC:
            self._use(topic)
        elif topic.name == SHARE_GROUP_STATE_TOPIC and "share" in self.__dict__:
            self.share.delivery.state.use(topic)

    def topic_deleted(self, topic: Topic) -> Coroutine[Any, Any, None] | None:
        """Remove a deleted topic's offsets and share states. If it was `__consumer_offsets`, drop all groups."""
        name, topic_id = topic.name, topic.topic_id
        if name == GROUP_OFFSETS_TOPIC:
            self._use(None)
            return None
        if "share" in self.__dict__:
            self.share.topic_deleted(topic)
        self.loading.when_loaded(lambda: self.removal.remove_topic(self.groups.values(), name, topic_id))
        return self.removal.remove_deleted_topic(name, topic_id)

    def _use(self, topic: Topic | None) -> None:
        """Drop all groups, then use `topic` as `__consumer_offsets` (None: there is no such topic)."""
        self.loading.use(None)
        for group in self.groups.values():
            self.become(group, error=ErrorCode.NOT_COORDINATOR)
        self.groups.clear()
        self.commits.clear()
        if not self._is_stopped:
            self.loading.use(topic)
