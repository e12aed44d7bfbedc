"""Consumer groups at work (KIP-848): decisions joined with the log, timers, and the rest of the broker.

Every request is answered at once: decide (`consumer/change.py`), append the records as one batch, apply them, set the
timers, answer, all in one turn of the loop. What is answered survives SIGKILL, and memory does not differ from the log.

Classic members of a consumer group (`conversion.py`) are served by the methods `classic_...`, with the values that the classic
groups' service takes and gives. They share the group's state; a JoinGroup is their heartbeat with news, a SyncGroup only fetches
what the join has settled. Nothing of theirs waits.

The target assignment of a large group is computed in a thread (`target_assignment.py`). No request waits for it:
members get their parts a heartbeat later.

Changes of topics are noticed with the next heartbeat in the group: `Topics.generation` says that there was one.

Deviation: regular expressions are resolved again PATTERN_INTERVAL_S after the last time at the earliest, Kafka waits 10 s.

Bound: the groups' members, up to four timers each; for each group one resolution of regular expressions and one target
assignment at a time.

Source: GroupMetadataManager, GroupCoordinatorService of Kafka 4.3.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from diamant.broker.coordinators.java_order import strings_in_timeline_order
from diamant.broker.groups.classic.events import (
    UNKNOWN_MEMBER_ID,
    JoinAnswer,
    JoinRequest,
    Leaver,
    LeaveResult,
    SyncAnswer,
    SyncRequest,
)
from diamant.broker.groups.consumer import conversion
from diamant.broker.groups.consumer.change import (
    CancelTimer,
    GroupChange,
    GroupSettings,
    MemberRequest,
    Moment,
    SetTimer,
    TimerKind,
    check_request,
    is_full_request,
)
from diamant.broker.groups.consumer.group import (
    PROTOCOL_TYPE,
    ConsumerGroup,
    ConsumerGroupState,
    GroupRecord,
    ResolvedRegularExpression,
)
from diamant.broker.groups.consumer.member import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupMember,
    EpochedPartitions,
    MemberState,
)
from diamant.broker.groups.consumer.metadata_hash import metadata_hash
from diamant.broker.groups.consumer.target_assignment import TargetTask
from diamant.broker.groups.consumer.topic_patterns import check_pattern, matching_topics
from diamant.broker.groups.coordinator.group import Group
from diamant.broker.groups.coordinator.store import GroupStore
from diamant.broker.groups.coordinator.timers import Timers
from diamant.broker.network.api import REQUEST_ERRORS
from diamant.protocol.errors import ErrorCode, KafkaError, ProtocolError
from diamant.protocol.internal_topics.consumer_protocol import parse_subscription, protocol_version
from diamant.protocol.internal_topics.group_records import GroupMetadataKey, GroupRecordKey, encode_record
from diamant.storage.kraft.image import MetadataImage
from diamant.storage.uuid_text import random_id, uuid_to_text

if TYPE_CHECKING:
    from diamant.broker.groups.classic.group import ClassicGroup
    from diamant.broker.node.node import Node

logger = logging.getLogger(__name__)

GROUP_RESOURCE = 32
"""ConfigResource type of a group, in the metadata log."""

FIRST_WITH_CLIENT_MEMBER_ID = 1
"""ConsumerGroupHeartbeat from this version on has a member id that the client made (KIP-1082)."""

FIRST_JOIN_WITH_MEMBER_ID_REQUIRED = 4

PATTERN_INTERVAL_S = 1.0
RETRY_MS = 1_000
"""After which time a member whose removal could not be written is removed again."""


class _Live:
    """Facts about a group besides its records: only what saves work."""

    __slots__ = (
        "assigned_at_s",
        "assigning",
        "resolved_at_s",
        "resolved_generation",
        "resolving",
        "topics_generation",
    )

    def __init__(self) -> None:
        self.topics_generation = -1
        """`Topics.generation` when the group last looked at its topics."""
        self.assigned_at_s = -math.inf
        self.assigning: asyncio.Task[None] | None = None
        self.resolved_at_s = -math.inf
        self.resolved_generation = -1
        self.resolving: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """Cancel the group's tasks in progress; a running thread finishes, and its result is dropped."""
        for task in (self.assigning, self.resolving):
            if task is not None:
                task.cancel()


