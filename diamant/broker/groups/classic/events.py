"""The inputs and outputs of a classic group's events, as plain values.

Inputs: requests (`JoinRequest`, `SyncRequest`, `Leaver`). Outputs: answers to parked requests, and timers. A `waiter` is any
object that the caller passes with its request; the state machine just returns it with the answer.
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

    `protocols` are in the member's order of preference. `fresh_id` is the member id to assign if the member needs one; the
    caller generates it, because the state machine is deterministic. `version` is the API version: from 4 on, a new dynamic
    member must rejoin with its id (KIP-394); from 9 on, a static leader can be told to skip the assignment.
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
    """SyncGroup as the state machine sees it.

    Only the leader sends `assignments` (pairs of member id and opaque bytes). Before version 5, the protocol fields are None.
    """

    member_id: str
    group_instance_id: str | None
    generation_id: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: tuple[tuple[str, bytes], ...]


class Leaver(NamedTuple):
    """A member to remove, identified by its id, or by its instance id if it is static and `member_id` is empty."""

    member_id: str
    group_instance_id: str | None = None


class LeaveResult(NamedTuple):
    member_id: str
    group_instance_id: str | None
    error: ErrorCode


class JoinedMember(NamedTuple):
    """A member as JoinGroup describes it to the leader. `metadata` belongs to the chosen protocol."""

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
    """A SESSION timer belongs to a member or a pending id; JOIN and SYNC timers belong to the two phases of a rebalance."""

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
    """(Re)start a timer. `member_id` is "" for JOIN and SYNC timers, which belong to the group."""

    kind: TimerKind
    member_id: str
    timeout_ms: int


class CancelTimer(NamedTuple):
    kind: TimerKind
    member_id: str
