"""Sessions of the members of a classic group: signs of life, and what happens without them."""

from __future__ import annotations

from diamant.broker.groups.classic.group import ClassicGroup, GroupState
from diamant.broker.groups.classic.rebalance import begin_rebalance, complete_join
from diamant.broker.groups.classic.turn import GroupTurn
from diamant.protocol.errors import ErrorCode

ALIVE = (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)
"""The answers to a heartbeat that start the member's session again."""


def heartbeat(group: ClassicGroup, member_id: str, instance_id: str | None, generation_id: int) -> ErrorCode:
    """The code to answer. No event: for one of `ALIVE` the caller starts the member's session again, nothing else changes."""
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
    """Give every member a fresh session, after they were restored from the log."""
    for member in turn.group.members.values():
        turn.start_session(member)


def session_expired(turn: GroupTurn, member_id: str) -> None:
    """The SESSION timer: the member has been silent for too long, or an id has not come back.

    Source: GroupMetadataManager.expireClassicGroupMemberHeartbeat.
    """
    group = turn.group
    member = group.members.get(member_id)
    if group.state is GroupState.DEAD or (member is None and member_id not in group.roster.pending):
        return
    if member is not None and member.awaits_answer and not member.is_new:
        return  # it waits for us; the timer starts again with the answer
    turn.remove(member_id)
    if group.state is GroupState.PREPARING_REBALANCE:
        if group.roster.have_all_joined:
            complete_join(turn)
    elif member is not None and not group.is_empty:
        begin_rebalance(turn)