class ConsumerGroups:
    """All consumer groups of the broker. The loop's thread owns it; make it on that thread."""

    def __init__(self, node: Node, store: GroupStore, rebalance: Callable[[ClassicGroup], None]) -> None:
        """`rebalance` has the members of a classic group join again, that of one which was converted back."""
        self._node = node
        self._store = store
        self._rebalance = rebalance
        self._loop = asyncio.get_running_loop()
        self._live: WeakKeyDictionary[ConsumerGroup, _Live] = WeakKeyDictionary()
        self.timers = Timers(self._loop)

    # -- ConsumerGroupHeartbeat ----------------------------------------------------------------------------------------

    def heartbeat(self, group_id: str, request: MemberRequest, version: int) -> dict[str, Any]:
        """Let a member join, stay or leave; return the fields of the answer.

        KafkaError: UNSUPPORTED_VERSION, INVALID_REQUEST, UNSUPPORTED_ASSIGNOR, GROUP_ID_NOT_FOUND, and what
        `GroupChange.heartbeat` raises.
        """
        self._check_enabled()
        check_request(
            group_id,
            request,
            is_member_id_required=version >= FIRST_WITH_CLIENT_MEMBER_ID,
            assignors=self._node.config.group_consumer_assignors,
        )
        self._store.check_usable(group_id)
        if request.member_epoch < JOIN_EPOCH:
            return self._leave(group_id, request)
        group, prefix = self._group_for(group_id, is_joining=request.member_epoch == JOIN_EPOCH)
        change = self._change(group)
        if not request.member_id:
            change.check_room("")
            request = request._replace(member_id=uuid_to_text(random_id()))
        before = group.members.get(request.member_id)
        member = change.heartbeat(request, check_pattern)
        self._commit(change, prefix)
        self._start_session(group_id, member)
        self._maybe_resolve(group)
        answer: dict[str, Any] = {
            "member_id": member.member_id,
            "member_epoch": member.member_epoch,
            "heartbeat_interval_ms": self._heartbeat_interval_ms(group_id),
        }
        has_changed = before is None or before.assigned != member.assigned
        if request.member_epoch == JOIN_EPOCH or has_changed or is_full_request(request):
            answer["assignment"] = {"topic_partitions": _topic_partitions(member.assigned)}
        return answer

    @property
    def is_enabled(self) -> bool:
        """Source: KafkaApis.isConsumerGroupProtocolEnabled."""
        return PROTOCOL_TYPE in self._node.config.group_coordinator_rebalance_protocols

    def _check_enabled(self) -> None:
        """KafkaError: UNSUPPORTED_VERSION, which comes without a message."""
        if not self.is_enabled:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)

    def _leave(self, group_id: str, request: MemberRequest) -> dict[str, Any]:
        group = self._consumer_group(group_id)
        change = self._change(group)
        member = change.leaving_member(request)
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            change.leave_for_a_while(member)
            self._commit(change)
            return {"member_id": member.member_id, "member_epoch": STATIC_LEAVE_EPOCH}
        logger.info("group %s: member %s has left", group_id, member.member_id)
        self._fence(group, [member])
        return {"member_id": request.member_id, "member_epoch": request.member_epoch}

    def _consumer_group(self, group_id: str) -> ConsumerGroup:
        group = self._store.group(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if group.consumer is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        return group.consumer

    def _group_for(self, group_id: str, *, is_joining: bool) -> tuple[ConsumerGroup, list[GroupRecord]]:
        """The group, made or converted if a member joins; and the records to be written before those of the decision.

        What is made or converted is not the group yet: `_commit` makes it so.
        """
        group = self._store.group(group_id)
        if group is not None and group.consumer is not None:
            return group.consumer, []
        if not is_joining:
            if group is None:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
            return self._consumer_group(group_id), []
        if group is None or group.classic is None:
            return ConsumerGroup(group_id), []
        config = self._node.config
        tombstone: GroupRecord = (GroupMetadataKey(group_id), None)
        if group.classic.is_empty:
            return ConsumerGroup(group_id), [tombstone]
        conversion.check_upgrade(group.classic, config.group_consumer_migration_policy, config.group_consumer_max_size)
        converted = conversion.upgraded(group.classic, self._image)
        return converted, [tombstone, *converted.records()]

    # -- classic members of consumer groups ----------------------------------------------------------------------------

    def classic_join(self, group: Group, request: JoinRequest) -> JoinAnswer:
        """JoinGroup of a classic member to a consumer group that is not empty.

        KafkaError: INCONSISTENT_GROUP_PROTOCOL, GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
        Source: GroupMetadataManager.classicGroupJoinToConsumerGroup.
        """
        consumer = _consumer_of(group)
        config = self._node.config
        if config.group_consumer_migration_policy == conversion.DISABLED:
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"Cannot join the consumer group {group.group_id} with the classic protocol because the group migration is "
                "disabled.",
            )
        is_unknown = request.member_id == UNKNOWN_MEMBER_ID
        member_id = uuid_to_text(random_id()) if is_unknown else request.member_id
        change = self._change(consumer)
        change.check_room(member_id)
        names = [protocol.name for protocol in request.protocols]
        if not consumer.supports_classic_protocols(request.protocol_type, names):
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"Member {member_id}'s protocols are not supported."
            )
        is_dynamic = request.group_instance_id is None
        if is_unknown and is_dynamic and request.version >= FIRST_JOIN_WITH_MEMBER_ID_REQUIRED:
            return JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        replaced = consumer.static_member(request.group_instance_id)
        member_request = self._classic_request(member_id, request)
        # A dynamic member may come back with an id that it was given and the group does not know yet.
        before = change.find_member(member_request, is_joining=is_dynamic or is_unknown)
        after = change.updated(before, member_request).changed(subscribed_topic_regex="")
        bumps, has_changed = change.update_subscription(before, after, check_pattern)
        bumps = bumps or has_changed
        is_downgrade = (
            replaced is not None
            and not replaced.uses_classic_protocol
            and conversion.may_downgrade(
                consumer, [replaced], config.group_consumer_migration_policy, config.group_max_size, joining=1
            )
        )
        if is_downgrade:
            after = self._join_and_downgrade(change, before, after, bumps, member_request)
        else:
            after = change.settle(before, after, bumps, bumps, member_request.owned)
            self._commit(change)
            self.timers.cancel((group.group_id, TimerKind.JOIN, member_id))
            self._set_timer(group.group_id, SetTimer(TimerKind.SESSION, member_id, request.session_timeout_ms))
            self._set_timer(group.group_id, SetTimer(TimerKind.SYNC, member_id, request.rebalance_timeout_ms))
        return JoinAnswer(
            ErrorCode.NONE,
            after.member_id,
            after.member_epoch,
            PROTOCOL_TYPE,
            request.protocols[0].name,
        )

    def _classic_request(self, member_id: str, request: JoinRequest) -> MemberRequest:
        try:
            subscription = parse_subscription(request.protocols[0].metadata)
        except ProtocolError as error:
            # What Kafka says, for want of anything better.
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"Malformed embedded consumer protocol: {error}") from None
        topics = self._image.topics
        return MemberRequest(
            member_id=member_id,
            member_epoch=-1,
            instance_id=request.group_instance_id,
            rack_id=subscription.rack_id or None,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            subscribed_topic_names=subscription.topics,
            subscribed_topic_regex="",
            server_assignor=None,
            owned={
                topics[topic].topic_id: partitions
                for topic, partitions in subscription.owned_partitions.items()
                if topic in topics
            },
            client_id=request.client_id,
            client_host=request.client_host,
            classic=conversion.classic_metadata(request.session_timeout_ms, request.protocols),
        )

    def _join_and_downgrade(
        self,
        change: GroupChange,
        before: ConsumerGroupMember,
        after: ConsumerGroupMember,
        bumps: bool,
        request: MemberRequest,
    ) -> ConsumerGroupMember:
        """The last member with the consumer protocol is replaced by a classic one."""
        group = change.group
        change.refresh_metadata(before, after, bumps)
        is_rebalance_due = group.assignment_epoch < change.group_epoch
        if not is_rebalance_due:
            after = change.reconcile(after, group.assignment_epoch, group.target_of(after), bumps, request.owned)
        self._downgrade(group, (), after, must_rebalance=is_rebalance_due)
        return after

    def classic_sync(self, group: Group, request: SyncRequest) -> SyncAnswer:
        """SyncGroup: the member's assignment. KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
        INCONSISTENT_GROUP_PROTOCOL, REBALANCE_IN_PROGRESS.
        """
        consumer = _consumer_of(group)
        member = self._classic_member(consumer, request.member_id, request.group_instance_id)
        classic = member.classic
        assert classic is not None
        _check_generation(member, request.generation_id)
        protocol = classic.supported_protocols[0]
        if request.protocol_type not in (None, PROTOCOL_TYPE) or request.protocol_name not in (None, protocol.name):
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"member {member.member_id} joined with {PROTOCOL_TYPE}/{protocol.name}, not "
                f"{request.protocol_type}/{request.protocol_name}",
            )
        is_behind = consumer.assignment_epoch > member.member_epoch
        if is_behind and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._expect_join(group.group_id, member)
            raise KafkaError(
                ErrorCode.REBALANCE_IN_PROGRESS,
                f"A new rebalance is triggered in group {group.group_id} and member {member.member_id} should rejoin to "
                "catch up.",
            )
        self.timers.cancel((group.group_id, TimerKind.SYNC, member.member_id))
        self._start_session(group.group_id, member)
        assigned = {topic_id: tuple(sorted(epochs)) for topic_id, epochs in member.assigned.items()}
        version = protocol_version(protocol.metadata)
        data = conversion.encoded_assignment(assigned, self._image, version)
        return SyncAnswer(ErrorCode.NONE, request.protocol_type, request.protocol_name, data)

    def classic_heartbeat(self, group: Group, member_id: str, instance_id: str | None, generation_id: int) -> ErrorCode:
        """Heartbeat: NONE, or REBALANCE_IN_PROGRESS when the member has to join again.

        KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION.
        """
        consumer = _consumer_of(group)
        member = self._classic_member(consumer, member_id, instance_id)
        _check_generation(member, generation_id)
        self._start_session(group.group_id, member)
        if (
            member.member_epoch < consumer.assignment_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not consumer.is_waiting_for_partitions(member))
        ):
            self._expect_join(group.group_id, member)
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def classic_leave(self, group: Group, leavers: Sequence[Leaver]) -> list[LeaveResult]:
        """LeaveGroup: members of either protocol go, or are removed by an administrator; a result for each."""
        consumer = _consumer_of(group)
        results: list[LeaveResult] = []
        gone: dict[str, ConsumerGroupMember] = {}
        change = self._change(consumer)
        for leaver in leavers:
            error = ErrorCode.NONE
            try:
                if leaver.group_instance_id is None:
                    member = consumer.member(leaver.member_id)
                else:
                    known = consumer.static_member(leaver.group_instance_id)
                    named = known.member_id if known and leaver.member_id == UNKNOWN_MEMBER_ID else leaver.member_id
                    member = change.known_static_member(leaver.group_instance_id, named)
                gone[member.member_id] = member
            except KafkaError as refused:
                error = refused.code
            results.append(LeaveResult(leaver.member_id, leaver.group_instance_id, error))
        if gone:
            self._fence(consumer, list(gone.values()))
        return results

    def _classic_member(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerGroupMember:
        if instance_id is None:
            member = group.member(member_id)
        else:
            member = self._change(group).known_static_member(instance_id, member_id)
        if not member.uses_classic_protocol:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} does not use the classic protocol.")
        return member

    def _expect_join(self, group_id: str, member: ConsumerGroupMember) -> None:
        """The member has been told to join again: from the first time on it has its rebalance timeout."""
        if (group_id, TimerKind.JOIN, member.member_id) not in self.timers:
            self._set_timer(group_id, SetTimer(TimerKind.JOIN, member.member_id, member.rebalance_timeout_ms))

    # -- what others ask -----------------------------------------------------------------------------------------------

    def describe(self, group_id: str) -> dict[str, Any]:
        """A group's fields in ConsumerGroupDescribe. KafkaError: GROUP_ID_NOT_FOUND, also for classic groups."""
        self._check_enabled()
        self._store.check_usable(group_id)
        group = self._consumer_group(group_id)
        return {
            "group_id": group_id,
            "group_state": group.state.value,
            "group_epoch": group.group_epoch,
            "assignment_epoch": group.assignment_epoch,
            "assignor_name": group.preferred_assignor(None, None) or self._default_assignor,
            "members": [
                self._describe_member(group, group.members[member_id])
                for member_id in strings_in_timeline_order(group.members)
            ],
        }

    def _describe_member(self, group: ConsumerGroup, member: ConsumerGroupMember) -> dict[str, Any]:
        # It is responsible for what it has yet to give up, too.
        current: dict[Any, set[int]] = {}
        for owned in (member.assigned, member.pending_revocation):
            for topic_id, epochs in owned.items():
                current.setdefault(topic_id, set()).update(epochs)
        return {
            "member_id": member.member_id,
            "instance_id": member.instance_id,
            "rack_id": member.rack_id,
            "member_epoch": member.member_epoch,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "subscribed_topic_names": sorted(member.subscribed_topic_names),
            "subscribed_topic_regex": member.subscribed_topic_regex,
            "assignment": self._named_partitions(current),
            "target_assignment": self._named_partitions(group.target.get(member.member_id, {})),
            "member_type": 0 if member.uses_classic_protocol else 1,
        }

    def _named_partitions(self, assignment: Any) -> dict[str, Any]:
        topics = self._image.topics_by_id
        return {
            "topic_partitions": [
                {"topic_id": topic_id, "topic_name": topics[topic_id].name, "partitions": sorted(partitions)}
                for topic_id, partitions in assignment.items()
                if topic_id in topics
            ]
        }

    def count_by_state(self) -> Counter[ConsumerGroupState]:
        """The number of consumer groups in each state."""
        groups = self._store.groups.values()
        return Counter(group.consumer.state for group in groups if group.consumer is not None)

    def tombstones(self, group: Group) -> list[tuple[bytes, bytes | None]]:
        """The records that erase the group from the log, encoded; none if it is no consumer group."""
        return [] if group.consumer is None else [encode_record(*record) for record in group.consumer.tombstones()]

    # -- groups that come and go ---------------------------------------------------------------------------------------

    def restore(self, group: Group, key: GroupRecordKey, value: Any) -> None:
        """Take in a record of a consumer group, when its partition is loaded. Every member gets a fresh session.

        Source: GroupMetadataManager.replay, onLoaded.
        """
        consumer = group.consumer
        if consumer is None:
            consumer = ConsumerGroup(group.group_id)
            self._store.become(group, consumer=consumer)
        consumer.apply(key, value)
        member = consumer.members.get(getattr(key, "member_id", ""))
        if member is None:
            return
        self._start_session(group.group_id, member)
        if member.state is MemberState.UNREVOKED_PARTITIONS and not member.uses_classic_protocol:
            timeout_ms = member.rebalance_timeout_ms
            self._set_timer(
                group.group_id, SetTimer(TimerKind.REBALANCE, member.member_id, timeout_ms, member.member_epoch)
            )

    def begin(self, consumer: ConsumerGroup) -> None:
        """A group has these members now, new or converted (`GroupCoordinator.become`): their sessions begin."""
        for member in consumer.members.values():
            self._start_session(consumer.group_id, member)

    def release(self, consumer: ConsumerGroup) -> None:
        """A group does not have these members any more (`GroupCoordinator.become`): timers stop, and so does what is computed in
        threads, which would make it the group again.
        """
        for member_id in consumer.members:
            for kind in TimerKind:
                self.timers.cancel((consumer.group_id, kind, member_id))
        live = self._live.pop(consumer, None)
        if live is not None:
            live.cancel()

    def stop(self) -> None:
        """Stop timers and resolutions: the broker stops, or all groups are gone. It may be used again."""
        self.timers.close()
        for live in self._live.values():
            live.cancel()
        self._live.clear()

    # -- decisions -----------------------------------------------------------------------------------------------------

    @property
    def _image(self) -> MetadataImage:
        return self._node.topics.image

    @property
    def _default_assignor(self) -> str:
        assignors: list[str] = self._node.config.group_consumer_assignors
        return assignors[0]

    def _change(self, group: ConsumerGroup) -> GroupChange:
        live = self._live.get(group)
        config = self._node.config
        interval_ms = self._group_config(
            group.group_id,
            "consumer.assignment.interval.ms",
            config.group_consumer_assignment_interval_ms,
            config.group_consumer_min_assignment_interval_ms,
            config.group_consumer_max_assignment_interval_ms,
        )
        moment = Moment(
            now_ms=self._node.env.clock.now_ms(),
            has_metadata_changed=self._has_metadata_changed(group, live),
            may_assign=live is None
            or (live.assigning is None and (self._loop.time() - live.assigned_at_s) * 1000 >= interval_ms),
        )
        return GroupChange(
            group, self._image, GroupSettings(self._default_assignor, config.group_consumer_max_size), moment
        )

    def _has_metadata_changed(self, group: ConsumerGroup, live: _Live | None) -> bool:
        """True if topics that the group reads have changed since its epoch was written."""
        generation = self._node.topics.generation
        if live is not None and live.topics_generation == generation:
            return False
        if metadata_hash(group.subscribed_topics(), self._image) != group.metadata_hash:
            return True
        if live is not None:
            live.topics_generation = generation
        return False

    def _commit(self, change: GroupChange, prefix: Iterable[GroupRecord] = ()) -> None:
        """Write the records (those of `prefix`, which is not applied, before), make them the state, set the timers."""
        group = change.group
        group_id = group.group_id
        self._write(group_id, [*prefix, *change.records])
        for key, value in change.records:
            group.apply(key, value)
        self._adopt(group)
        live = self._live.setdefault(group, _Live())
        if change.has_computed_target:
            live.assigned_at_s = self._loop.time()
        if change.has_checked_metadata:
            live.topics_generation = self._node.topics.generation
        if change.heavy_task is not None:
            live.assigning = self._loop.create_task(self._assign(group, live, change.heavy_task))
        for timer in change.timers:
            self._set_timer(group_id, timer)

    def _write(self, group_id: str, records: Sequence[GroupRecord]) -> None:
        if not records:
            return
        try:
            encoded = [encode_record(key, value) for key, value in records]
        except OverflowError:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"a name of group {group_id} or its members is too long for a record"
            ) from None
        self._store.append(group_id, encoded)

    def _adopt(self, consumer: ConsumerGroup) -> None:
        """Make a new or converted group the one of its name."""
        group = self._store.group_or_new(consumer.group_id)
        if group.consumer is consumer:
            return
        if group.classic is not None:
            logger.info("group %s: now a consumer group", consumer.group_id)
        # Members that wait in a rebalance have to join again, as members of the consumer group.
        self._store.become(group, consumer=consumer)

    def _fence(self, group: ConsumerGroup, members: Collection[ConsumerGroupMember]) -> None:
        """Remove members; if only classic ones are left the group goes back to their protocol, where that is allowed."""
        config = self._node.config
        if conversion.may_downgrade(group, members, config.group_consumer_migration_policy, config.group_max_size):
            self._downgrade(group, members, None, must_rebalance=True)
            return
        change = self._change(group)
        change.fence(members)
        self._commit(change)

    def _downgrade(
        self,
        group: ConsumerGroup,
        leaving: Collection[ConsumerGroupMember],
        joining: ConsumerGroupMember | None,
        *,
        must_rebalance: bool,
    ) -> None:
        now_ms = self._node.env.clock.now_ms()
        classic = conversion.downgraded(group, leaving, joining, self._image, now_ms)
        self._write(group.group_id, [*group.tombstones(), (GroupMetadataKey(group.group_id), classic.value())])
        logger.info("group %s: now a classic group again", group.group_id)
        owner = self._store.group_or_new(group.group_id)
        self._store.become(owner, classic=classic)
        if must_rebalance:
            self._rebalance(classic)

    # -- timers --------------------------------------------------------------------------------------------------------

    def _set_timer(self, group_id: str, timer: SetTimer | CancelTimer) -> None:
        key = (group_id, timer.kind, timer.member_id)
        if isinstance(timer, CancelTimer):
            self.timers.cancel(key)
        else:
            self.timers.set(key, timer.timeout_ms, partial(self._expired, group_id, timer))

    def _start_session(self, group_id: str, member: ConsumerGroupMember) -> None:
        if member.classic is None:
            timeout_ms = self._session_timeout_ms(group_id)
        else:
            timeout_ms = member.classic.session_timeout_ms
        self._set_timer(group_id, SetTimer(TimerKind.SESSION, member.member_id, timeout_ms))

    def _expired(self, group_id: str, timer: SetTimer) -> None:
        group = self._store.group(group_id)
        if group is None or group.consumer is None:
            return
        member = group.consumer.members.get(timer.member_id)
        if member is None or timer.member_epoch not in (None, member.member_epoch):
            return
        logger.info("group %s: member %s is removed: %s", group_id, member.member_id, timer.kind.value)
        try:
            self._fence(group.consumer, [member])
        except REQUEST_ERRORS as error:
            logger.warning("group %s: %s could not be removed: %s", group_id, member.member_id, error)
            self._set_timer(group_id, timer._replace(timeout_ms=RETRY_MS))

    # -- configurations ------------------------------------------------------------------------------------------------

    def _session_timeout_ms(self, group_id: str) -> int:
        config = self._node.config
        return self._group_config(
            group_id,
            "consumer.session.timeout.ms",
            config.group_consumer_session_timeout_ms,
            config.group_consumer_min_session_timeout_ms,
            config.group_consumer_max_session_timeout_ms,
        )

    def _heartbeat_interval_ms(self, group_id: str) -> int:
        config = self._node.config
        return self._group_config(
            group_id,
            "consumer.heartbeat.interval.ms",
            config.group_consumer_heartbeat_interval_ms,
            config.group_consumer_min_heartbeat_interval_ms,
            config.group_consumer_max_heartbeat_interval_ms,
        )

    def _group_config(self, group_id: str, name: str, default: int, lowest: int, highest: int) -> int:
        """A group's own configuration, within what the broker allows now (`GroupConfig.evaluate`), or the broker's."""
        text = self._image.configs.get((GROUP_RESOURCE, group_id), {}).get(name)
        return default if text is None else max(lowest, min(int(text), highest))

    # -- target assignments that take long -----------------------------------------------------------------------------

    async def _assign(self, group: ConsumerGroup, live: _Live, task: TargetTask) -> None:
        """Compute a target assignment in a thread.

        Members get theirs with their next heartbeats. If the group has changed since, the next heartbeat starts over.
        """
        try:
            for part in await asyncio.to_thread(task.run_in_parts):
                change = self._change(group)
                change.take_targets(part, task)
                self._commit(change)
                await asyncio.sleep(0)
            change = self._change(group)
            change.finish_targets(task)
            self._commit(change)
        except REQUEST_ERRORS as error:
            logger.warning("group %s: the target assignment could not be written: %s", group.group_id, error)
        finally:
            live.assigning = None

    # -- regular expressions -------------------------------------------------------------------------------------------

    def _maybe_resolve(self, group: ConsumerGroup) -> None:
        """See to it that the topics of regular expressions get known, if there are new ones of either."""
        if not group.regex_counts:
            return
        live = self._live[group]
        if live.resolving is not None:
            return
        age_s = self._loop.time() - live.resolved_at_s
        is_new = any(regex not in group.resolved for regex in group.regex_counts)
        if (
            is_new
            or live.resolved_generation != self._node.topics.generation
            or age_s * 1000 >= self._node.config.group_consumer_regex_refresh_interval_ms
        ):
            delay_s = max(PATTERN_INTERVAL_S - age_s, 0)
            live.resolving = self._loop.create_task(self._resolve(group, live, delay_s))

    async def _resolve(self, group: ConsumerGroup, live: _Live, delay_s: float) -> None:
        try:
            await asyncio.sleep(delay_s)
            generation = self._node.topics.generation
            version = self._node.metadata.end_offset
            now_ms = self._node.env.clock.now_ms()
            found = await asyncio.to_thread(matching_topics, list(group.regex_counts), list(self._image.topics))
            live.resolved_at_s = self._loop.time()
            live.resolved_generation = generation
            if self._live.get(group) is not live:
                return  # it was deleted or converted since
            change = self._change(group)
            change.take_resolved(
                {regex: ResolvedRegularExpression(topics, version, now_ms) for regex, topics in found.items()}
            )
            self._commit(change)
        except REQUEST_ERRORS as error:
            logger.warning("group %s: regular expressions could not be resolved: %s", group.group_id, error)
        finally:
            live.resolving = None


def _consumer_of(group: Group) -> ConsumerGroup:
    if group.consumer is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Group {group.group_id} is not a consumer group.")
    return group.consumer


def _check_generation(member: ConsumerGroupMember, generation_id: int) -> None:
    if generation_id != member.member_epoch:
        raise KafkaError(
            ErrorCode.ILLEGAL_GENERATION,
            f"The request generation id {generation_id} is not equal to the member epoch {member.member_epoch} of member "
            f"{member.member_id}.",
        )


def _topic_partitions(owned: EpochedPartitions) -> list[dict[str, Any]]:
    return [{"topic_id": topic_id, "partitions": sorted(epochs)} for topic_id, epochs in owned.items()]
