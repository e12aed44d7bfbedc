"""One event of a classic group: its inputs, and the effects collected so far.

Pure: no event loop, no sockets, no clock. Each event handler is a function that takes a `GroupTurn`. The caller then carries
out `turn.effects` in order. A `WriteGroup` is always the last effect: the caller appends the record and, before it handles any
other event, calls `after` with a new turn and the error code of the write. The record takes effect only in `after`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from diamant.broker.groups.classic import events
from diamant.broker.groups.classic.classic_group import ClassicGroup, GroupState
from diamant.broker.groups.classic.member import ClassicMember
from diamant.protocol.errors import ErrorCode
from diamant.protocol.internal_topics.group_records import GroupMetadataValue


class ClassicGroupLimits(NamedTuple):
    """`group.max.size` and `group.initial.rebalance.delay.ms`."""

    max_size: int
    initial_rebalance_delay_ms: int


class WriteGroup(NamedTuple):
    """Write the group's record, and continue with `after`."""

    value: GroupMetadataValue
    after: Callable[[GroupTurn, ErrorCode], None]


Effect: TypeAlias = events.AnswerJoin | events.AnswerSync | events.SetTimer | events.CancelTimer | WriteGroup


class GroupTurn:
    """An event of `group` at `now_ms`, by the clock that also supplies the timestamps of records."""

    __slots__ = ("effects", "group", "limits", "now_ms")

    def __init__(self, group: ClassicGroup, limits: ClassicGroupLimits, now_ms: int) -> None:
        self.group = group
        self.limits = limits
        self.now_ms = now_ms
        self.effects: list[Effect] = []

    def enter(self, state: GroupState) -> None:
        """Change the group's state."""
        self.group.enter(state, self.now_ms)

    def set_timer(self, kind: events.TimerKind, timeout_ms: int, member_id: str = "") -> None:
        """(Re)start a timer."""
        self.effects.append(events.SetTimer(kind, member_id, timeout_ms))

    def cancel_timer(self, kind: events.TimerKind, member_id: str = "") -> None:
        """Stop a timer."""
        self.effects.append(events.CancelTimer(kind, member_id))

    def start_session(self, member: ClassicMember) -> None:
        """(Re)start the session of a member."""
        self.set_timer(events.TimerKind.SESSION, member.session_timeout_ms, member.member_id)

    def answer_join(self, waiter: object, answer: events.JoinAnswer) -> None:
        """Answer a JoinGroup."""
        self.effects.append(events.AnswerJoin(waiter, answer))

    def answer_sync(self, waiter: object, answer: events.SyncAnswer) -> None:
        """Answer a SyncGroup."""
        self.effects.append(events.AnswerSync(waiter, answer))

    def answer_parked_join(self, member: ClassicMember, answer: events.JoinAnswer) -> None:
        """Answer a member's parked join, if there is one."""
        waiter = self.group.roster.take_join(member)
        if waiter is not None:
            self.answer_join(waiter, answer)

    def answer_parked_sync(self, member: ClassicMember, answer: events.SyncAnswer) -> None:
        """Answer a member's parked sync, if there is one."""
        if member.sync_waiter is not None:
            self.answer_sync(member.sync_waiter, answer)
            member.sync_waiter = None

    def park_join(self, member: ClassicMember, waiter: object) -> None:
        """Park a member's join until the join phase ends. A join that is already parked is answered."""
        self.answer_parked_join(member, events.JoinAnswer(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        self.group.roster.park_join(member, waiter)

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending id, if it exists. Parked requests are answered with UNKNOWN_MEMBER_ID, so that a client
        that is still alive retries.
        """
        roster = self.group.roster
        roster.pending.pop(member_id, None)
        self.cancel_timer(events.TimerKind.SESSION, member_id)
        member = roster.members.get(member_id)
        if member is not None:
            self.answer_parked_join(member, events.JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID))
            self.answer_parked_sync(member, events.SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID))
            roster.remove(member)

    def write(self, value: GroupMetadataValue, after: Callable[[GroupTurn, ErrorCode], None]) -> None:
        """Write the group's record, then call `after(turn, error)`, which has to answer requests even if the write failed."""
        self.effects.append(WriteGroup(value, after))
