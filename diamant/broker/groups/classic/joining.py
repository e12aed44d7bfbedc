"""JoinGroup of a classic group: a member joins or rejoins.

Deviations from Kafka, on purpose:
* if a member repeats its join while the first one is parked, the first one is answered with REBALANCE_IN_PROGRESS; Kafka
  never answers it;
* if a member is refused in the join phase because of `group.max.size`, and all others have joined, the phase ends;
* if a static member is replaced before it has synced (KIP-345), the group waits for its successor to sync; Kafka waits in
  vain for the old id and then rebalances.

Source: GroupMetadataManager.classicGroupJoinToClassicGroup, updateStaticMemberThenRebalanceOrCompleteJoin.
"""

from __future__ import annotations

from diamant.broker.groups.classic import events
from diamant.broker.groups.classic.classic_group import GroupState
from diamant.broker.groups.classic.member import ClassicMember
from diamant.broker.groups.classic.rebalance import begin_rebalance, complete_join_if_ready, rebalance
from diamant.broker.groups.classic.turn import GroupTurn
from diamant.protocol.errors import ErrorCode

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""The maximum time in ms for which a new member's first join is parked (Kafka's newMemberJoinTimeoutMs, not configurable)."""

FIRST_WITH_MEMBER_ID_REQUIRED = 4

MAX_PENDING_MEMBERS = 100_000
"""The maximum number of a group's pending members, which have an id but have not rejoined with it. If it is reached, new members
are refused as if the group were full.
"""


FIRST_WITH_SKIP_ASSIGNMENT = 9
"""The first version of JoinGroup in which a static leader can be told to skip the assignment."""


def replace_static(turn: GroupTurn, request: events.JoinRequest, old: ClassicMember, waiter: object) -> None:
    """Replace a static member that rejoins without its member id: assign a new id and fence the old one."""
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
    turn.cancel_timer(events.TimerKind.SESSION, old.member_id)
    turn.start_session(new)
    # Fence parked requests of the old id immediately.
    turn.answer_parked_join(old, events.JoinAnswer(ErrorCode.FENCED_INSTANCE_ID, old.member_id))
    turn.answer_parked_sync(old, events.SyncAnswer(ErrorCode.FENCED_INSTANCE_ID))

    if group.state is GroupState.STABLE and group.roster.choose_protocol() == group.protocol_name:
        # Nothing changes for the other members, so only the new id is recorded, without a rebalance.
        def after(turn: GroupTurn, error: ErrorCode) -> None:
            is_leader = group.leader_id == new.member_id
            if error is not ErrorCode.NONE:
                group.roster.swap(new, old)
                turn.cancel_timer(events.TimerKind.SESSION, new.member_id)
                turn.start_session(old)
                answer = group.joined(events.UNKNOWN_MEMBER_ID)._replace(error=error)
            elif request.version >= FIRST_WITH_SKIP_ASSIGNMENT:
                members = group.joined_members() if is_leader else ()
                answer = group.joined(new.member_id, members)._replace(skip_assignment=is_leader)
            else:
                # Return the old leader's id, so that the member does not compute assignments, which no member awaits.
                answer = group.joined(new.member_id)._replace(leader=old_leader or events.NO_LEADER)
            turn.answer_join(waiter, answer)

        turn.write(group.value(), after)
        return
    turn.park_join(new, waiter)
    if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
        # The leader may be computing an assignment for the old id.
        begin_rebalance(turn)
    else:
        complete_join_if_ready(turn)


def join(turn: GroupTurn, request: events.JoinRequest, waiter: object) -> None:
    """Handle JoinGroup. `waiter` is answered now or when the join phase ends."""
    roster = turn.group.roster
    if not _has_room(turn, request.member_id):
        was_known = request.member_id in roster.members or request.member_id in roster.pending
        turn.remove(request.member_id)
        turn.answer_join(waiter, events.JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED))
        if was_known:
            complete_join_if_ready(turn)
    elif turn.group.state is GroupState.DEAD:
        turn.answer_join(waiter, events.JoinAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE, request.member_id))
    elif not _is_supported(turn, request):
        turn.answer_join(waiter, events.JoinAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
    elif request.member_id == events.UNKNOWN_MEMBER_ID:
        _join_new(turn, request, waiter)
    else:
        _join_known(turn, request, waiter)


def _has_room(turn: GroupTurn, member_id: str) -> bool:
    members, state = turn.group.members, turn.group.state
    if state is GroupState.PREPARING_REBALANCE:
        # Count only the members that have rejoined, so that the last ones to rejoin are refused if the maximum was
        # lowered.
        member = members.get(member_id)
        is_back = member is not None and member.join_waiter is not None
        return is_back or turn.group.roster.parked_count < turn.limits.max_size
    if state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
        return member_id in members or len(members) < turn.limits.max_size
    return True


def _is_supported(turn: GroupTurn, request: events.JoinRequest) -> bool:
    if turn.group.is_empty:
        return bool(request.protocol_type) and bool(request.protocols)
    return turn.group.roster.supports(request.protocol_type, [protocol.name for protocol in request.protocols])


def _join_new(turn: GroupTurn, request: events.JoinRequest, waiter: object) -> None:
    roster = turn.group.roster
    instance_id = request.group_instance_id
    if instance_id is None and request.version >= FIRST_WITH_MEMBER_ID_REQUIRED:
        if len(roster.pending) >= MAX_PENDING_MEMBERS:
            turn.answer_join(waiter, events.JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED))
            return
        roster.pending[request.fresh_id] = None
        turn.set_timer(events.TimerKind.SESSION, request.session_timeout_ms, request.fresh_id)
        turn.answer_join(waiter, events.JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, request.fresh_id))
    elif instance_id is not None and instance_id in roster.static_members:
        replace_static(turn, request, roster.members[roster.static_members[instance_id]], waiter)
    else:
        _add_new(turn, request, request.fresh_id, waiter)


def _join_known(turn: GroupTurn, request: events.JoinRequest, waiter: object) -> None:
    group, roster = turn.group, turn.group.roster
    member_id = request.member_id
    if member_id in roster.pending:
        if request.group_instance_id is not None:
            # The id belongs to a dynamic member; Kafka throws here (IllegalStateException).
            turn.answer_join(waiter, events.JoinAnswer(ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        _add_new(turn, request, member_id, waiter)
        return
    error = roster.member_error(member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        turn.answer_join(waiter, events.JoinAnswer(error, member_id))
        return
    member = group.members[member_id]
    is_leader = member_id == group.leader_id
    if (
        group.state is GroupState.PREPARING_REBALANCE
        or request.protocols != member.protocols
        # A leader rejoins to trigger a new assignment, for example if it has noticed new partitions.
        or (group.state is GroupState.STABLE and is_leader)
    ):
        roster.change_protocols(member, request.protocols)
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        turn.park_join(member, waiter)
        rebalance(turn)
    else:
        # Repeat the answer, in case the member missed it.
        is_assigning = group.state is GroupState.COMPLETING_REBALANCE and is_leader
        turn.answer_join(waiter, group.joined(member_id, group.joined_members() if is_assigning else ()))


def _add_new(turn: GroupTurn, request: events.JoinRequest, member_id: str, waiter: object) -> None:
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
    if turn.group.initial_delay is not None:
        turn.group.initial_delay.is_joined_by_new = True
    turn.group.roster.add(member, request.protocol_type, waiter)
    # A new member may not know its id yet, so it cannot send heartbeats, and each retry of a client adds another new
    # member. So a parked join of a new member has its own timeout.
    turn.set_timer(events.TimerKind.SESSION, NEW_MEMBER_JOIN_TIMEOUT_MS, member_id)
    rebalance(turn)
