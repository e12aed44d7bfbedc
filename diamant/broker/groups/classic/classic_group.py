"""A classic group: its members, its state, and its record.

              join                     all joined, or timeout                 leader syncs
    Empty ------------> Preparing --------------------------> Completing -----------------> Stable
      ^                 Rebalance                             Rebalance                        |
      |                   |   ^                                   |                            |
      +-------------------+   +-----------------------------------+----------------------------+
          no members left        a member joins, leaves, expires or does not sync in time

Each kind of event that changes a group has its own module: `joining.py`, `syncing.py`, `leaving.py`. `rebalance.py` starts
rebalances and ends their join phase; `syncing.py` ends their sync phase.

Bound: `group.max.size` members, each with the metadata of one request, and `joining.MAX_PENDING_MEMBERS` pending members,
which were assigned an id and have to rejoin with it within their session timeout.

Source: ClassicGroup.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

from diamant.broker.groups.classic.events import NO_LEADER, UNKNOWN_MEMBER_ID, GroupProtocol, JoinAnswer, JoinedMember
from diamant.broker.groups.classic.initial_delay import InitialDelay
from diamant.broker.groups.classic.member import ClassicMember
from diamant.broker.groups.classic.roster import ClassicRoster
from diamant.protocol.errors import ErrorCode, KafkaError, ProtocolError
from diamant.protocol.internal_topics.consumer_protocol import PROTOCOL_TYPE, subscribed_topics
from diamant.protocol.internal_topics.group_records import NO_TIMESTAMP, GroupMetadataValue


class GroupState(StrEnum):
    """The states of a classic group, by the names that DescribeGroups and ListGroups return."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class ClassicGroup:
    """The members of one group, and the protocol and generation that they agreed on. Only events change a group.

    `initial_delay` is set while a group that was empty waits for more members.
    """

    __slots__ = (
        "current_state_timestamp_ms",
        "generation_id",
        "group_id",
        "initial_delay",
        "members",
        "protocol_name",
        "roster",
        "state",
        "subscriptions",
    )

    def __init__(self, group_id: str, now_ms: int | None) -> None:
        """Create a group that has been empty since `now_ms` (None if unknown)."""
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.current_state_timestamp_ms = now_ms
        self.generation_id = 0
        self.protocol_name: str | None = None
        self.roster = ClassicRoster()
        self.members: Mapping[str, ClassicMember] = self.roster.members
        self.initial_delay: InitialDelay | None = None
        self.subscriptions = SubscribedTopics(None)

    # -- queries -------------------------------------------------------------------------------------------------------

    @property
    def leader_id(self) -> str | None:
        """The member that computes the assignments; None if there are no members."""
        return self.roster.leader_id

    @property
    def protocol_type(self) -> str | None:
        """The protocol type of the members; None if the group has never had one."""
        return self.roster.protocol_type

    @property
    def is_empty(self) -> bool:
        """Whether the group is Empty. Pending members, which have an id but have not rejoined with it, do not count."""
        return self.state is GroupState.EMPTY

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == PROTOCOL_TYPE

    def is_subscribed(self, topic: str) -> bool:
        """Return whether members subscribe to `topic`; True if they are consumers whose subscriptions are unknown."""
        topics = self.subscriptions.topics
        return self.uses_consumer_protocol if topics is None else topic in topics

    def joined(self, member_id: str, members: tuple[JoinedMember, ...] = ()) -> JoinAnswer:
        """Return the answer to the JoinGroup of a member of the current generation. Pass `members` only for the leader."""
        return JoinAnswer(
            ErrorCode.NONE,
            member_id,
            self.generation_id,
            self.protocol_type,
            self.protocol_name,
            self.leader_id or NO_LEADER,
            members=members,
        )

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """Return the members as JoinGroup describes them to the leader."""
        return self.roster.joined_members(self.protocol_name)

    def validate_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        version: int,
        *,
        is_transactional: bool = False,
    ) -> None:
        """Raise KafkaError unless the commit comes from a member of this generation. A caller that does not claim to be a
        member may commit to an empty group or in a transaction.

        Codes: COORDINATOR_NOT_AVAILABLE, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS.

        Source: ClassicGroup.validateOffsetCommit.
        """
        if self.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {self.group_id} is being removed")
        if generation < 0 and self.is_empty:
            return  # an admin client, or a consumer with manually assigned partitions
        if generation >= 0 or member_id != UNKNOWN_MEMBER_ID or instance_id is not None:
            error = self.roster.member_error(member_id, instance_id)
            if error is ErrorCode.NONE and generation != self.generation_id:
                error = ErrorCode.ILLEGAL_GENERATION
            if error is not ErrorCode.NONE:
                raise KafkaError(
                    error,
                    f"commit by member {member_id!r} of generation {generation}; group {self.group_id} is at generation "
                    f"{self.generation_id}",
                )
        elif not is_transactional and not self.is_empty:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"group {self.group_id} has members, and the committer is not one of them"
            )
        if not is_transactional and self.state is GroupState.COMPLETING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f"group {self.group_id} is waiting for its assignments")

    def validate_fetch(self, member_id: str, member_epoch: int) -> None:
        """Raise KafkaError GROUP_ID_NOT_FOUND if the group is being removed. Otherwise anyone may fetch its offsets."""
        if self.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is in dead state.")

    # -- the record ----------------------------------------------------------------------------------------------------

    @classmethod
    def from_value(cls, group_id: str, value: GroupMetadataValue) -> ClassicGroup:
        """Return the group that a record describes: Stable if the record contains members, otherwise Empty."""
        timestamp_ms = value.current_state_timestamp
        group = cls(group_id, None if timestamp_ms == NO_TIMESTAMP else timestamp_ms)
        group.generation_id = value.generation
        group.roster.leader_id = value.leader
        group.protocol_name = value.protocol
        for member in value.members:
            group.roster.add(
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
        group.roster.protocol_type = value.protocol_type or None
        if group.members:
            group.state = GroupState.STABLE
        group.remember_subscriptions()
        return group

    @classmethod
    def of_members(
        cls, group_id: str, generation_id: int, protocol_type: str, members: Sequence[ClassicMember], now_ms: int
    ) -> ClassicGroup:
        """Convert a consumer group to the classic protocol: return a Stable group of `members`, which keep their assignments.
        The first member becomes the leader. All members must have a protocol in common.

        Source: ClassicGroup.fromConsumerGroup.
        """
        group = cls(group_id, now_ms)
        group.generation_id = generation_id
        for member in members:
            group.roster.add(member, protocol_type)
        group.state = GroupState.STABLE
        group.protocol_name = group.roster.choose_protocol()
        group.remember_subscriptions()
        return group

    def value(self, assignments: Mapping[str, bytes] | None = None) -> GroupMetadataValue:
        """Return the group's current record, with the members' `assignments` (default: their current assignments)."""
        timestamp_ms = self.current_state_timestamp_ms
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation_id,
            protocol=self.protocol_name,
            leader=self.leader_id,
            current_state_timestamp=NO_TIMESTAMP if timestamp_ms is None else timestamp_ms,
            members=tuple(
                member.value(
                    self.protocol_name, member.assignment if assignments is None else assignments[member.member_id]
                )
                for member in self.members.values()
            ),
        )

    # -- steps of an event ---------------------------------------------------------------------------------------------

    def enter(self, state: GroupState, now_ms: int) -> None:
        """Change to another state at `now_ms`."""
        assert self.state in _PREVIOUS_STATES[state], f"{self.group_id} cannot go from {self.state} to {state}"
        self.state = state
        self.current_state_timestamp_ms = now_ms

    def remember_subscriptions(self) -> None:
        """Remember which topics the members of the new generation subscribe to."""
        if self.uses_consumer_protocol and (self.protocol_name is not None or not self.members):
            metadata = tuple(member.metadata(self.protocol_name) for member in self.members.values())
            self.subscriptions = SubscribedTopics(metadata)
        else:
            self.subscriptions = SubscribedTopics(None)


_PREVIOUS_STATES: dict[GroupState, Collection[GroupState]] = {
    GroupState.EMPTY: (GroupState.PREPARING_REBALANCE,),
    GroupState.PREPARING_REBALANCE: (GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE),
    GroupState.COMPLETING_REBALANCE: (GroupState.PREPARING_REBALANCE,),
    GroupState.STABLE: (GroupState.COMPLETING_REBALANCE,),
    GroupState.DEAD: tuple(GroupState),
}


class SubscribedTopics:
    """The topics that members subscribe to, parsed from `metadata` on first use. They are unknown if `metadata` is None."""

    __slots__ = ("_metadata", "_topics")

    def __init__(self, metadata: tuple[bytes, ...] | None) -> None:
        self._metadata = metadata
        self._topics: frozenset[str] | None = None

    @property
    def topics(self) -> frozenset[str] | None:
        """The topics. None if the members are not consumers, have not formed a generation yet, or sent unreadable metadata."""
        metadata, self._metadata = self._metadata, None
        if metadata is not None:
            try:
                self._topics = frozenset().union(*map(subscribed_topics, metadata))
            except ProtocolError:
                self._topics = None
        return self._topics
