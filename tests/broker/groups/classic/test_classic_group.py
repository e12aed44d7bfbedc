"""Classic groups, event by event, on their own clock."""

from __future__ import annotations

import pytest

from diamant.broker.groups.classic.classic_group import ClassicGroup, GroupState
from diamant.broker.groups.classic.events import GroupProtocol, JoinedMember, Leaver, LeaveResult, TimerKind
from diamant.broker.groups.classic.joining import MAX_PENDING_MEMBERS, NEW_MEMBER_JOIN_TIMEOUT_MS
from diamant.broker.groups.classic.leaving import dissolve, start_sessions
from diamant.broker.groups.classic.member import ClassicMember
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.internal_topics.consumer_protocol import Subscription, empty_assignment
from diamant.protocol.internal_topics.group_records import GroupMetadataMember, GroupMetadataValue
from tests.broker.groups.classic.classic_machine import RANGE, REBALANCE_MS, SESSION_MS, Machine
from tests.protocol.internal_topics.subscriptions import encode_subscription


def protocols(*names: str) -> tuple[GroupProtocol, ...]:
    return tuple(GroupProtocol(name, name.encode()) for name in names)


def subscription(*topics: str) -> tuple[GroupProtocol, ...]:
    return (GroupProtocol("range", encode_subscription(Subscription(topics))),)


def start_rebalance(machine: Machine, leader_id: str) -> int:
    """Let the leader rejoin; return its ticket."""
    ticket = machine.join(leader_id)
    assert machine.group.state is GroupState.PREPARING_REBALANCE
    return ticket


# ---- the initial delay -----------------------------------------------------------------------------------------------


def test_the_first_generation_waits_for_more_members() -> None:
    """An empty group waits for the initial delay, even if all assigned ids have joined."""
    machine = Machine(delay_ms=3000)
    one = machine.give_id()
    ticket = machine.join(one)
    machine.pass_ms(2999)
    assert ticket not in machine.answers
    machine.pass_ms(1)
    assert machine.joined(ticket).generation_id == 1


def test_newcomers_extend_the_initial_delay() -> None:
    """Each step with a new member is followed by another one, up to the rebalance timeout."""
    machine = Machine(delay_ms=3000)
    tickets = [machine.join(version=3, rebalance_ms=10_000)]
    for _ in range(5):
        machine.pass_ms(2000)
        if machine.group.state is GroupState.PREPARING_REBALANCE:
            tickets.append(machine.join(version=3, rebalance_ms=10_000))
    answered_ms = machine.now_ms
    while machine.group.state is GroupState.PREPARING_REBALANCE:
        machine.pass_ms(1)
        answered_ms = machine.now_ms
    # 3 s, then 3, 3 and what is left of 7 s after the first three steps: 1 s.
    assert answered_ms - 1_000_000 == 10_000
    assert {machine.joined(ticket).generation_id for ticket in tickets} == {1}


def test_nobody_new_nothing_to_wait_for() -> None:
    """A step without a new member is the last one."""
    machine = Machine(delay_ms=3000)
    machine.join(version=3)
    machine.pass_ms(1000)
    machine.join(version=3)
    machine.pass_ms(2000)
    assert machine.group.state is GroupState.PREPARING_REBALANCE
    machine.pass_ms(3000)
    assert machine.group.state is GroupState.COMPLETING_REBALANCE


def test_the_delay_is_for_empty_groups_only() -> None:
    """A group with members rebalances as soon as all have joined."""
    machine = Machine(delay_ms=3000)
    one = machine.give_id()
    machine.join(one)
    machine.pass_ms(3000)
    machine.sync_all()
    two = machine.give_id()
    ticket = machine.join(two)
    machine.join(one)
    assert machine.joined(ticket).generation_id == 2


# ---- silence ---------------------------------------------------------------------------------------------------------


