"""Sessions of the members of a classic group: heartbeats and expiry."""

from __future__ import annotations

from diamant.broker.groups.classic.classic_group import ClassicGroup, GroupState
from diamant.broker.groups.classic.rebalance import begin_rebalance, complete_join
from diamant.broker.groups.classic.turn import GroupTurn
from diamant.protocol.errors import ErrorCode

ALIVE = (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)
"""The answers to a heartbeat that restart the member's session."""


def heartbeat(group: ClassicGroup, member_id: str, instance_id: str | None, generation_id: int) -> ErrorCode:
    """Return the code to answer. No event: for one of `ALIVE` the caller restarts the member's session, nothing else changes."""
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
    """Start a new session for every member, after they were restored from the log."""
    for member in turn.group.members.values():
        turn.start_session(member)


def session_expired(turn: GroupTurn, member_id: str) -> None:
    """Handle the SESSION timer: a member was silent for too long, or an assigned id has not rejoined.

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
