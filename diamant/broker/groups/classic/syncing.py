"""SyncGroup of a classic group: the leader sends the assignments, and each member fetches its own.

Deviations from Kafka, on purpose:
* if the protocol type is `consumer`, a member to which the leader assigned nothing receives an empty
  ConsumerProtocolAssignment; Kafka returns zero bytes, which the Java consumer cannot parse;
* if a member repeats its sync while the first one is parked, the first one is answered with REBALANCE_IN_PROGRESS; if a
  member is removed, its parked sync is answered with UNKNOWN_MEMBER_ID; Kafka answers neither.

Source: GroupMetadataManager.classicGroupSyncToClassicGroup.
"""

from __future__ import annotations

from collections.abc import Mapping

from diamant.broker.groups.classic.classic_group import ClassicGroup, GroupState
from diamant.broker.groups.classic.events import SyncAnswer, SyncRequest, TimerKind
from diamant.broker.groups.classic.member import ClassicMember
from diamant.broker.groups.classic.rebalance import begin_rebalance, drop_assignments, rebalance
from diamant.broker.groups.classic.turn import GroupTurn
from diamant.protocol.errors import ErrorCode
from diamant.protocol.internal_topics.consumer_protocol import empty_assignment


def sync(turn: GroupTurn, request: SyncRequest, waiter: object) -> None:
    """Handle SyncGroup. The leader's request contains the assignments. `waiter` is answered now or once that request arrives."""
    group, awaiting = turn.group, turn.group.roster.awaiting_sync
    error = _sync_error(group, request)
    if error is not ErrorCode.NONE:
        turn.answer_sync(waiter, SyncAnswer(error))
        return
    member = group.members[request.member_id]
    awaiting.pop(member.member_id, None)
    if not awaiting:
        turn.cancel_timer(TimerKind.SYNC)
    if group.state is GroupState.STABLE:
        turn.answer_sync(waiter, _assigned(group, member))
        return
    turn.answer_parked_sync(member, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS))
    member.sync_waiter = waiter
    if member.member_id == group.leader_id:
        _assign(turn, dict(request.assignments))


def _sync_error(group: ClassicGroup, request: SyncRequest) -> ErrorCode:
    if group.is_empty:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = group.roster.member_error(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _differs(given: str | None, expected: str | None) -> bool:
    return given is not None and expected is not None and given != expected


def _assign(turn: GroupTurn, given: Mapping[str, bytes]) -> None:
    group = turn.group
    left_out = empty_assignment() if group.uses_consumer_protocol else b""
    assignments = {member_id: given.get(member_id, left_out) for member_id in group.members}

    def after(turn: GroupTurn, error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            drop_assignments(turn, error)
            rebalance(turn)
            return
        for member in group.roster.leader_last():
            member.assignment = assignments[member.member_id]
            if member.sync_waiter is not None:
                turn.answer_parked_sync(member, _assigned(group, member))
                turn.start_session(member)
        turn.enter(GroupState.STABLE)

    turn.write(group.value(assignments), after)


def _assigned(group: ClassicGroup, member: ClassicMember) -> SyncAnswer:
    return SyncAnswer(ErrorCode.NONE, group.protocol_type, group.protocol_name, member.assignment)


def sync_expired(turn: GroupTurn) -> None:
    """Handle the SYNC timer: remove the members that did not sync within the rebalance timeout, and rebalance the others.

    Source: GroupMetadataManager.expirePendingSync.
    """
    awaiting = turn.group.roster.awaiting_sync
    if turn.group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not awaiting:
        return
    for member_id in list(awaiting):
        turn.remove(member_id)
    begin_rebalance(turn)
