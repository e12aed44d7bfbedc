"""Inputs and outputs of the events of a classic group, as plain values.

In: requests (`JoinRequest`, `SyncRequest`, `Leaver`). Out: answers to parked requests, and timers. A `waiter` is any
object that the caller passes with its request; the state machine returns it with the answer and does nothing else with it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from diamant.protocol.errors import ErrorCode

UNKNOWN_MEMBER_ID = ""
UNKNOWN_GENERATION_ID = -1
NO_LEADER = ""


class GroupProtocol(NamedTuple):
    """A protocol that a member supports (an assignor, for consumers) and the member's metadata for it, opaque bytes."""

    name: str
    metadata: bytes


class JoinRequest(NamedTuple):
    """JoinGroup as the state machine sees it.

    `protocols` are in the member's order of preference. `fresh_id` is the member id to assign if one is needed: the state
    machine draws no random numbers. `version` is the API version: from 4 on, a new dynamic member must rejoin with its id
    (KIP-394); from 9 on, a static leader can be told to skip its assignment.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[GroupProtocol, ...]
    version: int
    fresh_id: str


class SyncRequest(NamedTuple):
    """SyncGroup. The leader sends `assignments` (by member id, opaque bytes). `protocol_*` exist from version 5 on."""

    member_id: str
    group_instance_id: str | None
    generation_id: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: tuple[tuple[str, bytes], ...]


class Leaver(NamedTuple):
    """A member to remove, named by its id; a static member may be named by its instance id, with an empty member id."""

    member_id: str
    group_instance_id: str | None = None


class LeaveResult(NamedTuple):
    member_id: str
    group_instance_id: str | None
    error: ErrorCode


class JoinedMember(NamedTuple):
    """A member as the leader sees it. `metadata`: for the chosen protocol."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinAnswer(NamedTuple):
    """The answer to a JoinGroup. Only the leader gets `members`."""

    error: ErrorCode
    member_id: str = UNKNOWN_MEMBER_ID
    generation_id: int = UNKNOWN_GENERATION_ID
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_LEADER
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncAnswer(NamedTuple):
    """The answer to a SyncGroup; `assignment` is never null."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class TimerKind(StrEnum):
    """Timers. SESSION: of a member, or of an assigned id that has to rejoin. JOIN and SYNC: of the group's two phases."""

    SESSION = "session"
    JOIN = "join"
    SYNC = "sync"


class AnswerJoin(NamedTuple):
    waiter: object
    answer: JoinAnswer


class AnswerSync(NamedTuple):
    waiter: object
    answer: SyncAnswer


class SetTimer(NamedTuple):
    """(Re)start a timer; `member_id` is "" for a timer of the group."""

    kind: TimerKind
    member_id: str
    timeout_ms: int


class CancelTimer(NamedTuple):
    kind: TimerKind
    member_id: str
