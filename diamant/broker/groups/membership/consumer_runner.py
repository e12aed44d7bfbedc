"""Runs consumer groups: makes decisions, writes and applies their records, and sets their timers.

Every decision takes one turn of the loop: decide (`groups/decisions`), append the records as one batch, apply them, set the
timers. So answered changes survive SIGKILL, and memory always matches the log.

Bound: the groups' members, with up to four timers each.

Source: GroupMetadataManager of Kafka 4.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from diamant.broker.config.group_table import ASSIGNMENT_INTERVAL_MS, SESSION_TIMEOUT_MS, value_of_group
from diamant.broker.groups.consumer import conversion
from diamant.broker.groups.consumer.consumer_group import ConsumerGroup
from diamant.broker.groups.consumer.consumer_group_records import GroupRecord, apply, tombstones
from diamant.broker.groups.consumer.member import ConsumerGroupMember, MemberState
from diamant.broker.groups.decisions import leaving
from diamant.broker.groups.decisions.change import (
    GroupChange,
    GroupSettings,
    MemberTimer,
    Moment,
    StartTimer,
    StopTimer,
)
from diamant.broker.groups.membership.consumer_background import ConsumerBackground
from diamant.broker.groups.membership.timers import Timers
from diamant.broker.groups.store.group import Group
from diamant.broker.groups.store.group_store import GroupStore
from diamant.broker.groups.store.log import GroupLog
from diamant.broker.network.api import REQUEST_ERRORS
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics.group_records import GroupMetadataKey, GroupRecordKey, encode_record
from diamant.protocol.kraft.records import GROUP_RESOURCE
from diamant.storage.kraft.image import MetadataImage

if TYPE_CHECKING:
    from diamant.broker.groups.classic.classic_group import ClassicGroup
    from diamant.broker.node.node import Node

logger = logging.getLogger(__name__)

RETRY_MS = 1_000
"""The time in ms after which the removal of a member is retried if its write failed."""


class ConsumerGroupRunner:
    """All consumer groups of the broker. Belongs to the loop thread, which must create it."""

    def __init__(self, node: Node, store: GroupStore, log: GroupLog, rebalance: Callable[[ClassicGroup], None]) -> None:
        """`rebalance` makes the members of a downgraded group rejoin."""
        self._node = node
        self._store = store
        self._log = log
        self._rebalance = rebalance
        self.timers = Timers(asyncio.get_running_loop())
        self.background = ConsumerBackground(node, self.change, self.commit)

    @property
    def image(self) -> MetadataImage:
        """The current metadata image."""
        return self._node.topics.image

    @property
    def default_assignor(self) -> str:
        """The assignor of a group whose members do not request one."""
        assignors: list[str] = self._node.config.group_consumer_assignors
        return assignors[0]

    def config_of(self, group_id: str, name: str) -> int:
        """Return a configuration of a group (`group_table`)."""
        overrides = self._node.topics.image.configs.get((GROUP_RESOURCE, group_id), {})
        return value_of_group(name, overrides, self._node.config)

    # -- decisions -----------------------------------------------------------------------------------------------------

    def change(self, group: ConsumerGroup) -> GroupChange:
        """Begin a decision about a group."""
        moment = Moment(
            now_ms=self._node.env.clock.now_ms(),
            has_metadata_changed=self.background.has_metadata_changed(group),
            may_assign=partial(self._may_assign, group),
        )
        settings = GroupSettings(self.default_assignor, self._node.config.group_consumer_max_size)
        return GroupChange(group, self.image, settings, moment)

    def _may_assign(self, group: ConsumerGroup) -> bool:
        return self.background.may_assign(group, self.config_of(group.group_id, ASSIGNMENT_INTERVAL_MS))

    def commit(self, change: GroupChange, prefix: Iterable[GroupRecord] = ()) -> None:
        """Write the decision's records, apply them and set the timers. Records in `prefix` are written first, but not applied."""
        group = change.group
        records = [*prefix, *change.records]
        if records:
            self._write(group.group_id, records)
            for key, value in change.records:
                apply(group, key, value)
            self._adopt(group)
        self.background.follow(change)
        for timer in change.timers:
            self.set_timer(group.group_id, timer)

    def _write(self, group_id: str, records: Sequence[GroupRecord]) -> None:
        try:
            encoded = [encode_record(key, value) for key, value in records]
        except OverflowError:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"a name of group {group_id} or its members is too long for a record"
            ) from None
        self._log.append(group_id, encoded)

    def _adopt(self, consumer: ConsumerGroup) -> None:
        """Register a new or converted group under its id."""
        group = self._store.group_or_new(consumer.group_id)
        if group.consumer is consumer:
            return
        if group.classic is not None:
            logger.info("group %s: converted to a consumer group", consumer.group_id)
        # Classic members whose requests are parked in a rebalance have to rejoin the consumer group.
        self._store.become(group, consumer=consumer)

    def fence(self, group: ConsumerGroup, members: Collection[ConsumerGroupMember]) -> None:
        """Remove members. Downgrade the group if only classic members are left and the policy allows it."""
        config = self._node.config
        if conversion.may_downgrade(group, members, config.group_consumer_migration_policy, config.group_max_size):
            self.downgrade(group, members, None, must_rebalance=True)
            return
        change = self.change(group)
        leaving.fence(change, members)
        self.commit(change)

    def downgrade(
        self,
        group: ConsumerGroup,
        leaving: Collection[ConsumerGroupMember],
        joining: ConsumerGroupMember | None,
        *,
        must_rebalance: bool,
    ) -> None:
        """Convert a group to the classic protocol, without the `leaving` members and with the static member `joining`, if any."""
        now_ms = self._node.env.clock.now_ms()
        classic = conversion.downgraded(group, leaving, joining, self.image, now_ms)
        self._write(group.group_id, [*tombstones(group), (GroupMetadataKey(group.group_id), classic.value())])
        logger.info("group %s: converted to a classic group", group.group_id)
        owner = self._store.group_or_new(group.group_id)
        self._store.become(owner, classic=classic)
        if must_rebalance:
            self._rebalance(classic)

    # -- beginning and end of groups -----------------------------------------------------------------------------------

    def restore(self, group: Group, key: GroupRecordKey, value: Any) -> None:
        """Apply a record of a consumer group when its partition is loaded. Start a new session for every member.

        Source: GroupMetadataManager.replay, onLoaded.
        """
        consumer = group.consumer
        if consumer is None:
            consumer = ConsumerGroup(group.group_id)
            self._store.become(group, consumer=consumer)
        apply(consumer, key, value)
        member = consumer.members.get(getattr(key, "member_id", ""))
        if member is None:
            return
        self.start_session(group.group_id, member)
        if member.state is MemberState.UNREVOKED_PARTITIONS and not member.uses_classic_protocol:
            timeout_ms = member.rebalance_timeout_ms
            timer = StartTimer(MemberTimer.REBALANCE, member.member_id, timeout_ms, member.member_epoch)
            self.set_timer(group.group_id, timer)

    def begin(self, consumer: ConsumerGroup) -> None:
        """Start the sessions of the members of a new or converted group (called by `GroupCoordinator.become`)."""
        for member in consumer.members.values():
            self.start_session(consumer.group_id, member)

    def release(self, consumer: ConsumerGroup) -> None:
        """Stop the timers of a replaced group, and its background tasks, whose results would register it again (called by
        `GroupCoordinator.become`).
        """
        for member_id in consumer.members:
            for kind in MemberTimer:
                self.timers.cancel((consumer.group_id, kind, member_id))
        self.background.release(consumer)

    def stop(self) -> None:
        """Stop all timers and background tasks. The runner can still be used afterwards."""
        self.timers.close()
        self.background.stop()

    # -- timers --------------------------------------------------------------------------------------------------------

    def set_timer(self, group_id: str, timer: StartTimer | StopTimer) -> None:
        """(Re)start or stop a member's timer."""
        key = (group_id, timer.kind, timer.member_id)
        if isinstance(timer, StopTimer):
            self.timers.cancel(key)
        else:
            self.timers.set(key, timer.timeout_ms, partial(self._expired, group_id, timer))

    def start_session(self, group_id: str, member: ConsumerGroupMember) -> None:
        """(Re)start a member's session."""
        if member.classic is None:
            timeout_ms = self.config_of(group_id, SESSION_TIMEOUT_MS)
        else:
            timeout_ms = member.classic.session_timeout_ms
        self.set_timer(group_id, StartTimer(MemberTimer.SESSION, member.member_id, timeout_ms))

    def _expired(self, group_id: str, timer: StartTimer) -> None:
        group = self._store.group(group_id)
        if group is None or group.consumer is None:
            return
        member = group.consumer.members.get(timer.member_id)
        if member is None or timer.member_epoch not in (None, member.member_epoch):
            return
        logger.info("group %s: removing member %s: %s", group_id, member.member_id, timer.kind.value)
        try:
            self.fence(group.consumer, [member])
        except REQUEST_ERRORS as error:
            logger.warning("group %s: could not remove member %s: %s", group_id, member.member_id, error)
            self.set_timer(group_id, timer._replace(timeout_ms=RETRY_MS))
