"""Decisions about a consumer group, as the records to write and the timers to set.

A decision looks at a group and changes nothing. The caller writes `records`, applies them to `group`, sets the timers,
and then answers; if the log refuses the records, nothing has happened.

    change = GroupChange(group, image, settings, moment)
    member = change.heartbeat(request)
    → change.records, change.timers, member (its epoch and assignment for the answer)

Source: GroupMetadataManager of Kafka 4.3 (consumerGroupHeartbeat, consumerGroupLeave, consumerGroupFenceMembers).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from diamant.broker.groups.consumer.assignors import NOTHING, Assignment
from diamant.broker.groups.consumer.group import (
    ConsumerGroup,
    GroupRecord,
    ResolvedRegularExpression,
    count_change,
    names_of,
    regexes_of,
    target_record,
)
from diamant.broker.groups.consumer.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NO_PARTITIONS,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupMember,
    MemberState,
    with_epoch,
)
from diamant.broker.groups.consumer.metadata_hash import metadata_hash
from diamant.broker.groups.consumer.reconciliation import Owned, next_step
from diamant.broker.groups.consumer.target_assignment import TargetTask, subscribed_names, target_task
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics.group_records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from diamant.storage.kraft.image import MetadataImage


class MemberRequest(NamedTuple):
    """A member's own account in ConsumerGroupHeartbeat, or in a JoinGroup to a consumer group.

    None (-1 for the timeout) stands for "as before". `member_id` is never "": the caller has assigned one.
    `owned`: partitions that it owns, None if it does not say.
    """

    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    subscribed_topic_names: Sequence[str] | None
    subscribed_topic_regex: str | None
    server_assignor: str | None
    owned: Owned | None
    client_id: str
    client_host: str
    classic: ClassicMemberMetadata | None = None


class GroupSettings(NamedTuple):
    """Settings from the broker's and the group's configurations."""

    default_assignor: str
    max_size: int


class Moment(NamedTuple):
    """The time and the circumstances of a decision.

    `has_metadata_changed`: the topics may be others than when the group last looked. `may_assign`: the last target
    assignment is old enough for another one, and none is being computed.
    """

    now_ms: int
    has_metadata_changed: bool
    may_assign: bool = True


class TimerKind(Enum):
    """Why a member is put out of its group when the time is over."""

    SESSION = "the member session expired"
    REBALANCE = "it failed to give its partitions up in time"
    JOIN = "the classic member failed to join within the rebalance timeout"
    SYNC = "the member failed to sync within timeout"


class SetTimer(NamedTuple):
    """`member_epoch`: only if it still has this epoch then; None: in any case."""

    kind: TimerKind
    member_id: str
    timeout_ms: int
    member_epoch: int | None = None


class CancelTimer(NamedTuple):
    kind: TimerKind
    member_id: str


class _RegexStatus(Enum):
    SAME = 0
    CHANGED = 1
    CHANGED_AND_RESOLVED = 2


class GroupChange:
    """One decision about one group; make a new one for each."""

    def __init__(self, group: ConsumerGroup, image: MetadataImage, settings: GroupSettings, moment: Moment) -> None:
        self.group = group
        self.records: list[GroupRecord] = []
        self.timers: list[SetTimer | CancelTimer] = []
        self.has_computed_target = False
        self.heavy_task: TargetTask | None = None
        """A target assignment to be computed in a thread, and given to `take_targets` of a later change."""
        self.has_checked_metadata = False
        """True once the group knows the topics as they are."""
        self.group_epoch = group.group_epoch
        """The group epoch with the decision."""
        self._image = image
        self._settings = settings
        self._moment = moment

    # -- heartbeats ----------------------------------------------------------------------------------------------------

    def heartbeat(self, request: MemberRequest, check_pattern: Callable[[str], None]) -> ConsumerGroupMember:
        """Let a member join or continue; return it as it then is.

        `check_pattern` raises KafkaError INVALID_REGULAR_EXPRESSION. KafkaError: GROUP_MAX_SIZE_REACHED,
        UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID.
        """
        self.check_room(request.member_id)
        before = self.find_member(request)
        after = self.updated(before, request)
        if (
            after == before
            and not self._moment.has_metadata_changed
            and self.group.assignment_epoch >= self.group_epoch
        ):
            # What nearly all heartbeats are.
            epoch, target = self.group.assignment_epoch, self.group.target_of(after)
            return self.reconcile(after, epoch, target, False, request.owned)
        bumps, has_changed = self.update_subscription(before, after, check_pattern)
        return self.settle(before, after, bumps, has_changed, request.owned)

    def settle(
        self,
        before: ConsumerGroupMember,
        after: ConsumerGroupMember,
        bumps: bool,
        has_changed: bool,
        owned: Owned | None,
    ) -> ConsumerGroupMember:
        """Bring the group epoch, the target assignment and the member up to date, in this order."""
        is_homogeneous = self.refresh_metadata(before, after, bumps)
        epoch, target = self._update_target(before, after, is_homogeneous)
        return self.reconcile(after, epoch, target, has_changed, owned)

    def check_room(self, member_id: str) -> None:
        """Check that one more member fits. KafkaError GROUP_MAX_SIZE_REACHED."""
        group = self.group
        if len(group.members) >= self._settings.max_size and member_id not in group.members:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {self._settings.max_size} members.",
            )

    def find_member(self, request: MemberRequest, *, is_joining: bool | None = None) -> ConsumerGroupMember:
        """The member that a request is about: known, new, or in the place of a static one.

        `is_joining`: by default whether the epoch says so.
        """
        is_joining = request.member_epoch == JOIN_EPOCH if is_joining is None else is_joining
        if request.instance_id is not None:
            return self._find_static_member(request, request.instance_id, is_joining)
        known = self.group.members.get(request.member_id)
        if known is None and is_joining:
            return ConsumerGroupMember(member_id=request.member_id)
        member = known or self.group.member(request.member_id)
        if request.classic is None:
            check_member_epoch(member, request.member_epoch, request.owned)
        return member

    def _find_static_member(self, request: MemberRequest, instance_id: str, is_joining: bool) -> ConsumerGroupMember:
        known = self.group.static_member(instance_id)
        if not is_joining:
            known = self.known_static_member(instance_id, request.member_id)
            if request.classic is None:
                check_member_epoch(known, request.member_epoch, request.owned)
            return known
        if known is None:
            return self.group.members.get(request.member_id) or ConsumerGroupMember(member_id=request.member_id)
        is_consumer_protocol = request.classic is None and not known.uses_classic_protocol
        if is_consumer_protocol and known.member_epoch != STATIC_LEAVE_EPOCH:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {request.member_id} with instance id {instance_id} cannot join the group because the "
                f"instance id is owned by {known.member_id} member.",
            )
        successor = known.changed(
            member_id=request.member_id, member_epoch=JOIN_EPOCH, previous_member_epoch=JOIN_EPOCH
        )
        group_id = self.group.group_id
        self._remove(known.member_id)
        self.records += [
            (ConsumerGroupMemberMetadataKey(group_id, successor.member_id), successor.metadata_value()),
            target_record(group_id, successor.member_id, self.group.target.get(known.member_id, NOTHING)),
            (ConsumerGroupCurrentMemberAssignmentKey(group_id, successor.member_id), successor.assignment_value()),
        ]
        if known.member_id != successor.member_id:
            self.timers += [CancelTimer(kind, known.member_id) for kind in TimerKind]
        return successor

    def known_static_member(self, instance_id: str, member_id: str) -> ConsumerGroupMember:
        """The static member of that instance id. KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID if it is another."""
        known = self.group.static_member(instance_id)
        if known is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if known.member_id != member_id:
            raise KafkaError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member {known.member_id}.",
            )
        return known

    @staticmethod
    def updated(before: ConsumerGroupMember, request: MemberRequest) -> ConsumerGroupMember:
        """The member with what the request says of it."""
        names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
        return before.changed(
            instance_id=before.instance_id if request.instance_id is None else request.instance_id,
            rack_id=before.rack_id if request.rack_id is None else request.rack_id,
            rebalance_timeout_ms=(
                before.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
            ),
            subscribed_topic_names=before.subscribed_topic_names if names is None else frozenset(names),
            subscribed_topic_regex=before.subscribed_topic_regex if regex is None else regex,
            server_assignor=before.server_assignor if request.server_assignor is None else request.server_assignor,
            client_id=request.client_id,
            client_host=request.client_host,
            classic=request.classic,
        )

    def update_subscription(
        self, before: ConsumerGroupMember, after: ConsumerGroupMember, check_pattern: Callable[[str], None]
    ) -> tuple[bool, bool]:
        """Write the member if it has changed: (whether the group epoch must grow, whether the subscription has changed)."""
        have_names_changed = False
        if after != before:
            self.records.append(
                (ConsumerGroupMemberMetadataKey(self.group.group_id, after.member_id), after.metadata_value())
            )
            have_names_changed = after.subscribed_topic_names != before.subscribed_topic_names
        status = self._update_regex(before, after, check_pattern)
        bumps = have_names_changed or status is _RegexStatus.CHANGED_AND_RESOLVED
        return bumps, have_names_changed or status is not _RegexStatus.SAME

    def _update_regex(
        self, before: ConsumerGroupMember, after: ConsumerGroupMember, check_pattern: Callable[[str], None]
    ) -> _RegexStatus:
        group, old, new = self.group, before.subscribed_topic_regex, after.subscribed_topic_regex
        status = _RegexStatus.SAME
        if (old or "") != (new or ""):
            status = _RegexStatus.CHANGED
            if old and group.regex_counts[old] == 1:
                self.records.append((ConsumerGroupRegularExpressionKey(group.group_id, old), None))
            if new:
                if not group.regex_counts[new]:
                    check_pattern(new)
                elif new in group.resolved:
                    status = _RegexStatus.CHANGED_AND_RESOLVED
            elif old:
                status = _RegexStatus.CHANGED_AND_RESOLVED
        return status

    def refresh_metadata(self, before: ConsumerGroupMember, after: ConsumerGroupMember, bumps: bool) -> bool:
        """Let the group epoch grow if subscriptions or topics are others now; whether the subscriptions are all the same."""
        group = self.group
        names, regexes = Counter(group.name_counts), Counter(group.regex_counts)
        replaced = self._replaced(before)
        if bumps or self._moment.has_metadata_changed:
            count_change(names, names_of(replaced), names_of(after))
            count_change(regexes, regexes_of(replaced), regexes_of(after))
            topics = set(names)
            for regex, found in group.resolved.items():
                if regex in regexes or not group.regex_counts[regex]:
                    topics |= found.topics
            self._bump(metadata_hash(topics, self._image), is_forced=bumps)
            member_count = len(group.members) + (replaced is None)
            return group.is_homogeneous(member_count, names, regexes)
        return group.is_homogeneous(len(group.members), names, regexes)

    def _replaced(self, before: ConsumerGroupMember) -> ConsumerGroupMember | None:
        """The member that the group counts in the place of `before`: itself, or the static member that it replaces."""
        known = self.group.members.get(before.member_id)
        return known if known is not None else self.group.static_member(before.instance_id)

    def _bump(self, new_hash: int, *, is_forced: bool) -> None:
        group = self.group
        self.has_checked_metadata = True
        if is_forced or new_hash != group.metadata_hash:
            self.group_epoch = group.group_epoch + 1
            self.records.append(
                (ConsumerGroupMetadataKey(group.group_id), ConsumerGroupMetadataValue(self.group_epoch, new_hash))
            )
        if group.has_partition_metadata:
            self.records.append((ConsumerGroupPartitionMetadataKey(group.group_id), None))

    # -- the target assignment -----------------------------------------------------------------------------------------

    def _update_target(
        self, before: ConsumerGroupMember, after: ConsumerGroupMember, is_homogeneous: bool
    ) -> tuple[int, Assignment]:
        """The assignment epoch, and the member's target at it.

        Recomputed if it is behind the group epoch, here or, if that takes long, by the runner of `heavy_task`.
        """
        group = self.group
        if group.assignment_epoch >= self.group_epoch or not self._moment.may_assign:
            return group.assignment_epoch, group.target_of(after)
        assignor = group.preferred_assignor(self._replaced(before), after) or self._settings.default_assignor
        members = {
            member_id: member
            for member_id, member in group.members.items()
            if member_id != group.static_members.get(after.instance_id or "") or member_id == after.member_id
        }
        members[after.member_id] = after
        task = target_task(group, members, self._image, self.group_epoch, assignor, is_homogeneous)
        if not task.is_light:
            self.heavy_task = task
            return group.assignment_epoch, group.target_of(after)
        targets = task.run()
        for member_id, target in targets.items():
            self._write_target(member_id, target)
        self.finish_targets(task)
        return self.group_epoch, targets[after.member_id]

    def take_targets(self, targets: Mapping[str, Assignment], task: TargetTask) -> None:
        """Take in some of what a heavy task has come to, `finish_targets` after the last. Members that have left since are passed
        over; a static one that was replaced hands over to its successor.

        While that is in progress the assignment epoch is behind the group epoch; after a crash all of it is done again.
        """
        group = self.group
        for member_id, target in targets.items():
            instance_id = task.members[member_id].instance_id
            owner = member_id if instance_id is None else group.static_members.get(instance_id, member_id)
            if owner in group.members:
                self._write_target(owner, target)

    def finish_targets(self, task: TargetTask) -> None:
        """The target assignment is that of the task's group epoch."""
        value = ConsumerGroupTargetAssignmentMetadataValue(task.group_epoch, max(self._moment.now_ms, 0))
        self.records.append((ConsumerGroupTargetAssignmentMetadataKey(self.group.group_id), value))
        self.has_computed_target = True

    def _write_target(self, member_id: str, target: Assignment) -> None:
        if self.group.target.get(member_id) != target:
            self.records.append(target_record(self.group.group_id, member_id, target))

    def reconcile(
        self,
        member: ConsumerGroupMember,
        epoch: int,
        target: Assignment,
        has_subscription_changed: bool,
        owned: Owned | None,
    ) -> ConsumerGroupMember:
        """Bring the member a step closer to its target and write that down."""
        if not has_subscription_changed and member.is_reconciled_to(epoch):
            return member
        topics = self._image.topics
        after = next_step(
            member,
            epoch,
            target,
            subscribed_topic_ids={
                topics[name].topic_id for name in subscribed_names(self.group, member) if name in topics
            },
            has_subscription_changed=has_subscription_changed,
            owned=owned,
            current_epoch_of=self.group.current_epoch_of,
        )
        if after == member:
            return member
        self.records.append(
            (ConsumerGroupCurrentMemberAssignmentKey(self.group.group_id, after.member_id), after.assignment_value())
        )
        if not after.uses_classic_protocol:
            if after.state is MemberState.UNREVOKED_PARTITIONS:
                self.timers.append(
                    SetTimer(TimerKind.REBALANCE, after.member_id, after.rebalance_timeout_ms, after.member_epoch)
                )
            else:
                self.timers.append(CancelTimer(TimerKind.REBALANCE, after.member_id))
        return after

    # -- leaving -------------------------------------------------------------------------------------------------------

    def leaving_member(self, request: MemberRequest) -> ConsumerGroupMember:
        """The member that leaves. KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
        if request.instance_id is None:
            return self.group.member(request.member_id)
        return self.known_static_member(request.instance_id, request.member_id)

    def leave_for_a_while(self, member: ConsumerGroupMember) -> None:
        """A static member goes and means to come back: it keeps its partitions until its session is over."""
        absent = member.changed(
            member_epoch=STATIC_LEAVE_EPOCH,
            pending_revocation=NO_PARTITIONS,
            assigned=with_epoch(member.assigned, 0),
        )
        key = ConsumerGroupCurrentMemberAssignmentKey(self.group.group_id, member.member_id)
        self.records.append((key, absent.assignment_value()))

    def fence(self, members: Iterable[ConsumerGroupMember]) -> None:
        """Remove members; the group epoch grows, so that the others get what they had."""
        group = self.group
        gone = {member.member_id: member for member in members}
        if not gone:
            return
        names, regexes = Counter(group.name_counts), Counter(group.regex_counts)
        for member in gone.values():
            self._remove(member.member_id)
            count_change(names, names_of(member), ())
            count_change(regexes, regexes_of(member), ())
            self.timers += [CancelTimer(kind, member.member_id) for kind in TimerKind]
        topics = set(names)
        for regex, found in group.resolved.items():
            if regex in regexes or not group.regex_counts[regex]:
                topics |= found.topics
        for regex in group.regex_counts.keys() - regexes.keys():
            self.records.append((ConsumerGroupRegularExpressionKey(group.group_id, regex), None))
        self.group_epoch = group.group_epoch + 1
        self.records.append(
            (
                ConsumerGroupMetadataKey(group.group_id),
                ConsumerGroupMetadataValue(self.group_epoch, metadata_hash(topics, self._image)),
            )
        )

    def _remove(self, member_id: str) -> None:
        group_id = self.group.group_id
        self.records += [
            (ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id), None),
            (ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), None),
            (ConsumerGroupMemberMetadataKey(group_id, member_id), None),
        ]

    # -- regular expressions -------------------------------------------------------------------------------------------

    def take_resolved(self, found: dict[str, ResolvedRegularExpression]) -> None:
        """Take in which topics expressions match now; the group epoch grows if that makes a difference."""
        group = self.group
        current = {regex: new for regex, new in found.items() if group.regex_counts[regex]}
        for regex, new in current.items():
            self.records.append(
                (
                    ConsumerGroupRegularExpressionKey(group.group_id, regex),
                    ConsumerGroupRegularExpressionValue(tuple(sorted(new.topics)), new.version, new.timestamp_ms),
                )
            )
        topics = set(group.name_counts)
        for resolved in (group.resolved | current).values():
            topics |= resolved.topics
        empty = ResolvedRegularExpression(frozenset(), 0, 0)
        has_changed = any(group.resolved.get(regex, empty).topics != new.topics for regex, new in current.items())
        self._bump(metadata_hash(topics, self._image), is_forced=has_changed)


def check_member_epoch(member: ConsumerGroupMember, received: int, owned: Owned | None) -> None:
    """Check that a heartbeat's epoch is the member's. KafkaError FENCED_MEMBER_EPOCH.

    The previous epoch is accepted, too, since the answer with the new one may have been lost: what the member owns must
    then be part of what it was given.
    """
    if received in (JOIN_EPOCH, member.member_epoch):
        return
    is_greater = received > member.member_epoch
    if not is_greater and received == member.previous_member_epoch and owned is not None:
        given = member.assigned
        if all(partition in given.get(topic_id, {}) for topic_id, some in owned.items() for partition in some):
            return
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {'greater' if is_greater else 'smaller'} member epoch ({received}) than the one "
        f"known by the group coordinator ({member.member_epoch}). The member must abandon all its partitions and rejoin.",
    )


def check_request(
    group_id: str, request: MemberRequest, *, is_member_id_required: bool, assignors: Sequence[str]
) -> None:
    """Check that a ConsumerGroupHeartbeat makes sense by itself. KafkaError: INVALID_REQUEST, UNSUPPORTED_ASSIGNOR.

    `is_member_id_required`: from version 1 of the request on (KIP-1082). Source:
    GroupCoordinatorService.throwIfConsumerGroupHeartbeatRequestIsInvalid.
    """
    epoch = request.member_epoch
    if (is_member_id_required or epoch > 0 or epoch == LEAVE_EPOCH) and not request.member_id.strip():
        raise KafkaError(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
    for name, text in (("GroupId", group_id), ("InstanceId", request.instance_id), ("RackId", request.rack_id)):
        if text is not None and not text.strip():
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} can't be empty.")
    if epoch == JOIN_EPOCH:
        _check_join(request)
    elif epoch == STATIC_LEAVE_EPOCH:
        if request.instance_id is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def _check_join(request: MemberRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request.")
    if request.owned is None or request.owned:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        )


def is_full_request(request: MemberRequest) -> bool:
    """True if a member sends all fields, as it does after an error: it then wants a full answer as well."""
    has_subscription = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    return request.rebalance_timeout_ms != -1 and has_subscription and request.owned is not None
