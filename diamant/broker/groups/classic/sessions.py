"""Sessions of the members of a classic group: signs of life, and what happens without them."""

from __future__ import annotations

from diamant.broker.groups.classic.group import GroupState
from diamant.broker.groups.classic.rebalance import begin_rebalance, complete_join
from diamant.broker.groups.classic.turn import GroupTurn
from diamant.protocol.errors import ErrorCode


def heartbeat(turn: GroupTurn, member_id: str, instance_id: str | None, generation_id: int) -> ErrorCode:
    """Start the session of a member again; return the code to answer."""
    group = turn.group
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = group.roster.member_error(member_id, instance_id)
    if error is not ErrorCode.NONE:
        return error
    if generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if group.is_empty:
        return ErrorCode.UNKNOWN_MEMBER_ID
    turn.start_session(group.members[member_id])
    is_preparing = group.state is GroupState.PREPARING_REBALANCE
    return ErrorCode.REBALANCE_IN_PROGRESS if is_preparing else ErrorCode.NONE


def seen(turn: GroupTurn, member_id: str) -> None:
    """Start the session of a member again after another sign of life, such as a commit."""
    member = turn.group.members.get(member_id)
    if member is not None:
        turn.start_session(member)


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
