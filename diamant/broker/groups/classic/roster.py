"""The members of a classic group, their leader, the ids expected to rejoin, and the choice of the protocol (assignor).

Bound: see `classic_group.py`.

Source: ClassicGroup (add, remove, replaceStaticMember, maybeElectNewJoinedLeader, validateMember, supportsProtocols,
candidateProtocols, selectProtocol).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from diamant.broker.coordinators.java_order import strings_in_java_order
from diamant.broker.groups.classic.events import NO_LEADER, GroupProtocol, JoinedMember
from diamant.broker.groups.classic.member import ClassicMember
from diamant.protocol.errors import ErrorCode


class ClassicRoster:
    """The members of one group.

    `pending`: assigned ids with which no member has rejoined yet. `awaiting_sync`: the ids of members that have to sync.
    `leader_id`: None if there are no members. `protocol_type`: that of the first member. `parked_count`: the number of members
    whose join is parked.
    """

    __slots__ = (
        "_choice",
        "awaiting_sync",
        "leader_id",
        "members",
        "parked_count",
        "pending",
        "protocol_type",
        "static_members",
    )

    def __init__(self) -> None:
        self.members: dict[str, ClassicMember] = {}
        self.static_members: dict[str, str] = {}
        """Maps each instance id to its member id."""
        self.pending: dict[str, None] = {}
        self.awaiting_sync: dict[str, None] = {}
        self.leader_id: str | None = None
        self.protocol_type: str | None = None
        self.parked_count = 0
        self._choice = ProtocolChoice()

    # -- queries -------------------------------------------------------------------------------------------------------

    @property
    def have_all_joined(self) -> bool:
        """Whether all members have joined, and no assigned id is pending."""
        return self.parked_count == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of any member."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def member_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return NONE for a member, FENCED_INSTANCE_ID for a replaced static member, otherwise UNKNOWN_MEMBER_ID."""
        if instance_id is not None:
            current = self.static_members.get(instance_id)
            if current is not None and current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Return whether a member with these protocols is compatible with the current members."""
        return self.protocol_type == protocol_type and self._choice.has_common(names, len(self.members))

    def choose_protocol(self) -> str:
        """Return the protocol of the next generation."""
        return self._choice.choose(self.members.values())

    def joined_members(self, protocol_name: str | None) -> tuple[JoinedMember, ...]:
        """Return the members as JoinGroup describes them to the leader."""
        return tuple(
            JoinedMember(member.member_id, member.group_instance_id, member.metadata(protocol_name))
            for member in self.members.values()
        )

    def leader_last(self) -> list[ClassicMember]:
        """Return the members in an order that ends with the leader."""
        members = [member for member in self.members.values() if member.member_id != self.leader_id]
        return [*members, *(member for member in self.members.values() if member.member_id == self.leader_id)]

    # -- changes -------------------------------------------------------------------------------------------------------

    def add(self, member: ClassicMember, protocol_type: str, waiter: object | None = None) -> None:
        """Add a member. If `waiter` is set, park it as the member's join."""
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._choice.add(member)
        if waiter is not None:
            self.park_join(member, waiter)
        self.pending.pop(member.member_id, None)

    def change_protocols(self, member: ClassicMember, protocols: tuple[GroupProtocol, ...]) -> None:
        """Replace a member's protocols and their metadata."""
        self._choice.remove(member)
        member.protocols = protocols
        self._choice.add(member)

    def swap(self, old: ClassicMember, new: ClassicMember) -> None:
        """Replace the static member `old` with `new`, which takes over its instance id and its role as leader."""
        assert old.group_instance_id is not None
        self._choice.remove(old)
        self._choice.add(new)
        del self.members[old.member_id]
        self.members[new.member_id] = new
        self.static_members[old.group_instance_id] = new.member_id
        if self.leader_id == old.member_id:
            self.leader_id = new.member_id
        if old.member_id in self.awaiting_sync:
            del self.awaiting_sync[old.member_id]
            self.awaiting_sync[new.member_id] = None

    def remove(self, member: ClassicMember) -> None:
        """Remove a member without parked requests. If it was the leader, the first remaining member becomes the leader."""
        del self.members[member.member_id]
        self.awaiting_sync.pop(member.member_id, None)
        self._choice.remove(member)
        if member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self.members), None)

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it has rejoined, otherwise elect the first member that has. Return False if none has."""
        leader = self.members.get(self.leader_id or NO_LEADER)
        if leader is not None and leader.join_waiter is not None:
            return True
        for member in self.members.values():
            if member.join_waiter is not None:
                self.leader_id = member.member_id
                return True
        return False

    def park_join(self, member: ClassicMember, waiter: object) -> None:
        """Park a member's join. The member must not have a parked join already."""
        assert member.join_waiter is None
        member.join_waiter = waiter
        self.parked_count += 1

    def take_join(self, member: ClassicMember) -> object | None:
        """Remove and return a member's parked join, to be answered now."""
        waiter, member.join_waiter = member.join_waiter, None
        self.parked_count -= waiter is not None
        return waiter


class ProtocolChoice:
    """Counts the members that support each protocol. Bound: the protocol names of the current members."""

    __slots__ = ("_supporters",)

    def __init__(self) -> None:
        self._supporters: Counter[str] = Counter()

    def add(self, member: ClassicMember) -> None:
        self._supporters.update(member.protocol_names)

    def remove(self, member: ClassicMember) -> None:
        for name in member.protocol_names:
            self._supporters[name] -= 1
            if not self._supporters[name]:
                del self._supporters[name]

    def has_common(self, names: Iterable[str], member_count: int) -> bool:
        """Return whether all of `member_count` members support one of `names`."""
        return any(self._supporters[name] == member_count for name in names)

    def choose(self, members: Collection[ClassicMember]) -> str:
        """Return the protocol of the next generation: each member votes for its first protocol that all members support.

        There is such a protocol if `has_common` was true for each member before it was added.
        """
        candidates = {name for name, count in self._supporters.items() if count == len(members)}
        votes = Counter(member.vote(candidates) for member in members)
        most = max(votes.values())
        # Break ties like Kafka, which takes the first in the order of its hash map.
        return next(name for name in strings_in_java_order(votes) if votes[name] == most)
