"""The end of a classic group, and of its members: they expire or leave (LeaveGroup, sent by a member or an administrator)."""

from __future__ import annotations

from collections.abc import Sequence

from diamant.broker.groups.classic import events
from diamant.broker.groups.classic.classic_group import ClassicGroup, GroupState
from diamant.broker.groups.classic.rebalance import begin_rebalance, complete_join, rebalance
from diamant.broker.groups.classic.turn import GroupTurn
from diamant.protocol.errors import ErrorCode

ALIVE = (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)
"""Heartbeat answers after which the member's session restarts."""


def heartbeat(group: ClassicGroup, member_id: str, instance_id: str | None, generation_id: int) -> ErrorCode:
    """Return the error code that answers a heartbeat. If it is in `ALIVE`, the caller must restart the member's session."""
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = group.roster.member_error(member_id, instance_id)
    if error is not ErrorCode.NONE:
        return error
    if generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.EMPTY:
        return ErrorCode.UNKNOWN_MEMBER_ID
    is_preparing = group.state is GroupState.PREPARING_REBALANCE
    return ErrorCode.REBALANCE_IN_PROGRESS if is_preparing else ErrorCode.NONE


def start_sessions(turn: GroupTurn) -> None:
    """Start a session for every member, after the group was restored from the log or converted."""
    for member in turn.group.members.values():
        turn.start_session(member)


def session_expired(turn: GroupTurn, member_id: str) -> None:
    """Handle the SESSION timer: remove a member that was silent for too long, or an id whose owner has not rejoined.

    Source: GroupMetadataManager.expireClassicGroupMemberHeartbeat.
    """
    group = turn.group
    member = group.members.get(member_id)
    if group.state is GroupState.DEAD or (member is None and member_id not in group.roster.pending):
        return
    if member is not None and member.awaits_answer and not member.is_new:
        return  # its request is parked; the answer restarts the timer
    turn.remove(member_id)
    if group.state is GroupState.PREPARING_REBALANCE:
        if group.roster.have_all_joined:
            complete_join(turn)
    elif member is not None and not group.is_empty:
        begin_rebalance(turn)


def leave(turn: GroupTurn, leavers: Sequence[events.Leaver]) -> list[events.LeaveResult]:
    """Remove members; return a result for each, in order. The group must not be Dead.

    Source: GroupMetadataManager.classicGroupLeaveToClassicGroup.
    """
    results = [events.LeaveResult(*leaver, _leave_one(turn, leaver)) for leaver in leavers]
    if any(result.error is ErrorCode.NONE for result in results) and not turn.group.is_empty:
        rebalance(turn)
    return results


def _leave_one(turn: GroupTurn, leaver: events.Leaver) -> ErrorCode:
    roster = turn.group.roster
    member_id = leaver.member_id
    if member_id == events.UNKNOWN_MEMBER_ID:
        instance_id = leaver.group_instance_id
        static_id = None if instance_id is None else roster.static_members.get(instance_id)
        if static_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = static_id
    elif member_id not in roster.pending:
        error = roster.member_error(member_id, leaver.group_instance_id)
        if error is not ErrorCode.NONE:
            return error
    turn.remove(member_id)
    return ErrorCode.NONE


def coordinator_moved(turn: GroupTurn) -> None:
    """Answer parked requests with NOT_COORDINATOR and restart all sessions, because another broker now coordinates the group."""
    for member in list(turn.group.members.values()):
        turn.answer_parked_join(member, events.JoinAnswer(ErrorCode.NOT_COORDINATOR, member.member_id))
        turn.answer_parked_sync(member, events.SyncAnswer(ErrorCode.NOT_COORDINATOR))
        turn.start_session(member)


def dissolve(turn: GroupTurn, error: ErrorCode) -> None:
    """Answer all parked requests with `error`, stop all timers and make the group Dead.

    `error` is NOT_COORDINATOR if the broker stops, REBALANCE_IN_PROGRESS if the group changes its protocol.
    """
    members = turn.group.members
    for member in members.values():
        turn.answer_parked_join(member, events.JoinAnswer(error, member.member_id))
        turn.answer_parked_sync(member, events.SyncAnswer(error))
    for member_id in (*members, *turn.group.roster.pending):
        turn.cancel_timer(events.TimerKind.SESSION, member_id)
    turn.cancel_timer(events.TimerKind.JOIN)
    turn.cancel_timer(events.TimerKind.SYNC)
    turn.enter(GroupState.DEAD)
