"""Handles the requests of members of share groups (KIP-932). Every request is answered immediately.

Each heartbeat takes one turn of the loop: decide, append the records as one batch, apply them, answer. As in Kafka, the first
heartbeat of a topic's first member initializes the states of its partitions in `__share_group_state`, and a later heartbeat
assigns the partitions to all members that have joined by then. Kafka's clients send this heartbeat after five seconds. Diamant's
answer tells them to send it as soon as the partitions can be assigned.

Bound: one timer for each member, and one for each group, which runs for the assignment interval after each assignment. The
timers run in real time.

Source: GroupCoordinatorService, GroupMetadataManager.shareGroupHeartbeat of Kafka 4.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from diamant.broker.coordinators.java_order import strings_in_timeline_order
from diamant.broker.groups.consumer.metadata_hash import metadata_hash
from diamant.broker.groups.decisions.request import check_not_blank
from diamant.broker.groups.delivery.share_delivery import ShareDelivery
from diamant.broker.groups.delivery.state_requests import StateRequests
from diamant.broker.groups.membership.description import named_partitions
from diamant.broker.groups.membership.timers import Timers
from diamant.broker.groups.share.share_group import LEAVE_EPOCH, ShareGroup, ShareMember, ShareRecord, by_topic
from diamant.broker.groups.share.simple_assignor import Place, assign
from diamant.broker.groups.store.group import Group
from diamant.broker.groups.store.group_store import GroupStore
from diamant.broker.groups.store.log import GroupLog
from diamant.broker.network.api import REQUEST_ERRORS
from diamant.broker.topics.internal_names import SHARE_GROUP_STATE_TOPIC
from diamant.broker.topics.topic import Topic
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics.group_records import (
    GroupRecordKey,
    NamedPartitions,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    encode_record,
)
from diamant.protocol.internal_topics.share_records import SharePartitionKey
from diamant.storage.kraft.features import SHARE_VERSION

if TYPE_CHECKING:
    from diamant.broker.node.node import Node
    from diamant.storage.kraft.image import MetadataImage

logger = logging.getLogger(__name__)

SESSION_TIMEOUT_MS = "share.session.timeout.ms"
HEARTBEAT_INTERVAL_MS = "share.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL_MS = "share.assignment.interval.ms"
ASSIGNOR = "simple"
RETRY_MS = 1_000
SOONEST_HEARTBEAT_MS = 100
"""The minimum heartbeat interval of a member that is waiting for an assignment."""


class ShareHeartbeat(NamedTuple):
    """The fields of a heartbeat, and the client's id and host."""

    group_id: str
    member_id: str
    member_epoch: int
    rack_id: str | None
    topic_names: tuple[str, ...] | None
    client_id: str
    client_host: str


