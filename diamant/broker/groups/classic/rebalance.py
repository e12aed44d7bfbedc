"""The start of a classic group's rebalance, and the end of its join phase.

When a phase ends, the leader is answered last, so that the next requests of the other members arrive before the leader's: the
leader's SyncGroup ends the next phase, and in a cooperative rebalance the leader may rejoin within a millisecond, which ends
the generation.
"""

from __future__ import annotations

from diamant.broker.groups.classic.classic_group import GroupState
from diamant.broker.groups.classic.events import SyncAnswer, TimerKind
from diamant.broker.groups.classic.initial_delay import InitialDelay
from diamant.broker.groups.classic.turn import GroupTurn
from diamant.protocol.errors import ErrorCode

MIN_RETRY_MS = 100
"""If only static members are left and none has rejoined, the join phase is checked again after their rebalance timeout, but
at least this many ms later. With a rebalance timeout of 0, Kafka checks in a busy loop until the sessions expire.
"""


def rebalance(turn: GroupTurn) -> None:
    """Make all members rejoin, or end the join phase if all have rejoined."""
    if turn.group.state is GroupState.PREPARING_REBALANCE:
        complete_join_if_ready(turn)
    elif turn.group.state is not GroupState.DEAD:
        begin_rebalance(turn)


def begin_rebalance(turn: GroupTurn) -> None:
    """Begin the join phase. If the group was empty, the phase lasts at least `group.initial.rebalance.delay.ms`."""
    group, roster = turn.group, turn.group.roster
    if group.state is GroupState.COMPLETING_REBALANCE:
        drop_assignments(turn, ErrorCode.REBALANCE_IN_PROGRESS)
    roster.awaiting_sync.clear()
    turn.cancel_timer(TimerKind.SYNC)
    is_initial = group.is_empty
    turn.enter(GroupState.PREPARING_REBALANCE)
    if is_initial:
        step_ms = turn.limits.initial_rebalance_delay_ms
        group.initial_delay = InitialDelay(step_ms, roster.rebalance_timeout_ms)
        turn.set_timer(TimerKind.JOIN, step_ms)
    elif roster.have_all_joined:
        complete_join(turn)
    else:
        turn.set_timer(TimerKind.JOIN, roster.rebalance_timeout_ms)


def drop_assignments(turn: GroupTurn, error: ErrorCode) -> None:
    """Drop the assignments of all members, and answer parked syncs with `error`."""
    for member in turn.group.members.values():
        member.assignment = b""
        if member.sync_waiter is not None:
            turn.answer_parked_sync(member, SyncAnswer(error))
            turn.start_session(member)


def complete_join_if_ready(turn: GroupTurn) -> None:
    """End the join phase if all members have joined, unless the initial delay of an empty group is still running."""
    group = turn.group
    is_delayed = group.initial_delay is not None
    if group.state is GroupState.PREPARING_REBALANCE and not is_delayed and group.roster.have_all_joined:
        complete_join(turn)


def join_expired(turn: GroupTurn) -> None:
    """Handle the JOIN timer: extend the initial delay, or end the join phase without the members that have not rejoined."""
    if turn.group.state is not GroupState.PREPARING_REBALANCE:
        return
    delay = turn.group.initial_delay
    extended_ms = None if delay is None else delay.extended_ms()
    if extended_ms is None:
        complete_join(turn)
    else:
        turn.set_timer(TimerKind.JOIN, extended_ms)


def complete_join(turn: GroupTurn) -> None:
    """Form the next generation from the joined members and all static members. If there are none, the group becomes Empty.

    Source: GroupMetadataManager.completeClassicGroupJoin.
    """
    group, roster = turn.group, turn.group.roster
    group.initial_delay = None
    turn.cancel_timer(TimerKind.JOIN)
    for member in [m for m in group.members.values() if m.join_waiter is None and not m.is_static]:
        turn.remove(member.member_id)
    if group.members and not roster.elect_joined_leader():
        # All members are static and none has rejoined: wait until they rejoin or their sessions expire.
        turn.set_timer(TimerKind.JOIN, max(roster.rebalance_timeout_ms, MIN_RETRY_MS))
        return
    group.generation_id += 1
    roster.awaiting_sync.clear()
    group.protocol_name = roster.choose_protocol() if group.members else None
    group.remember_subscriptions()
    if not group.members:
        turn.enter(GroupState.EMPTY)
        # If this write fails, a restart restores the members of the old generation, whose sessions then expire.
        turn.write(group.value(), lambda turn, error: None)
        return
    turn.enter(GroupState.COMPLETING_REBALANCE)
    joined_members = group.joined_members()
    for member in roster.leader_last():
        members = joined_members if member.member_id == group.leader_id else ()
        turn.answer_parked_join(member, group.joined(member.member_id, members))
        turn.start_session(member)
        member.is_new = False
        roster.awaiting_sync[member.member_id] = None
    turn.set_timer(TimerKind.SYNC, roster.rebalance_timeout_ms)
