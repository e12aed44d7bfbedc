"""A classic group: members that join, a leader that assigns, members that fetch their assignment (the state machine).

              join                     all joined, or time over               leader syncs
    Empty ------------> Preparing --------------------------> Completing -----------------> Stable
      ^                 Rebalance                             Rebalance                        |
      |                   |   ^                                   |                            |
      +-------------------+   +-----------------------------------+----------------------------+
         no member is left       join with news, a member leaves or fails, a sync is missing

When a phase ends the leader is answered last. The leader ends the next phase, and in a cooperative rebalance also this
generation, by joining again within a millisecond. The head start lets the other members' requests arrive before that.

Pure: no event loop, no sockets, no clock. Every event is a method that returns the effects in the order in which they are to be
carried out (`events.py`). A `Write` is the last effect of its list: the caller appends the record and calls
`written` with the outcome, before any other event; what the record says counts from then on. Times are passed in: `now_ms` is
the clock that record timestamps are on.

What is written when: a record with all members when the leader has synced and when a static member is replaced in a Stable
group, one without members when the group becomes Empty. (The first record, when a join makes the group, is its service's.)

Deviations from Kafka, on purpose:
* a member that the leader left out gets an empty ConsumerProtocolAssignment if the protocol type is `consumer`, where Kafka
  sends no bytes, which the Java consumer cannot read;
* a request that is repeated while the first is still parked has the first one answered REBALANCE_IN_PROGRESS, and the parked
  sync of a member that is removed UNKNOWN_MEMBER_ID; in Kafka both stay without an answer;
* the successor of a static member that has not synced yet is the one whose sync is awaited; Kafka waits for the old id, in
  vain, and rebalances;
* a protocol that a member names twice counts once; in Kafka the group could choose none any more;
* when a member is refused by `group.max.size` in the join phase, the phase ends if it was the last one missing.

Bound: `group.max.size` members with the metadata of one request each, MAX_PENDING_MEMBERS ids that were given out and are to
come back within their session timeout.

Source: ClassicGroup, and GroupMetadataManager.classicGroup*.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from diamant.broker.groups.classic.events import (
    NO_LEADER,
    UNKNOWN_MEMBER_ID,
    AnswerJoin,
    AnswerSync,
    CancelTimer,
    Effect,
    GroupProtocol,
    JoinAnswer,
    JoinedMember,
    JoinRequest,
    Leaver,
    LeaveResult,
    SetTimer,
    SyncAnswer,
    SyncRequest,
    TimerKind,
    Write,
)
from diamant.broker.groups.classic.member import ClassicMember
from diamant.broker.groups.classic.roster import ClassicRoster
from diamant.protocol.errors import ErrorCode, KafkaError, ProtocolError
from diamant.protocol.internal_topics.consumer_protocol import PROTOCOL_TYPE, empty_assignment, subscribed_topics
from diamant.protocol.internal_topics.group_records import NO_TIMESTAMP, GroupMetadataValue

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""The time that a new member's first join may stay parked (Kafka's newMemberJoinTimeoutMs, not configurable)."""

FIRST_WITH_MEMBER_ID_REQUIRED = 4
FIRST_WITH_SKIP_ASSIGNMENT = 9

MAX_PENDING_MEMBERS = 100_000
"""Member ids of one group that were given out and have not come back; more are refused like members beyond the maximum."""


MIN_RETRY_MS = 100
"""The least pause before a join phase that no member has joined is looked at again. It matters if the members'
rebalance timeout is shorter: with 0 Kafka does nothing else until their sessions end.
"""