def test_heartbeats_keep_a_member() -> None:
    """A member stays while it sends heartbeats in time, and for one more session timeout."""
    machine = Machine()
    (leader,) = machine.form(1)
    for _ in range(10):
        machine.pass_ms(SESSION_MS - 1)
        assert machine.heartbeat(leader) is ErrorCode.NONE
    machine.pass_ms(SESSION_MS - 1)
    assert machine.group.state is GroupState.STABLE
    machine.pass_ms(1)
    assert machine.group.state is GroupState.EMPTY
    assert machine.heartbeat(leader) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_parked_member_need_not_send_heartbeats() -> None:
    """While a join or a sync is parked the session does not expire; the answer restarts it."""
    machine = Machine()
    leader, follower = machine.form(2)
    ticket = start_rebalance(machine, leader)
    for _ in range(5):
        machine.pass_ms(SESSION_MS - 1)
        assert machine.heartbeat(follower) is ErrorCode.REBALANCE_IN_PROGRESS
    assert ticket not in machine.answers
    machine.join(follower)
    assert machine.joined(ticket).error is ErrorCode.NONE
    sync = machine.sync(follower)
    for _ in range(3):
        machine.pass_ms(SESSION_MS - 1)
        assert machine.heartbeat(leader) is ErrorCode.NONE
    assert follower in machine.group.members
    assert sync not in machine.answers
    machine.sync(leader)
    assert machine.synced(sync).error is ErrorCode.NONE
    machine.pass_ms(SESSION_MS - 1)
    assert follower in machine.group.members
    machine.pass_ms(1)
    assert follower not in machine.group.members


def test_a_new_member_may_wait_five_minutes() -> None:
    """A new member's parked join has its own timeout: without its id, the member cannot send heartbeats."""
    machine = Machine()
    leader, follower = machine.form(2, rebalance_ms=2 * NEW_MEMBER_JOIN_TIMEOUT_MS)
    ticket = machine.join(version=3, rebalance_ms=2 * NEW_MEMBER_JOIN_TIMEOUT_MS)
    passed_ms = 0
    while passed_ms < NEW_MEMBER_JOIN_TIMEOUT_MS:
        assert ticket not in machine.answers
        assert machine.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS
        assert machine.heartbeat(follower) is ErrorCode.REBALANCE_IN_PROGRESS
        machine.pass_ms(5000)
        passed_ms += 5000
    answer = machine.joined(ticket)
    assert (answer.error, answer.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "")
    assert len(machine.group.members) == 2


