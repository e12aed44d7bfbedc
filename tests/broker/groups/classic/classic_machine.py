"""A classic group with timers on its own clock: `ClassicGroups` without loop, log and sockets."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from diamant.broker.groups.classic.classic_group import ClassicGroup
from diamant.broker.groups.classic.events import (
    AnswerJoin,
    AnswerSync,
    CancelTimer,
    GroupProtocol,
    JoinAnswer,
    JoinRequest,
    Leaver,
    LeaveResult,
    SetTimer,
    SyncAnswer,
    SyncRequest,
    TimerKind,
)
from diamant.broker.groups.classic.joining import join
from diamant.broker.groups.classic.leaving import ALIVE, heartbeat, leave, session_expired
from diamant.broker.groups.classic.rebalance import join_expired
from diamant.broker.groups.classic.syncing import sync, sync_expired
from diamant.broker.groups.classic.turn import ClassicGroupLimits, Effect, GroupTurn, WriteGroup
from diamant.protocol.errors import ErrorCode
from diamant.protocol.internal_topics.group_records import GroupMetadataValue

SESSION_MS = 10_000
REBALANCE_MS = 60_000
RANGE = (GroupProtocol("range", b"r"),)


class Machine:
    """Runs a group. `answers`: by ticket. `records`: as written. `write_error`: the outcome of the next writes."""

    def __init__(self, *, delay_ms: int = 0, max_size: int = 1000, now_ms: int = 1_000_000) -> None:
        self.now_ms = now_ms
        self.limits = ClassicGroupLimits(max_size, delay_ms)
        self.group = ClassicGroup("g", now_ms)
        self.timers: dict[tuple[TimerKind, str], int] = {}
        self.answers: dict[int, JoinAnswer | SyncAnswer] = {}
        self.tickets = count()
        self.fresh = count()
        self.records: list[GroupMetadataValue] = []
        self.write_error = ErrorCode.NONE

    # Events

    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: tuple[GroupProtocol, ...] = RANGE,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int = 9,
    ) -> int:
        """Join; return a ticket for the answer."""
        ticket = next(self.tickets)
        fresh_id = f"{instance_id or 'm'}{next(self.fresh)}"
        request = JoinRequest(
            member_id, instance_id, "c", "/h", session_ms, rebalance_ms, protocol_type, protocols, version, fresh_id
        )
        turn = self.turn()
        join(turn, request, ticket)
        self.run(turn.effects)
        return ticket

    def sync(
        self,
        member_id: str,
        generation: int | None = None,
        assignments: dict[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> int:
        """Sync; return a ticket for the answer."""
        ticket = next(self.tickets)
        generation = self.group.generation_id if generation is None else generation
        given = tuple((assignments or {}).items())
        request = SyncRequest(member_id, instance_id, generation, protocol_type, protocol_name, given)
        turn = self.turn()
        sync(turn, request, ticket)
        self.run(turn.effects)
        return ticket

    def heartbeat(self, member_id: str, generation: int | None = None, *, instance_id: str | None = None) -> ErrorCode:
        generation = self.group.generation_id if generation is None else generation
        error = heartbeat(self.group, member_id, instance_id, generation)
        if error in ALIVE:
            self.timers[TimerKind.SESSION, member_id] = self.now_ms + self.group.members[member_id].session_timeout_ms
        return error

    def leave(self, *leavers: Leaver) -> list[LeaveResult]:
        turn = self.turn()
        results = leave(turn, leavers)
        self.run(turn.effects)
        return results

    # Time

    def pass_ms(self, duration_ms: int) -> None:
        """Advance the clock and fire timers in order."""
        end_ms = self.now_ms + duration_ms
        fired = 0
        while self.timers and min(self.timers.values()) <= end_ms:
            key = min(self.timers, key=lambda each: self.timers[each])
            self.now_ms = max(self.now_ms, self.timers.pop(key))
            fired += 1
            assert fired < 10_000, f"timers fire without end: {key}"
            self._fire(*key)
        self.now_ms = end_ms

    def _fire(self, kind: TimerKind, member_id: str) -> None:
        turn = self.turn()
        if kind is TimerKind.SESSION:
            session_expired(turn, member_id)
        elif kind is TimerKind.JOIN:
            join_expired(turn)
        else:
            sync_expired(turn)
        self.run(turn.effects)

    def turn(self) -> GroupTurn:
        """Begin an event at the present time."""
        return GroupTurn(self.group, self.limits, self.now_ms)

    # Effects

    def run(self, effects: Iterable[Effect]) -> None:
        effects = list(effects)
        for position, effect in enumerate(effects):
            if isinstance(effect, SetTimer):
                self.timers[effect.kind, effect.member_id] = self.now_ms + max(effect.timeout_ms, 0)
            elif isinstance(effect, CancelTimer):
                self.timers.pop((effect.kind, effect.member_id), None)
            elif isinstance(effect, (AnswerJoin, AnswerSync)):
                assert isinstance(effect.waiter, int)
                assert effect.waiter not in self.answers, "answered twice"
                self.answers[effect.waiter] = effect.answer
            else:
                assert isinstance(effect, WriteGroup)
                assert position == len(effects) - 1, "a WriteGroup is the last effect"
                if self.write_error is ErrorCode.NONE:
                    self.records.append(effect.value)
                turn = self.turn()
                effect.after(turn, self.write_error)
                self.run(turn.effects)

    # What tests ask

    def joined(self, ticket: int) -> JoinAnswer:
        answer = self.answers[ticket]
        assert isinstance(answer, JoinAnswer)
        return answer

    def synced(self, ticket: int) -> SyncAnswer:
        answer = self.answers[ticket]
        assert isinstance(answer, SyncAnswer)
        return answer

    # Stories

    def give_id(self, **join: object) -> str:
        """Return a new dynamic member's assigned id, which has not joined yet."""
        answer = self.joined(self.join(**join))  # type: ignore[arg-type]
        assert answer.error is ErrorCode.MEMBER_ID_REQUIRED
        return answer.member_id

    def form(self, size: int, **join: object) -> list[str]:
        """Return a Stable group of dynamic members, the leader first."""
        ids = [self.give_id(**join) for _ in range(size)]
        self.join_all(ids, **join)
        self.sync_all()
        return [self.group.leader_id or "", *(each for each in ids if each != self.group.leader_id)]

    def join_all(self, ids: Iterable[str], **join: object) -> list[JoinAnswer]:
        """Let all members (re)join, which ends the join phase."""
        tickets = [self.join(each, **join) for each in ids]  # type: ignore[arg-type]
        self.pass_ms(0)
        answers = [self.joined(ticket) for ticket in tickets]
        assert {answer.error for answer in answers} == {ErrorCode.NONE}
        return answers

    def sync_all(self) -> dict[str, bytes]:
        """Let all members sync; the leader assigns each its name. Return the assignments."""
        members = list(self.group.members)
        given = {each: f"for {each}".encode() for each in members}
        leader_id = self.group.leader_id
        tickets = {each: self.sync(each, assignments=given if each == leader_id else None) for each in members}
        answers = {each: self.synced(ticket) for each, ticket in tickets.items()}
        assert {answer.error for answer in answers.values()} == {ErrorCode.NONE}
        return {each: answer.assignment for each, answer in answers.items()}