class GroupState(StrEnum):
    """By Kafka's names, as DescribeGroups and ListGroups give them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class ClassicGroupLimits(NamedTuple):
    """`group.max.size` and `group.initial.rebalance.delay.ms`."""

    max_size: int
    initial_rebalance_delay_ms: int


class _Turn:
    """One event in progress: its time, and the effects so far."""

    __slots__ = ("effects", "now_ms")

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.effects: list[Effect] = []


class _InitialDelay(NamedTuple):
    """The wait of an empty group for more members: this step's length, what is left of the rebalance timeout, and the most
    that a further step may take.
    """

    delay_ms: int
    remaining_ms: int
    step_ms: int


_AfterWrite: TypeAlias = Callable[[ErrorCode, _Turn], None]


class ClassicGroup:
    """The members of one group and what they agreed on. The public attributes are for reading."""

    __slots__ = (
        "_after_write",
        "_initial_delay",
        "_is_joined_by_new",
        "_pending_sync",
        "_previous_state",
        "_roster",
        "_subscribed_topics",
        "_subscriptions",
        "current_state_timestamp_ms",
        "generation_id",
        "group_id",
        "members",
        "protocol_name",
        "state",
    )

    def __init__(self, group_id: str, now_ms: int | None) -> None:
        """An empty group, in that state since `now_ms` (None: not known)."""
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.current_state_timestamp_ms = now_ms
        self.generation_id = 0
        self.protocol_name: str | None = None
        self._previous_state = GroupState.DEAD
        self._roster = ClassicRoster()
        self.members: Mapping[str, ClassicMember] = self._roster.members
        self._pending_sync: dict[str, None] = {}
        self._initial_delay: _InitialDelay | None = None
        self._is_joined_by_new = False
        self._subscriptions: tuple[bytes, ...] | None = None
        self._subscribed_topics: frozenset[str] | None = None
        self._after_write: _AfterWrite | None = None

    # -- what others ask -----------------------------------------------------------------------------------------------

    @property
    def leader_id(self) -> str | None:
        """The member that assigns; None without members."""
        return self._roster.leader_id

    @property
    def protocol_type(self) -> str | None:
        """The protocol type of the members; None if there has never been one."""
        return self._roster.protocol_type

    @property
    def is_empty(self) -> bool:
        """True without members (ids that are to come back do not count)."""
        return self.state is GroupState.EMPTY

    @property
    def is_simple(self) -> bool:
        """True for a group that no member has joined: it has only offsets."""
        return self.is_empty and self.protocol_type is None and not self._roster.pending

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == PROTOCOL_TYPE

    @property
    def static_members(self) -> Mapping[str, str]:
        """Instance id to member id."""
        return self._roster.static_members

    @property
    def subscribed_topics(self) -> frozenset[str] | None:
        """The topics that the generation's members are subscribed to; None if that is not known: another protocol type, no
        generation yet, or metadata that cannot be read.
        """
        subscriptions, self._subscriptions = self._subscriptions, None
        if subscriptions is not None:
            try:
                self._subscribed_topics = frozenset().union(*map(subscribed_topics, subscriptions))
            except ProtocolError:
                self._subscribed_topics = None
        return self._subscribed_topics

    def is_subscribed(self, topic: str) -> bool:
        """True if members read `topic`, or may: where the subscriptions of a consumer group are not known."""
        topics = self.subscribed_topics
        return self.uses_consumer_protocol if topics is None else topic in topics

    def validate_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        version: int,
        *,
        is_transactional: bool = False,
    ) -> None:
        """Refuse a commit from who is not a member of this generation. KafkaError: COORDINATOR_NOT_AVAILABLE,
        UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS.

        Source: ClassicGroup.validateOffsetCommit.
        """
        if self.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {self.group_id} is being removed")
        if generation < 0 and self.is_empty:
            return  # an admin client, or a consumer that assigns partitions to itself
        if generation >= 0 or member_id != UNKNOWN_MEMBER_ID or instance_id is not None:
            error = self.member_error(member_id, instance_id)
            if error is ErrorCode.NONE and generation != self.generation_id:
                error = ErrorCode.ILLEGAL_GENERATION
            if error is not ErrorCode.NONE:
                raise KafkaError(
                    error,
                    f"member {member_id!r} of generation {generation}; {self.group_id} is at {self.generation_id}",
                )
        elif not is_transactional and not self.is_empty:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"group {self.group_id} has members, and this is none of them"
            )
        if not is_transactional and self.state is GroupState.COMPLETING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f"group {self.group_id} is about to get its assignments")

    def validate_fetch(self, member_id: str, member_epoch: int) -> None:
        """Anybody may read a classic group's offsets. KafkaError: GROUP_ID_NOT_FOUND for a group that is being removed."""
        if self.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is in dead state.")

    def member_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """NONE for a member; UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID for a static one that was replaced.

        Source: ClassicGroup.validateMember.
        """
        return self._roster.member_error(member_id, instance_id)

    # -- the record ----------------------------------------------------------------------------------------------------

    @classmethod
    def from_value(cls, group_id: str, value: GroupMetadataValue) -> ClassicGroup:
        """The group that a record describes: Stable with its members, or Empty."""
        timestamp_ms = value.current_state_timestamp
        group = cls(group_id, None if timestamp_ms == NO_TIMESTAMP else timestamp_ms)
        group.generation_id = value.generation
        group._roster.leader_id = value.leader
        group.protocol_name = value.protocol
        for member in value.members:
            group._roster.add(
                ClassicMember(
                    member.member_id,
                    member.group_instance_id,
                    member.client_id,
                    member.client_host,
                    session_timeout_ms=member.session_timeout_ms,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    protocols=(GroupProtocol(value.protocol or "", member.subscription),),
                    assignment=member.assignment,
                ),
                value.protocol_type,
            )
        group._roster.protocol_type = value.protocol_type or None
        if group.members:
            group.state = GroupState.STABLE
        group._remember_subscriptions()
        return group

    @classmethod
    def of_members(
        cls, group_id: str, generation_id: int, protocol_type: str, members: Sequence[ClassicMember], now_ms: int
    ) -> ClassicGroup:
        """A Stable group of members that have their assignments already, the first as the leader (a consumer group that goes
        back to the classic protocol). All must have a protocol in common.

        Source: ClassicGroup.fromConsumerGroup.
        """
        group = cls(group_id, now_ms)
        group.generation_id = generation_id
        for member in members:
            group._roster.add(member, protocol_type)
        group.state = GroupState.STABLE
        group.protocol_name = group._roster.choose_protocol()
        group._remember_subscriptions()
        return group

    def value(self) -> GroupMetadataValue:
        """The group's record as of now."""
        return self._value({member.member_id: member.assignment for member in self.members.values()})

    def _value(self, assignments: Mapping[str, bytes]) -> GroupMetadataValue:
        timestamp_ms = self.current_state_timestamp_ms
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation_id,
            protocol=self.protocol_name,
            leader=self.leader_id,
            current_state_timestamp=NO_TIMESTAMP if timestamp_ms is None else timestamp_ms,
            members=tuple(
                member.value(self.protocol_name, assignments[member.member_id]) for member in self.members.values()
            ),
        )

    def written(self, error: ErrorCode, now_ms: int) -> list[Effect]:
        """The outcome of the last `Write`; `error` is what JoinGroup and SyncGroup answer when it failed."""
        after, self._after_write = self._after_write, None
        assert after is not None, "written() without a Write before it"
        turn = _Turn(now_ms)
        after(error, turn)
        return turn.effects

    def _write(self, turn: _Turn, value: GroupMetadataValue, after: _AfterWrite) -> None:
        assert self._after_write is None, "a second Write before the first is done"
        self._after_write = after
        turn.effects.append(Write(value))

    # -- JoinGroup -----------------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, waiter: object, limits: ClassicGroupLimits, now_ms: int) -> list[Effect]:
        """A member joins, for the first time or again. `waiter` is answered now or when the join phase ends."""
        turn = _Turn(now_ms)
        if not self._has_room(request.member_id, limits):
            was_known = request.member_id in self.members or request.member_id in self._roster.pending
            self._remove(request.member_id, turn)
            _answer_join(turn, waiter, JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED))
            if was_known:
                self._complete_join_if_ready(turn)
        elif request.member_id == UNKNOWN_MEMBER_ID:
            self._join_new(request, waiter, limits, turn)
        else:
            self._join_known(request, waiter, limits, turn)
        return turn.effects

    def _has_room(self, member_id: str, limits: ClassicGroupLimits) -> bool:
        if self.state is GroupState.PREPARING_REBALANCE:
            # The number of those who are back counts, not that of members: so the last ones to come back have to go when
            # the maximum was lowered.
            member = self.members.get(member_id)
            is_back = member is not None and member.join_waiter is not None
            return is_back or self._roster.parked_count < limits.max_size
        if self.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return member_id in self.members or len(self.members) < limits.max_size
        return True

    def _supports(self, request: JoinRequest) -> bool:
        if self.is_empty:
            return bool(request.protocol_type) and bool(request.protocols)
        return self._roster.supports(request.protocol_type, [protocol.name for protocol in request.protocols])

    def _join_new(self, request: JoinRequest, waiter: object, limits: ClassicGroupLimits, turn: _Turn) -> None:
        if self.state is GroupState.DEAD:
            _answer_join(turn, waiter, JoinAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        if not self._supports(request):
            _answer_join(turn, waiter, JoinAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
            return
        instance_id = request.group_instance_id
        if instance_id is None and request.version >= FIRST_WITH_MEMBER_ID_REQUIRED:
            if len(self._roster.pending) >= MAX_PENDING_MEMBERS:
                _answer_join(turn, waiter, JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED))
                return
            self._roster.pending[request.fresh_id] = None
            turn.effects.append(SetTimer(TimerKind.SESSION, request.fresh_id, request.session_timeout_ms))
            _answer_join(turn, waiter, JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, request.fresh_id))
        elif instance_id is not None and instance_id in self.static_members:
            self._replace_static(request, self.members[self.static_members[instance_id]], waiter, limits, turn)
        else:
            self._add_new(request, request.fresh_id, waiter, limits, turn)

    def _join_known(self, request: JoinRequest, waiter: object, limits: ClassicGroupLimits, turn: _Turn) -> None:
        member_id = request.member_id
        if self.state is GroupState.DEAD:
            _answer_join(turn, waiter, JoinAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id))
            return
        if not self._supports(request):
            _answer_join(turn, waiter, JoinAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id))
            return
        if member_id in self._roster.pending:
            if request.group_instance_id is not None:
                # The id was given to a dynamic member; Kafka throws here (IllegalStateException).
                _answer_join(turn, waiter, JoinAnswer(ErrorCode.UNKNOWN_SERVER_ERROR))
                return
            self._add_new(request, member_id, waiter, limits, turn)
            return
        error = self.member_error(member_id, request.group_instance_id)
        if error is not ErrorCode.NONE:
            _answer_join(turn, waiter, JoinAnswer(error, member_id))
            return
        member = self.members[member_id]
        is_changed = request.protocols != member.protocols
        if (
            self.state is GroupState.PREPARING_REBALANCE
            or is_changed
            # A leader that joins again wants to assign again: that is how consumers react to new partitions.
            or (self.state is GroupState.STABLE and member_id == self.leader_id)
        ):
            self._roster.change_protocols(member, request.protocols)
            member.rebalance_timeout_ms = request.rebalance_timeout_ms
            member.session_timeout_ms = request.session_timeout_ms
            self._park_join(member, waiter, turn)
            self._rebalance_or_complete(limits, turn)
        else:
            # It may not have got the answer to its last join.
            is_leader = self.state is GroupState.COMPLETING_REBALANCE and member_id == self.leader_id
            _answer_join(turn, waiter, self._joined(member_id, self._joined_members() if is_leader else ()))

    def _add_new(
        self, request: JoinRequest, member_id: str, waiter: object, limits: ClassicGroupLimits, turn: _Turn
    ) -> None:
        member = ClassicMember(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
        )
        member.is_new = True
        if self.state is GroupState.PREPARING_REBALANCE and self._previous_state is GroupState.EMPTY:
            self._is_joined_by_new = True
        self._roster.add(member, request.protocol_type, waiter)
        # A new member does not know its id yet, so it cannot send heartbeats, and a client that gives up and tries again
        # is a new member every time. So its parked join has a time of its own.
        turn.effects.append(SetTimer(TimerKind.SESSION, member_id, NEW_MEMBER_JOIN_TIMEOUT_MS))
        self._rebalance_or_complete(limits, turn)

    def _replace_static(
        self, request: JoinRequest, old: ClassicMember, waiter: object, limits: ClassicGroupLimits, turn: _Turn
    ) -> None:
        """A static member came back without its id: the old id is fenced, a new one takes its place.

        Source: GroupMetadataManager.updateStaticMemberThenRebalanceOrCompleteJoin.
        """
        old_leader = self.leader_id
        new = ClassicMember(
            request.fresh_id,
            old.group_instance_id,
            old.client_id,
            old.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
            assignment=old.assignment,
        )
        self._swap(old, new)
        turn.effects.append(CancelTimer(TimerKind.SESSION, old.member_id))
        turn.effects.append(SetTimer(TimerKind.SESSION, new.member_id, new.session_timeout_ms))
        # A request that still waits under the old id is fenced at once.
        self._answer_member_join(old, JoinAnswer(ErrorCode.FENCED_INSTANCE_ID, old.member_id), turn)
        self._answer_member_sync(old, SyncAnswer(ErrorCode.FENCED_INSTANCE_ID), turn)

        if self.state is GroupState.STABLE and self._roster.choose_protocol() == self.protocol_name:
            # Nothing changes for the others: no rebalance, only the new id is written down.
            def after(error: ErrorCode, turn: _Turn) -> None:
                is_leader = self.leader_id == new.member_id
                if error is not ErrorCode.NONE:
                    self._swap(new, old)
                    turn.effects.append(CancelTimer(TimerKind.SESSION, new.member_id))
                    turn.effects.append(SetTimer(TimerKind.SESSION, old.member_id, old.session_timeout_ms))
                    answer = self._joined(UNKNOWN_MEMBER_ID)._replace(error=error)
                elif request.version >= FIRST_WITH_SKIP_ASSIGNMENT:
                    members = self._joined_members() if is_leader else ()
                    answer = self._joined(new.member_id, members)._replace(skip_assignment=is_leader)
                else:
                    # The old leader's id, so that the member does not send an assignment, which no member awaits.
                    answer = self._joined(new.member_id)._replace(leader=old_leader or NO_LEADER)
                _answer_join(turn, waiter, answer)

            self._write(turn, self.value(), after)
            return
        self._park_join(new, waiter, turn)
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            # The leader may be at assigning to the old id.
            self._prepare_rebalance(limits, turn)
        else:
            self._complete_join_if_ready(turn)

    def _joined(self, member_id: str, members: tuple[JoinedMember, ...] = ()) -> JoinAnswer:
        return JoinAnswer(
            ErrorCode.NONE,
            member_id,
            self.generation_id,
            self.protocol_type,
            self.protocol_name,
            self.leader_id or NO_LEADER,
            members=members,
        )

    def _joined_members(self) -> tuple[JoinedMember, ...]:
        return self._roster.joined_members(self.protocol_name)

    # -- the join phase ------------------------------------------------------------------------------------------------

    def rebalance(self, limits: ClassicGroupLimits, now_ms: int) -> list[Effect]:
        """Make all members join again, or end the join phase if all have (after a change from outside)."""
        turn = _Turn(now_ms)
        self._rebalance_or_complete(limits, turn)
        return turn.effects

    def _rebalance_or_complete(self, limits: ClassicGroupLimits, turn: _Turn) -> None:
        if self.state is GroupState.PREPARING_REBALANCE:
            self._complete_join_if_ready(turn)
        elif self.state is not GroupState.DEAD:
            self._prepare_rebalance(limits, turn)

    def _prepare_rebalance(self, limits: ClassicGroupLimits, turn: _Turn) -> None:
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._drop_assignments(ErrorCode.REBALANCE_IN_PROGRESS, turn)
        self._pending_sync.clear()
        turn.effects.append(CancelTimer(TimerKind.SYNC, ""))
        is_initial = self.is_empty
        self._transition(GroupState.PREPARING_REBALANCE, turn)
        if is_initial:
            step_ms = limits.initial_rebalance_delay_ms
            self._is_joined_by_new = False
            self._initial_delay = _InitialDelay(step_ms, max(self._roster.rebalance_timeout_ms - step_ms, 0), step_ms)
            turn.effects.append(SetTimer(TimerKind.JOIN, "", step_ms))
        elif self._roster.have_all_joined:
            self._complete_join(turn)
        else:
            turn.effects.append(SetTimer(TimerKind.JOIN, "", self._roster.rebalance_timeout_ms))

    def _complete_join_if_ready(self, turn: _Turn) -> None:
        # The first rebalance ends with its delay, however many have come.
        if (
            self.state is GroupState.PREPARING_REBALANCE
            and self._previous_state is not GroupState.EMPTY
            and self._roster.have_all_joined
        ):
            self._complete_join(turn)

    def join_expired(self, now_ms: int) -> list[Effect]:
        """The JOIN timer: the initial delay is over, or the members have had the rebalance timeout to come back."""
        turn = _Turn(now_ms)
        if self.state is not GroupState.PREPARING_REBALANCE:
            return turn.effects
        delay = self._initial_delay
        if delay is not None and self._is_joined_by_new and delay.remaining_ms:
            self._is_joined_by_new = False
            next_ms = min(delay.step_ms, delay.remaining_ms)
            self._initial_delay = _InitialDelay(next_ms, max(delay.remaining_ms - delay.delay_ms, 0), delay.step_ms)
            turn.effects.append(SetTimer(TimerKind.JOIN, "", next_ms))
        else:
            self._complete_join(turn)
        return turn.effects

    def _complete_join(self, turn: _Turn) -> None:
        """Continue with the members that have joined: the next generation, or none without members.

        Source: GroupMetadataManager.completeClassicGroupJoin.
        """
        self._initial_delay = None
        turn.effects.append(CancelTimer(TimerKind.JOIN, ""))
        for member in [m for m in self.members.values() if m.join_waiter is None and not m.is_static]:
            self._remove(member.member_id, turn)
        if self.members and not self._roster.elect_joined_leader():
            # Only static members, and none is back: their session timeouts will decide.
            timeout_ms = max(self._roster.rebalance_timeout_ms, MIN_RETRY_MS)
            turn.effects.append(SetTimer(TimerKind.JOIN, "", timeout_ms))
            return
        self.generation_id += 1
        self._pending_sync.clear()
        if not self.members:
            self.protocol_name = None
            self._remember_subscriptions()
            self._transition(GroupState.EMPTY, turn)
            # If this cannot be written the old generation would come back with a restart, and time out.
            self._write(turn, self._value({}), lambda error, turn: None)
            return
        self.protocol_name = self._roster.choose_protocol()
        self._remember_subscriptions()
        self._transition(GroupState.COMPLETING_REBALANCE, turn)
        joined_members = self._joined_members()
        for member in self._roster.leader_last():
            members = joined_members if member.member_id == self.leader_id else ()
            self._answer_member_join(member, self._joined(member.member_id, members), turn)
            turn.effects.append(SetTimer(TimerKind.SESSION, member.member_id, member.session_timeout_ms))
            member.is_new = False
            self._pending_sync[member.member_id] = None
        turn.effects.append(SetTimer(TimerKind.SYNC, "", self._roster.rebalance_timeout_ms))

    # -- SyncGroup -----------------------------------------------------------------------------------------------------

    def sync(self, request: SyncRequest, waiter: object, limits: ClassicGroupLimits, now_ms: int) -> list[Effect]:
        """A member asks for its assignment, the leader brings all. `waiter` is answered now or when the leader has synced."""
        turn = _Turn(now_ms)
        error = self._sync_error(request)
        if error is not ErrorCode.NONE:
            turn.effects.append(AnswerSync(waiter, SyncAnswer(error)))
            return turn.effects
        member = self.members[request.member_id]
        self._synced(member, turn)
        if self.state is GroupState.STABLE:
            turn.effects.append(AnswerSync(waiter, self._assigned(member)))
            return turn.effects
        self._answer_member_sync(member, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS), turn)
        member.sync_waiter = waiter
        if member.member_id == self.leader_id:
            self._assign(dict(request.assignments), limits, turn)
        return turn.effects

    def _sync_error(self, request: SyncRequest) -> ErrorCode:
        if self.is_empty:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.member_error(request.member_id, request.group_instance_id)
        if error is not ErrorCode.NONE:
            return error
        if request.generation_id != self.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        if _differs(request.protocol_type, self.protocol_type) or _differs(request.protocol_name, self.protocol_name):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _assign(self, given: Mapping[str, bytes], limits: ClassicGroupLimits, turn: _Turn) -> None:
        left_out = empty_assignment() if self.uses_consumer_protocol else b""
        assignments = {member_id: given.get(member_id, left_out) for member_id in self.members}

        def after(error: ErrorCode, turn: _Turn) -> None:
            if error is not ErrorCode.NONE:
                self._drop_assignments(error, turn)
                self._rebalance_or_complete(limits, turn)
                return
            for member in self._roster.leader_last():
                member.assignment = assignments[member.member_id]
                if member.sync_waiter is not None:
                    self._answer_member_sync(member, self._assigned(member), turn)
                    turn.effects.append(SetTimer(TimerKind.SESSION, member.member_id, member.session_timeout_ms))
            self._transition(GroupState.STABLE, turn)

        self._write(turn, self._value(assignments), after)

    def _assigned(self, member: ClassicMember) -> SyncAnswer:
        return SyncAnswer(ErrorCode.NONE, self.protocol_type, self.protocol_name, member.assignment)

    def _synced(self, member: ClassicMember, turn: _Turn) -> None:
        self._pending_sync.pop(member.member_id, None)
        if not self._pending_sync:
            turn.effects.append(CancelTimer(TimerKind.SYNC, ""))

    def _drop_assignments(self, error: ErrorCode, turn: _Turn) -> None:
        for member in self.members.values():
            member.assignment = b""
            if member.sync_waiter is not None:
                self._answer_member_sync(member, SyncAnswer(error), turn)
                turn.effects.append(SetTimer(TimerKind.SESSION, member.member_id, member.session_timeout_ms))

    def sync_expired(self, limits: ClassicGroupLimits, now_ms: int) -> list[Effect]:
        """The SYNC timer: who has not synced within the rebalance timeout is out, and the others start again.

        Source: GroupMetadataManager.expirePendingSync.
        """
        turn = _Turn(now_ms)
        if self.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not self._pending_sync:
            return turn.effects
        for member_id in list(self._pending_sync):
            self._remove(member_id, turn)
        self._prepare_rebalance(limits, turn)
        return turn.effects

    # -- Heartbeat, LeaveGroup, session timeouts -----------------------------------------------------------------------

    def heartbeat(self, member_id: str, instance_id: str | None, generation_id: int) -> tuple[ErrorCode, list[Effect]]:
        """A sign of life: the code to answer, and the timer to start again."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        error = self.member_error(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error, []
        if generation_id != self.generation_id:
            return ErrorCode.ILLEGAL_GENERATION, []
        if self.is_empty:
            return ErrorCode.UNKNOWN_MEMBER_ID, []
        is_preparing = self.state is GroupState.PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if is_preparing else ErrorCode.NONE, [self._session(member_id)]

    def seen(self, member_id: str) -> list[Effect]:
        """Another sign of life, such as a commit: starts the member's session timer again."""
        return [self._session(member_id)] if member_id in self.members else []

    def _session(self, member_id: str) -> SetTimer:
        return SetTimer(TimerKind.SESSION, member_id, self.members[member_id].session_timeout_ms)

    def session_timers(self) -> list[Effect]:
        """A fresh session for every member: after they were restored from the log."""
        return [self._session(member_id) for member_id in self.members]

    def leave(
        self, leavers: Sequence[Leaver], limits: ClassicGroupLimits, now_ms: int
    ) -> tuple[list[LeaveResult], list[Effect]]:
        """Members leave or are removed; a result for each, in order. Not for a group in state Dead.

        Source: GroupMetadataManager.classicGroupLeaveToClassicGroup.
        """
        turn = _Turn(now_ms)
        results = []
        for leaver in leavers:
            error = self._leave_one(leaver, turn)
            results.append(LeaveResult(leaver.member_id, leaver.group_instance_id, error))
        if any(result.error is ErrorCode.NONE for result in results) and not self.is_empty:
            self._rebalance_or_complete(limits, turn)
        return results, turn.effects

    def _leave_one(self, leaver: Leaver, turn: _Turn) -> ErrorCode:
        member_id = leaver.member_id
        if member_id == UNKNOWN_MEMBER_ID:
            instance_id = leaver.group_instance_id
            found = None if instance_id is None else self.static_members.get(instance_id)
            if found is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = found
        elif member_id not in self._roster.pending:
            error = self.member_error(member_id, leaver.group_instance_id)
            if error is not ErrorCode.NONE:
                return error
        self._remove(member_id, turn)
        return ErrorCode.NONE

    def session_expired(self, member_id: str, limits: ClassicGroupLimits, now_ms: int) -> list[Effect]:
        """A SESSION timer: the member has been silent for too long, or an id has not come back.

        Source: GroupMetadataManager.expireClassicGroupMemberHeartbeat.
        """
        turn = _Turn(now_ms)
        member = self.members.get(member_id)
        if self.state is GroupState.DEAD or (member is None and member_id not in self._roster.pending):
            return turn.effects
        if member is not None and member.awaits_answer and not member.is_new:
            return turn.effects  # it waits for us; the timer starts again with the answer
        self._remove(member_id, turn)
        if self.state is GroupState.PREPARING_REBALANCE:
            if self._roster.have_all_joined:
                self._complete_join(turn)
        elif member is not None and not self.is_empty:
            self._prepare_rebalance(limits, turn)
        return turn.effects

    # -- the end -------------------------------------------------------------------------------------------------------

    def dissolve(self, error: ErrorCode, now_ms: int) -> list[Effect]:
        """Answer all who wait with `error`, stop all timers; the group is Dead from then on.

        For a broker that stops (NOT_COORDINATOR) and a group that changes its protocol (REBALANCE_IN_PROGRESS).
        """
        turn = _Turn(now_ms)
        for member in self.members.values():
            self._answer_member_join(member, JoinAnswer(error, member.member_id), turn)
            self._answer_member_sync(member, SyncAnswer(error), turn)
        for member_id in (*self.members, *self._roster.pending):
            turn.effects.append(CancelTimer(TimerKind.SESSION, member_id))
        turn.effects.append(CancelTimer(TimerKind.JOIN, ""))
        turn.effects.append(CancelTimer(TimerKind.SYNC, ""))
        self._transition(GroupState.DEAD, turn)
        return turn.effects

    # -- members -------------------------------------------------------------------------------------------------------

    def _park_join(self, member: ClassicMember, waiter: object, turn: _Turn) -> None:
        self._answer_member_join(member, JoinAnswer(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id), turn)
        self._roster.park_join(member, waiter)

    def _swap(self, old: ClassicMember, new: ClassicMember) -> None:
        self._roster.swap(old, new)
        if old.member_id in self._pending_sync:
            del self._pending_sync[old.member_id]
            self._pending_sync[new.member_id] = None

    def _remove(self, member_id: str, turn: _Turn) -> None:
        """Drop a member, a pending id, or nothing. A join that it waits for is answered UNKNOWN_MEMBER_ID: if it is still
        there it will try again.
        """
        self._roster.pending.pop(member_id, None)
        self._pending_sync.pop(member_id, None)
        turn.effects.append(CancelTimer(TimerKind.SESSION, member_id))
        member = self.members.get(member_id)
        if member is not None:
            self._answer_member_join(member, JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID), turn)
            self._answer_member_sync(member, SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID), turn)
            self._roster.remove(member)

    def _answer_member_join(self, member: ClassicMember, answer: JoinAnswer, turn: _Turn) -> None:
        waiter = self._roster.take_join(member)
        if waiter is not None:
            _answer_join(turn, waiter, answer)

    def _answer_member_sync(self, member: ClassicMember, answer: SyncAnswer, turn: _Turn) -> None:
        if member.sync_waiter is not None:
            turn.effects.append(AnswerSync(member.sync_waiter, answer))
            member.sync_waiter = None

    # -- state ---------------------------------------------------------------------------------------------------------

    def _transition(self, state: GroupState, turn: _Turn) -> None:
        assert self.state in _PREVIOUS_STATES[state], f"{self.group_id} cannot go from {self.state} to {state}"
        self._previous_state = self.state
        self.state = state
        self.current_state_timestamp_ms = turn.now_ms

    def _remember_subscriptions(self) -> None:
        """Keep the subscriptions of the generation's members; they are parsed with their first use."""
        self._subscribed_topics = None
        self._subscriptions = None
        if not self.uses_consumer_protocol:
            return
        if not self.members:
            self._subscribed_topics = frozenset()
        elif self.protocol_name is not None:
            self._subscriptions = tuple(member.metadata(self.protocol_name) for member in self.members.values())


_PREVIOUS_STATES: dict[GroupState, Collection[GroupState]] = {
    GroupState.EMPTY: (GroupState.PREPARING_REBALANCE,),
    GroupState.PREPARING_REBALANCE: (GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE),
    GroupState.COMPLETING_REBALANCE: (GroupState.PREPARING_REBALANCE,),
    GroupState.STABLE: (GroupState.COMPLETING_REBALANCE,),
    GroupState.DEAD: tuple(GroupState),
}


def _answer_join(turn: _Turn, waiter: object, answer: JoinAnswer) -> None:
    turn.effects.append(AnswerJoin(waiter, answer))


def _differs(given: str | None, expected: str | None) -> bool:
    return given is not None and expected is not None and given != expected
