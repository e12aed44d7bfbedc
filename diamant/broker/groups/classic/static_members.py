"""The rejoin of a static member of a classic group without its member id (KIP-345).

Deviation from Kafka, on purpose: if a static member is replaced before it has synced, the group awaits the sync of its
successor; Kafka waits for the old id, in vain, and rebalances.

Source: GroupMetadataManager.updateStaticMemberThenRebalanceOrCompleteJoin.
"""

from __future__ import annotations

from diamant.broker.groups.classic.classic_group import GroupState
from diamant.broker.groups.classic.events import (
    NO_LEADER,
    UNKNOWN_MEMBER_ID,
    JoinAnswer,
    JoinRequest,
    SyncAnswer,
    TimerKind,
)
from diamant.broker.groups.classic.member import ClassicMember
from diamant.broker.groups.classic.rebalance import begin_rebalance, complete_join_if_ready
from diamant.broker.groups.classic.turn import GroupTurn
from diamant.protocol.errors import ErrorCode

FIRST_WITH_SKIP_ASSIGNMENT = 9
"""JoinGroup: from this version on, a static leader can be told to skip its assignment."""


def replace_static(turn: GroupTurn, request: JoinRequest, old: ClassicMember, waiter: object) -> None:
    """Fence the old member id and replace it by a new one."""
    group = turn.group
    old_leader = group.leader_id
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
    group.roster.swap(old, new)
    turn.cancel_timer(TimerKind.SESSION, old.member_id)
    turn.start_session(new)
    # A parked request of the old id is fenced at once.
    turn.answer_parked_join(old, JoinAnswer(ErrorCode.FENCED_INSTANCE_ID, old.member_id))
    turn.answer_parked_sync(old, SyncAnswer(ErrorCode.FENCED_INSTANCE_ID))

    if group.state is GroupState.STABLE and group.roster.choose_protocol() == group.protocol_name:
        # Nothing changes for the others: no rebalance, only the new id is recorded.
        def after(turn: GroupTurn, error: ErrorCode) -> None:
            is_leader = group.leader_id == new.member_id
            if error is not ErrorCode.NONE:
                group.roster.swap(new, old)
                turn.cancel_timer(TimerKind.SESSION, new.member_id)
                turn.start_session(old)
                answer = group.joined(UNKNOWN_MEMBER_ID)._replace(error=error)
            elif request.version >= FIRST_WITH_SKIP_ASSIGNMENT:
                members = group.joined_members() if is_leader else ()
                answer = group.joined(new.member_id, members)._replace(skip_assignment=is_leader)
            else:
                # The old leader's id, so that the member does not send assignments: no member awaits them.
                answer = group.joined(new.member_id)._replace(leader=old_leader or NO_LEADER)
            turn.answer_join(waiter, answer)

        turn.write(group.value(), after)
        return
    turn.park_join(new, waiter)
    if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
        # The leader may be computing an assignment for the old id.
        begin_rebalance(turn)
    else:
        complete_join_if_ready(turn)
