"""Classic groups under any sequence of events.

Strategy: a few dynamic and static members join (in all versions, with all protocols), rejoin, sync, send heartbeats and leave,
with valid and invalid ids and generations, while the clock moves in steps of all sizes and the log fails occasionally.

Invariants: those of `check`; finally, without further events, every request is answered and the group is empty.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from diamant.broker.groups.classic.classic_group import GroupState
from diamant.broker.groups.classic.events import GroupProtocol, JoinAnswer, Leaver, SyncAnswer, TimerKind
from diamant.broker.groups.classic.joining import NEW_MEMBER_JOIN_TIMEOUT_MS
from diamant.protocol.errors import ErrorCode
from tests.broker.groups.classic.classic_machine import Machine
from tests.effort import examples

LONG_MS = 2 * NEW_MEMBER_JOIN_TIMEOUT_MS
XY = (GroupProtocol("x", b"1"), GroupProtocol("y", b"2"))
YX = (GroupProtocol("y", b"2"), GroupProtocol("x", b"1"))
PROTOCOLS = st.sampled_from(
    [
        *[XY, YX] * 5,
        (GroupProtocol("x", b""),),
        (GroupProtocol("y", b""), GroupProtocol("y", b"again"), GroupProtocol("x", b"")),
        (GroupProtocol("z", b""),),
        (),
    ]
)
JOIN = {
    "protocols": PROTOCOLS,
    "protocol_type": st.sampled_from([*["consumer"] * 8, "connect", ""]),
    "version": st.sampled_from([0, 3, 4, 8, 9]),
    "session_ms": st.sampled_from([10_000, 30_000, 10_000, 30_000, 100, 0]),
    "rebalance_ms": st.sampled_from([60_000, 60_000, 500, 0, -1]),
}
PICK = st.integers(0, 1000)
INSTANCES = st.sampled_from(["s1", "s2"])


class ClassicGroupRules(RuleBasedStateMachine):
    """One group, its clients, and time."""

    machine: Machine

    @initialize(delay_ms=st.sampled_from([0, 0, 300]), max_size=st.sampled_from([2, 4, 1000]))
    def start(self, delay_ms: int, max_size: int) -> None:
        self.machine = Machine(delay_ms=delay_ms, max_size=max_size)
        self.generation_id = 0
        self.ids: list[str] = ["nobody"]  # ever given out

    @rule(join=st.fixed_dictionaries(JOIN), instance_id=st.none() | INSTANCES)
    def join_new(self, join: dict[str, object], instance_id: str | None) -> None:
        self.machine.join(instance_id=instance_id, **join)  # type: ignore[arg-type]

    @rule(
        join=st.fixed_dictionaries(JOIN),
        pick=PICK,
        instance_id=st.none() | INSTANCES,
        is_right=st.booleans(),
        is_same=st.booleans(),
    )
    def join_again(
        self, join: dict[str, object], pick: int, instance_id: str | None, is_right: bool, is_same: bool
    ) -> None:
        member_id = self._any_id(pick)
        member = self.machine.group.members.get(member_id)
        if is_right and member is not None:
            instance_id = member.group_instance_id
        if is_same and member is not None:
            join = {**join, "protocols": member.protocols, "protocol_type": self.machine.group.protocol_type}
        elif is_right and member_id in self._pending():
            instance_id = None
        self.machine.join(member_id, instance_id=instance_id, **join)  # type: ignore[arg-type]

    @rule(pick=PICK, drift=st.sampled_from([0, 0, 0, 0, -1, 1]))
    def sync(self, pick: int, drift: int) -> None:
        group = self.machine.group
        self.machine.sync(
            self._any_id(pick), group.generation_id + drift, dict.fromkeys(list(group.members)[::2], b"a")
        )

    @rule()
    def sync_of_the_leader(self) -> None:
        leader_id = self.machine.group.leader_id
        if leader_id is not None:
            self.machine.sync(leader_id, None, {leader_id: b"lead"})

    @rule(join=st.fixed_dictionaries(JOIN))
    def clients_behave(self, join: dict[str, object]) -> None:
        """Every client sends the expected next request: ids rejoin, members rejoin, then sync."""
        machine, group = self.machine, self.machine.group
        for member_id in self._pending():
            machine.join(member_id, **join)  # type: ignore[arg-type]
        machine.pass_ms(0)
        for member in list(group.members.values()):
            if group.state is GroupState.PREPARING_REBALANCE and member.join_waiter is None:
                machine.join(
                    member.member_id,
                    instance_id=member.group_instance_id,
                    protocols=member.protocols,
                    protocol_type=group.protocol_type or "",
                )
        if group.state is GroupState.PREPARING_REBALANCE:
            machine.pass_ms(300)
        for member_id in list(group.members):
            if group.state is GroupState.COMPLETING_REBALANCE:
                machine.sync(member_id)

    @rule(pick=PICK, drift=st.sampled_from([0, 0, 0, -1]))
    def heartbeat(self, pick: int, drift: int) -> None:
        self.machine.heartbeat(self._any_id(pick), self.machine.group.generation_id + drift)

    @rule(picks=st.lists(PICK, max_size=3), instances=st.lists(INSTANCES, max_size=1))
    def leave(self, picks: list[int], instances: list[str]) -> None:
        leavers = [Leaver(self._any_id(pick)) for pick in picks] + [Leaver("", each) for each in instances]
        self.machine.leave(*leavers)

    @rule(duration_ms=st.sampled_from([0, 0, 0, 1, 99, 100, 300, 500, 10_000, 60_000, NEW_MEMBER_JOIN_TIMEOUT_MS]))
    def pass_time(self, duration_ms: int) -> None:
        self.machine.pass_ms(duration_ms)

    @rule(error=st.sampled_from([ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR]))
    def log_works_or_fails(self, error: ErrorCode) -> None:
        self.machine.write_error = error

    @rule(max_size=st.sampled_from([1, 3, 1000]))
    def maximum_changes(self, max_size: int) -> None:
        self.machine.limits = self.machine.limits._replace(max_size=max_size)

    @rule()
    def broker_restarts(self) -> None:
        """Restart from the log; no effect if the log lacks the present state."""
        machine = self.machine
        if machine.group.state is GroupState.STABLE and machine.records and machine.records[-1].members:
            value = machine.group.value()
            restored = type(machine.group).from_value("g", value)
            assert restored.value() == value
            assert restored.state is GroupState.STABLE

    @invariant()
    def check(self) -> None:
        machine, group = self.machine, self.machine.group
        for answer in machine.answers.values():
            if isinstance(answer, JoinAnswer) and answer.member_id:
                self.ids.append(answer.member_id)
            if isinstance(answer, SyncAnswer):
                assert answer.assignment is not None
        assert group.generation_id >= self.generation_id, "generations only grow"
        self.generation_id = group.generation_id
        members = group.members
        joins = {member.join_waiter for member in members.values()} - {None}
        syncs = {member.sync_waiter for member in members.values()} - {None}
        unanswered = set(range(len(machine.answers) + len(joins) + len(syncs))) - set(machine.answers)
        assert unanswered == joins | syncs, "what is not answered is parked with a member"
        assert group.roster.parked_count == len(joins)
        assert (group.leader_id in members) if members else group.leader_id is None
        assert group.roster.static_members == {
            member.group_instance_id: member.member_id for member in members.values() if member.is_static
        }
        assert not set(members) & self._pending()
        sessions = {member_id for kind, member_id in machine.timers if kind is TimerKind.SESSION}
        assert sessions <= set(members) | self._pending(), "timers of nobody"
        for member_id in set(members) | self._pending():
            assert member_id in sessions or members[member_id].awaits_answer, f"nothing will ever remove {member_id}"
        has_join_timer = (TimerKind.JOIN, "") in machine.timers
        has_sync_timer = (TimerKind.SYNC, "") in machine.timers
        assert has_join_timer == (group.state is GroupState.PREPARING_REBALANCE)
        assert not joins or group.state is GroupState.PREPARING_REBALANCE
        assert not syncs or group.state is GroupState.COMPLETING_REBALANCE
        if group.state is GroupState.COMPLETING_REBALANCE:
            assert has_sync_timer
            assert group.leader_id in group.roster.awaiting_sync, "a leader's sync ends the phase"
        if group.state is GroupState.EMPTY:
            assert not members
        elif group.state is not GroupState.PREPARING_REBALANCE:
            assert members
            assert group.protocol_name is not None
            for member in members.values():
                assert member.metadata(group.protocol_name) is not None
        if group.state is GroupState.STABLE and machine.write_error is ErrorCode.NONE and machine.records:
            assert set(group.roster.awaiting_sync) <= set(members)
            assert bool(group.roster.awaiting_sync) <= has_sync_timer

    def teardown(self) -> None:
        machine = getattr(self, "machine", None)
        if machine is None:
            return
        machine.pass_ms(LONG_MS)
        self.check()
        assert machine.group.state is GroupState.EMPTY, "without a sign of life nobody stays"
        assert not machine.timers
        assert set(machine.answers) == set(range(len(machine.answers)))

    def _any_id(self, pick: int) -> str:
        """Usually a member or an assigned id, sometimes a former one."""
        present = [*self.machine.group.members, *self._pending()]
        if present and pick % 5:
            return present[pick % len(present)]
        return self.ids[pick % len(self.ids)]

    def _pending(self) -> set[str]:
        return set(self.machine.group.roster.pending)


TestClassicGroupRules = ClassicGroupRules.TestCase
TestClassicGroupRules.__doc__ = "Nothing is left unanswered, generations grow, and no group is ever stuck."
TestClassicGroupRules.settings = settings(max_examples=examples(120), stateful_step_count=30, deadline=None)