def test_a_join_phase_that_no_static_member_comes_to() -> None:
    """The join phase is retried with a pause until the members' sessions expire."""
    machine = Machine()
    for name in ("s", "t"):
        machine.join(instance_id=name, rebalance_ms=1, session_ms=SESSION_MS)
    machine.pass_ms(0)
    machine.sync_all()
    (first, second) = machine.group.members
    machine.heartbeat(first)
    machine.leave(Leaver("", "s"))
    assert machine.group.state is GroupState.PREPARING_REBALANCE
    machine.pass_ms(SESSION_MS // 2)
    assert machine.group.state is GroupState.PREPARING_REBALANCE
    assert list(machine.group.members) == [second]
    machine.pass_ms(SESSION_MS)
    assert machine.group.state is GroupState.EMPTY


@pytest.mark.parametrize("is_synced", [True, False])
def test_the_successor_of_a_static_member_that_has_not_synced(*, is_synced: bool) -> None:
    """The group waits for the successor in its place. Kafka waits for the old member id, in vain, and rebalances."""
    machine = Machine()
    for name in ("s", "t"):
        machine.join(instance_id=name, session_ms=2 * REBALANCE_MS)
    machine.pass_ms(0)
    leader, follower = machine.group.members
    machine.sync(leader, assignments={leader: b"a", follower: b"b"})
    new = machine.joined(machine.join(instance_id="t", session_ms=2 * REBALANCE_MS)).member_id
    assert set(machine.group.members) == {leader, new}
    if is_synced:
        assert machine.synced(machine.sync(new)).assignment == b"b"
    machine.pass_ms(REBALANCE_MS)
    assert set(machine.group.members) == ({leader, new} if is_synced else {leader})
    assert (machine.group.state is GroupState.STABLE) is is_synced


# ---- answers ---------------------------------------------------------------------------------------------------------


def test_only_the_leader_gets_the_members() -> None:
    """The leader gets all members with their metadata for the chosen protocol, the others get none."""
    machine = Machine()
    one = machine.give_id()
    two = machine.give_id()
    tickets = [
        machine.join(one, protocols=(GroupProtocol("x", b"1x"), GroupProtocol("y", b"1y"))),
        machine.join(two, protocols=(GroupProtocol("y", b"2y"),)),
    ]
    machine.pass_ms(0)
    leads, follows = (machine.joined(ticket) for ticket in tickets)
    assert leads.leader == follows.leader == one
    assert leads.protocol_name == follows.protocol_name == "y"
    assert leads.members == (JoinedMember(one, None, b"1y"), JoinedMember(two, None, b"2y"))
    assert follows.members == ()
    assert not leads.skip_assignment


@pytest.mark.parametrize(("protocol_type", "left_out"), [("consumer", empty_assignment()), ("connect", b"")])
def test_members_left_out_by_the_leader_get_an_empty_assignment(protocol_type: str, left_out: bytes) -> None:
    """A consumer gets a readable assignment, members of other types no bytes; the record has the same."""
    machine = Machine()
    leader, follower = machine.form(2, protocol_type=protocol_type)
    machine.join_all([leader, follower], protocol_type=protocol_type)
    ticket = machine.sync(follower)
    machine.sync(leader, assignments={leader: b"all", "nobody": b"lost"})
    assert machine.synced(ticket).assignment == left_out
    assert {member.member_id: member.assignment for member in machine.records[-1].members} == {
        leader: b"all",
        follower: left_out,
    }
    assert machine.synced(machine.sync(follower)).assignment == left_out


def test_a_repeated_request_takes_the_place_of_the_first() -> None:
    """A repeated join or sync answers the parked one, so that no request stays unanswered."""
    machine = Machine()
    leader, follower = machine.form(2)
    first = start_rebalance(machine, leader)
    second = machine.join(leader)
    assert machine.joined(first).error is ErrorCode.REBALANCE_IN_PROGRESS
    machine.join(follower)
    assert machine.joined(second).error is ErrorCode.NONE
    first = machine.sync(follower)
    second = machine.sync(follower)
    assert machine.synced(first).error is ErrorCode.REBALANCE_IN_PROGRESS
    machine.sync(leader)
    assert machine.synced(second).error is ErrorCode.NONE


def test_leaving_with_parked_requests() -> None:
    """The parked request of a removed member is answered UNKNOWN_MEMBER_ID."""
    machine = Machine()
    leader, follower = machine.form(2)
    join = start_rebalance(machine, leader)
    assert machine.leave(Leaver(leader)) == [LeaveResult(leader, None, ErrorCode.NONE)]
    assert machine.joined(join).error is ErrorCode.UNKNOWN_MEMBER_ID
    machine.join(follower)
    third = machine.give_id()
    machine.join(third)
    machine.join(follower)
    sync = machine.sync(third)
    machine.leave(Leaver(third))
    assert machine.synced(sync).error is ErrorCode.UNKNOWN_MEMBER_ID


# ---- bounds ----------------------------------------------------------------------------------------------------------


def test_ids_given_out_are_bounded() -> None:
    """Beyond MAX_PENDING_MEMBERS ids that have not rejoined, new members are refused."""
    machine = Machine()
    group = machine.group
    group.roster.pending.update(dict.fromkeys(f"x{number}" for number in range(MAX_PENDING_MEMBERS)))
    assert machine.joined(machine.join()).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert machine.leave(Leaver("x1")) == [LeaveResult("x1", None, ErrorCode.NONE)]
    assert machine.joined(machine.join()).error is ErrorCode.MEMBER_ID_REQUIRED


# ---- the record ------------------------------------------------------------------------------------------------------


def test_a_sync_writes_all_members_and_the_last_departure_none() -> None:
    """The leader's sync writes all members, the last departure writes none; both with Kafka's fields."""
    machine = Machine()
    machine.pass_ms(500)
    (leader,) = machine.form(1)
    machine.pass_ms(500)
    machine.leave(Leaver(leader))
    member = GroupMetadataMember(leader, None, "c", "/h", REBALANCE_MS, SESSION_MS, b"r", f"for {leader}".encode())
    assert machine.records == [
        GroupMetadataValue("consumer", 1, "range", leader, 1_000_500, (member,)),
        GroupMetadataValue("consumer", 2, None, None, 1_001_000, ()),
    ]


def test_restored_from_a_record() -> None:
    """A group is restored as Stable with new sessions; an empty one keeps its generation."""
    machine = Machine()
    leader, follower = machine.form(2)
    value = machine.records[-1]
    machine.group = ClassicGroup.from_value("g", value)
    machine.timers.clear()
    turn = machine.turn()
    start_sessions(turn)
    machine.run(turn.effects)
    assert machine.group.value() == value
    assert machine.heartbeat(follower, 1) is ErrorCode.NONE
    assert machine.synced(machine.sync(follower)).assignment == f"for {follower}".encode()
    assert machine.joined(machine.join(follower)).generation_id == 1
    machine.pass_ms(SESSION_MS)
    assert machine.group.state is GroupState.EMPTY
    assert machine.group.generation_id == 2
    empty = ClassicGroup.from_value("g", machine.records[-1])
    assert (empty.state, empty.generation_id, empty.protocol_type) == (GroupState.EMPTY, 2, "consumer")
    assert leader not in empty.members
    unused = ClassicGroup.from_value("g", GroupMetadataValue("", 0, None, None))
    assert (unused.state, unused.protocol_type) == (GroupState.EMPTY, None)
    assert unused.current_state_timestamp_ms is None
    assert unused.value() == GroupMetadataValue("", 0, None, None)


def test_an_assignment_that_cannot_be_written() -> None:
    """All parked requests get the error, no member has an assignment, and the group rebalances."""
    machine = Machine()
    leader, follower = machine.form(2)
    machine.join_all([leader, follower])
    machine.write_error = ErrorCode.UNKNOWN_SERVER_ERROR
    tickets = [machine.sync(follower), machine.sync(leader, assignments={leader: b"x"})]
    for ticket in tickets:
        answer = machine.synced(ticket)
        assert (answer.error, answer.assignment) == (ErrorCode.UNKNOWN_SERVER_ERROR, b"")
    assert machine.group.state is GroupState.PREPARING_REBALANCE
    machine.write_error = ErrorCode.NONE
    machine.join_all([leader, follower])
    assert machine.sync_all().keys() == {leader, follower}


def test_a_static_member_that_cannot_be_written() -> None:
    """If the static member cannot be written, its successor gets the error and nothing changes; the old member continues."""
    machine = Machine()
    ticket = machine.join(instance_id="s")
    machine.pass_ms(0)
    old = machine.joined(ticket).member_id
    machine.sync_all()
    before = machine.group.value()
    machine.write_error = ErrorCode.NOT_COORDINATOR
    answer = machine.joined(machine.join(instance_id="s", protocols=(GroupProtocol("range", b"news"),)))
    assert (answer.error, answer.member_id, answer.generation_id) == (ErrorCode.NOT_COORDINATOR, "", 1)
    assert machine.group.value() == before
    assert set(machine.timers) == {(TimerKind.SESSION, old)}
    assert machine.heartbeat(old, instance_id="s") is ErrorCode.NONE


def test_an_empty_group_that_cannot_be_written() -> None:
    """The group is empty all the same: a restart would restore the old generation, which then times out."""
    machine = Machine()
    (leader,) = machine.form(1)
    machine.write_error = ErrorCode.NOT_COORDINATOR
    machine.leave(Leaver(leader))
    assert machine.group.state is GroupState.EMPTY


def test_made_of_members_of_another_protocol() -> None:
    """Members of a former consumer group keep their assignments; the first is the leader."""
    members = [
        ClassicMember(
            name, None, "c", "/h", session_timeout_ms=1, rebalance_timeout_ms=2, protocols=RANGE, assignment=b"a"
        )
        for name in ("one", "two")
    ]
    group = ClassicGroup.of_members("g", 7, "consumer", members, 5)
    assert (group.state, group.generation_id, group.leader_id) == (GroupState.STABLE, 7, "one")
    assert group.protocol_name == "range"
    assert [member.assignment for member in group.value().members] == [b"a", b"a"]


# ---- what others ask -------------------------------------------------------------------------------------------------


def test_the_topics_of_a_generation_are_known() -> None:
    """The topics of a generation are known for consumers with readable metadata."""
    machine = Machine()
    assert not machine.group.is_subscribed("a")
    one, two = machine.give_id(), machine.give_id()
    machine.join(one, protocols=subscription("a", "b"))
    machine.join(two, protocols=subscription("b", "c"))
    assert machine.group.subscriptions.topics is None
    assert machine.group.is_subscribed("z"), "nothing is known yet"
    machine.pass_ms(0)
    assert machine.group.subscriptions.topics == {"a", "b", "c"}
    assert machine.group.is_subscribed("c")
    assert not machine.group.is_subscribed("z")
    machine.leave(Leaver(one), Leaver(two))
    assert machine.group.subscriptions.topics == frozenset()


def test_subscriptions_that_cannot_be_read() -> None:
    """A consumer group with unreadable metadata may read every topic, a group of another type none."""
    machine = Machine()
    machine.form(1)
    assert machine.group.subscriptions.topics is None
    assert machine.group.is_subscribed("z")
    other = Machine()
    other.form(1, protocol_type="connect")
    assert not other.group.is_subscribed("z")


def refusal(group: ClassicGroup, member_id: str, instance_id: str | None, generation: int, **more: bool) -> ErrorCode:
    try:
        group.validate_commit(member_id, instance_id, generation, 8, **more)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def test_members_of_the_generation_and_clients_of_an_empty_group_may_commit() -> None:
    """Members of the generation, and any client without one while the group is empty."""
    machine = Machine()
    group = machine.group
    assert refusal(group, "", None, -1) is ErrorCode.NONE
    assert refusal(group, "x", None, 0) is ErrorCode.UNKNOWN_MEMBER_ID
    leader, follower = machine.form(2)
    assert refusal(group, leader, None, 1) is ErrorCode.NONE
    assert refusal(group, leader, None, 0) is ErrorCode.ILLEGAL_GENERATION
    assert refusal(group, leader, None, -1) is ErrorCode.ILLEGAL_GENERATION
    assert refusal(group, leader, "i", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal(group, "x", None, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal(group, "", None, -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal(group, "", None, -1, is_transactional=True) is ErrorCode.NONE
    machine.join(leader)
    assert refusal(group, leader, None, 1) is ErrorCode.NONE, "until the next generation"
    machine.join(follower)
    assert refusal(group, leader, None, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert refusal(group, leader, None, 2, is_transactional=True) is ErrorCode.NONE
    dissolve(machine.turn(), ErrorCode.NOT_COORDINATOR)
    assert refusal(group, leader, None, 2) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(KafkaError, match="GROUP_ID_NOT_FOUND"):
        group.validate_fetch("", -1)


def test_a_fenced_commit() -> None:
    """The old id of a static member may no longer commit."""
    machine = Machine()
    ticket = machine.join(instance_id="s")
    machine.pass_ms(0)
    old = machine.joined(ticket).member_id
    machine.sync_all()
    new = machine.joined(machine.join(instance_id="s")).member_id
    assert refusal(machine.group, old, "s", 1) is ErrorCode.FENCED_INSTANCE_ID
    assert refusal(machine.group, new, "s", 1) is ErrorCode.NONE


def test_a_dissolved_group_answers_all_parked_requests() -> None:
    """A dissolved group answers all parked requests and leaves no timer; later requests are refused."""
    machine = Machine()
    leader, follower = machine.form(2)
    machine.give_id()
    join = start_rebalance(machine, leader)
    turn = machine.turn()
    dissolve(turn, ErrorCode.NOT_COORDINATOR)
    machine.run(turn.effects)
    assert machine.joined(join).error is ErrorCode.NOT_COORDINATOR
    assert not machine.timers
    assert machine.joined(machine.join()).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert machine.joined(machine.join(follower)).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert machine.synced(machine.sync(follower)).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert machine.heartbeat(follower) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_thousand_members() -> None:
    """The join phase of a large group is linear: each join but the last has only a few effects."""
    machine = Machine(max_size=5000)
    ids = machine.form(1000)
    assert len(machine.group.members) == 1000
    effects = []
    original = machine.run

    def counting(found: object) -> None:
        found = list(found)  # type: ignore[call-overload]
        effects.append(len(found))
        original(found)

    machine.run = counting  # type: ignore[method-assign]
    for member_id in ids:
        machine.join(member_id)
    assert machine.group.generation_id == 2
    assert max(effects[:-1]) <= 4
    assert effects[-1] <= 3 * 1000