class ShareGroups:
    """All share groups of the broker. Belongs to the loop thread, which must create it."""

    def __init__(self, node: Node, store: GroupStore, log: GroupLog, delivery: ShareDelivery) -> None:
        self._node = node
        self._store = store
        self._log = log
        self.delivery = delivery
        self.timers = Timers(asyncio.get_running_loop())
        self.state_requests = StateRequests(delivery.state, node.topics)

    @property
    def is_enabled(self) -> bool:
        """Whether the configuration or `share.version` enables the protocol. Source: KafkaApis.isShareGroupProtocolEnabled."""
        node = self._node
        is_configured = "share" in node.config.group_coordinator_rebalance_protocols
        return is_configured or node.metadata.image.features.get(SHARE_VERSION, 0) > 0

    @property
    def image(self) -> MetadataImage:
        return self._node.topics.image

    def check_enabled(self) -> None:
        """Raise KafkaError UNSUPPORTED_VERSION, without a message, unless the protocol is enabled."""
        if not self.is_enabled:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)

    # -- heartbeats ----------------------------------------------------------------------------------------------------

    def heartbeat(self, request: ShareHeartbeat) -> dict[str, object]:
        """Let a member join, stay or leave; return the fields of the answer.

        KafkaError: UNSUPPORTED_VERSION, INVALID_REQUEST, GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH,
        GROUP_MAX_SIZE_REACHED, and the errors of `GroupStore.check_usable`, `GroupLog` and `ShareState`.
        """
        self.check_enabled()
        _check(request)
        group_id, member_id = request.group_id, request.member_id
        self._store.check_usable(group_id)
        if request.member_epoch == LEAVE_EPOCH:
            group = self.share_group(group_id)
            group.member(member_id)
            logger.info("group %s: member %s has left", group_id, member_id)
            self._remove(group, [member_id])
            return {"member_id": member_id, "member_epoch": LEAVE_EPOCH}
        group = self._group_for(group_id, is_joining=request.member_epoch == 0)
        before = group.members.get(member_id)
        self._check_member(group, before, request)
        records = self._joined(group, before, request)
        self.commit(group, records)
        member = group.members[member_id]
        self._start_session(group_id, member_id)
        answer: dict[str, object] = {
            "member_id": member_id,
            "member_epoch": member.member_epoch,
            "heartbeat_interval_ms": self._next_heartbeat_ms(group, is_unchanged=not records),
        }
        if (
            request.member_epoch == 0
            or request.topic_names is not None
            or before is None
            or before.assigned != member.assigned
        ):
            answer["assignment"] = {"topic_partitions": [one._asdict() for one in by_topic(member.assigned)]}
        return answer

    def _next_heartbeat_ms(self, group: ShareGroup, *, is_unchanged: bool) -> int:
        interval_ms = self.delivery.value_of(group.group_id, HEARTBEAT_INTERVAL_MS)
        is_assigned = group.group_epoch == group.assignment_epoch
        if is_assigned and (is_unchanged or not self._has_unassigned(group, group.subscribed_topics())):
            return interval_ms
        due_in_ms = self.timers.remaining_ms(group.group_id) or 0
        return min(interval_ms, max(SOONEST_HEARTBEAT_MS, int(due_in_ms)))

    def _has_unassigned(self, group: ShareGroup, names: set[str]) -> bool:
        """Return whether any partition of these topics has a state, but is assigned to no member."""
        topics = self.image.topics_by_id
        wanted = {place for place in group.places() if place[0] in topics and topics[place[0]].name in names}
        return bool(wanted.difference(*group.target.values()))

    def share_group(self, group_id: str) -> ShareGroup:
        """Return a share group. Raises KafkaError GROUP_ID_NOT_FOUND."""
        group = self._store.group(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if group.share is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")
        return group.share

    def _group_for(self, group_id: str, *, is_joining: bool) -> ShareGroup:
        """Return the group. If it does not exist and a member joins, return a new group, which is not registered yet."""
        if is_joining and self._store.group(group_id) is None:
            return ShareGroup(group_id)
        if self._store.group(group_id) is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {group_id} not found.")
        return self.share_group(group_id)

    def _check_member(self, group: ShareGroup, member: ShareMember | None, request: ShareHeartbeat) -> None:
        epoch = request.member_epoch
        if member is None:
            if epoch != 0:
                group.member(request.member_id)
            limit = self._node.config.group_share_max_size
            if len(group.members) >= limit:
                raise KafkaError(
                    ErrorCode.GROUP_MAX_SIZE_REACHED,
                    f"The share group has reached its maximum capacity of {limit} members.",
                )
            return
        if epoch > member.member_epoch:
            raise KafkaError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"The share group member has a greater member epoch ({epoch}) than the one known by the group coordinator "
                f"({member.member_epoch}). The member must abandon all its partitions and rejoin.",
            )
        if epoch and epoch < member.member_epoch and epoch != member.previous_epoch:
            raise KafkaError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"The share group member has a smaller member epoch ({epoch}) than the one known by the group coordinator "
                f"({member.member_epoch}), and it does not match the previous member epoch ({member.previous_epoch}). The "
                "member must abandon all its partitions and rejoin.",
            )

    def _joined(self, group: ShareGroup, before: ShareMember | None, request: ShareHeartbeat) -> list[ShareRecord]:
        """Return the records for a member that joins or stays: member, group epoch, initialized topics, target, assignment."""
        member_id = request.member_id
        member = before or ShareMember(member_id)
        names = member.metadata.subscribed_topic_names if request.topic_names is None else request.topic_names
        metadata = ShareGroupMemberMetadataValue(
            request.rack_id if request.rack_id is not None else member.metadata.rack_id,
            request.client_id,
            request.client_host,
            tuple(sorted(set(names))),
        )
        records: list[ShareRecord] = []
        subscriptions = {name: one.metadata.subscribed_topic_names for name, one in group.members.items()}
        if before is None or before.metadata != metadata:
            records.append((ShareGroupMemberMetadataKey(group.group_id, member_id), metadata))
            subscriptions[member_id] = metadata.subscribed_topic_names
        has_changed = before is None or before.metadata.subscribed_topic_names != metadata.subscribed_topic_names
        wanted_names = {name for topics in subscriptions.values() for name in topics}
        topics_hash = metadata_hash(wanted_names, self.image)
        epoch = group.group_epoch
        is_pending = epoch == group.assignment_epoch and self._has_unassigned(group, wanted_names)
        if has_changed or topics_hash != group.metadata_hash or is_pending:
            epoch += 1
            records.append(group.epoch_record(epoch, topics_hash))
        initialized = self._initialize(group, wanted_names, epoch)
        if initialized is not None:
            records.append(group.state_record(initialized.values()))
        target = {name: tuple(places) for name, places in group.target.items()}
        assignment_epoch = group.assignment_epoch
        if epoch > assignment_epoch and group.group_id not in self.timers:
            target = self._target(group, subscriptions, group.places())
            records += group.target_records(target, epoch, self._node.env.clock.now_ms())
            assignment_epoch = epoch
            interval_ms = self.delivery.value_of(group.group_id, ASSIGNMENT_INTERVAL_MS)
            self.timers.set(group.group_id, interval_ms, _do_nothing)
        assigned = target.get(member_id, ())
        if before is None or before.member_epoch != assignment_epoch or before.assigned != assigned:
            previous = 0 if before is None else before.member_epoch
            records.append(group.assignment_record(member_id, assignment_epoch, previous, assigned))
        return records

    def _target(
        self, group: ShareGroup, subscriptions: dict[str, tuple[str, ...]], places: Iterable[Place]
    ) -> dict[str, tuple[Place, ...]]:
        topics = self.image.topics
        wanted = {
            member_id: {topics[name].topic_id for name in names if name in topics}
            for member_id, names in subscriptions.items()
        }
        found = assign(wanted, group.target, list(places))
        return {member_id: tuple(taken) for member_id, taken in found.items()}

    def _initialize(self, group: ShareGroup, names: Iterable[str], epoch: int) -> dict[UUID, NamedPartitions] | None:
        """Initialize missing states of partitions. Return the group's topics that have a state, or None if they are unchanged."""
        topics = dict(group.initialized)
        for topic_id in [topic_id for topic_id in topics if topic_id not in self.image.topics_by_id]:
            del topics[topic_id]
        for name in sorted(names):
            topic = self.image.topics.get(name)
            if topic is None:
                continue
            known = topics.get(topic.topic_id, NamedPartitions(topic.topic_id, name, ()))
            missing = [number for number in sorted(topic.partitions) if number not in known.partitions]
            for number in missing:
                key = SharePartitionKey(group.group_id, topic.topic_id, number)
                if key not in self.delivery.state.states:
                    self.delivery.state.initialize(key, epoch)
            if missing:
                numbers = tuple(sorted([*known.partitions, *missing]))
                topics[topic.topic_id] = known._replace(partitions=numbers)
        return None if topics == group.initialized else topics

    def commit(self, group: ShareGroup, records: list[ShareRecord]) -> None:
        """Write records of a group and apply them. Register the group if it is new."""
        if not records:
            return
        self._log.append(group.group_id, [encode_record(*record) for record in records])
        owner = self._store.group_or_new(group.group_id)
        owner.share = group
        for record in records:
            group.apply(*record)

    def _remove(self, group: ShareGroup, member_ids: list[str]) -> None:
        records = list(group.removal(member_ids))
        names = {
            name
            for member_id, member in group.members.items()
            if member_id not in member_ids
            for name in member.metadata.subscribed_topic_names
        }
        records.append(group.epoch_record(group.group_epoch + 1, metadata_hash(names, self.image)))
        self.commit(group, records)
        for member_id in member_ids:
            self.timers.cancel((group.group_id, member_id))

    # -- sessions of members -------------------------------------------------------------------------------------------

    def _start_session(self, group_id: str, member_id: str) -> None:
        timeout_ms = self.delivery.value_of(group_id, SESSION_TIMEOUT_MS)
        self.timers.set((group_id, member_id), timeout_ms, partial(self._expired, group_id, member_id))

    def _expired(self, group_id: str, member_id: str) -> None:
        group = self._store.group(group_id)
        if group is None or group.share is None or member_id not in group.share.members:
            return
        logger.info("group %s: removing member %s: the member session expired", group_id, member_id)
        try:
            self._remove(group.share, [member_id])
        except REQUEST_ERRORS as error:
            logger.warning("group %s: could not remove member %s: %s", group_id, member_id, error)
            self.timers.set((group_id, member_id), RETRY_MS, partial(self._expired, group_id, member_id))

    def restore(self, group: Group, key: GroupRecordKey, value: Any) -> None:
        """Apply a record of a share group when its partition is loaded. Start a new session for every member."""
        if group.classic is not None or group.consumer is not None:
            return
        if group.share is None:
            group.share = ShareGroup(group.group_id)
        group.share.apply(key, value)
        if isinstance(key, ShareGroupMemberMetadataKey):
            self._start_session(group.group_id, key.member_id)

    def release(self, group: ShareGroup) -> None:
        """Stop the timers of a group that is being dropped."""
        self.timers.cancel(group.group_id)
        for member_id in group.members:
            self.timers.cancel((group.group_id, member_id))

    def forget(self, group: ShareGroup) -> None:
        """Delete the partition states of a group that is being deleted. Raises KafkaError as `InternalTopic.append` does."""
        self.delivery.state.remove(SharePartitionKey(group.group_id, *place) for place in group.places())

    def topic_deleted(self, topic: Topic) -> None:
        """Delete the states of a deleted topic's partitions. If it was the state topic, drop all states."""
        if topic.name == SHARE_GROUP_STATE_TOPIC:
            self.delivery.state.use(None)
        else:
            self.delivery.topic_deleted(topic)

    # -- other requests ------------------------------------------------------------------------------------------------

    def described(self, group_id: str) -> dict[str, object]:
        """Return the fields of ShareGroupDescribe. Raises KafkaError GROUP_ID_NOT_FOUND unless it is a share group."""
        self.check_enabled()
        self._store.check_usable(group_id)
        group = self.share_group(group_id)
        return {
            "group_id": group_id,
            "group_state": group.state,
            "group_epoch": group.group_epoch,
            "assignment_epoch": group.assignment_epoch,
            "assignor_name": ASSIGNOR,
            "members": [
                self._described_member(group.members[member_id])
                for member_id in strings_in_timeline_order(group.members)
            ],
        }

    def assigned_topics(self, group_id: str) -> set[str]:
        """Return the names of the topics whose partitions are assigned to members of a group."""
        topics = self.image.topics_by_id
        places = (place for member in self.share_group(group_id).members.values() for place in member.assigned)
        return {topics[topic_id].name for topic_id, _ in places if topic_id in topics}

    def _described_member(self, member: ShareMember) -> dict[str, object]:
        return {
            "member_id": member.member_id,
            "rack_id": member.metadata.rack_id,
            "member_epoch": member.member_epoch,
            "client_id": member.metadata.client_id,
            "client_host": member.metadata.client_host,
            "subscribed_topic_names": list(member.metadata.subscribed_topic_names),
            "assignment": named_partitions(self.image, dict(by_topic(member.assigned))),
        }


def _do_nothing() -> None:
    """Do nothing when a group's assignment interval ends, because heartbeats only check whether its timer is still set."""


def _check(request: ShareHeartbeat) -> None:
    """Check the fields of a heartbeat (GroupCoordinatorService.throwIfShareGroupHeartbeatRequestIsInvalid)."""
    if not request.member_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    check_not_blank(MemberId=request.member_id, GroupId=request.group_id, RackId=request.rack_id)
    if request.member_epoch == 0 and not request.topic_names:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "SubscribedTopicNames must be set in first request.")
    if request.member_epoch < LEAVE_EPOCH:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")
