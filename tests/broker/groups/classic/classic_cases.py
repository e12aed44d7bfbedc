"""Stories of classic groups as requests and expected answers, for any broker.

They pass on this broker and on Apache Kafka 4.3.1 (brokers with `BROKER_CONFIGS`), except for steps marked `Differs`. Manually:

    python -m tests.broker.groups.classic.classic_cases 127.0.0.1:9092 kafka
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

from diamant.protocol.errors import ErrorCode
from diamant.protocol.internal_topics.consumer_protocol import Subscription, empty_assignment
from tests.broker.wire import WireClient
from tests.protocol.internal_topics.subscriptions import encode_subscription

FIND_COORDINATOR, JOIN, HEARTBEAT, LEAVE, SYNC = 10, 11, 12, 13, 14
SESSION_MS = 10_000
REBALANCE_MS = 30_000
SHORT_MS = 1_000
"""Of what is to be over: waited for, and yet long enough for a few requests on a slow machine."""

BROKER_CONFIGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.max.size": "3",
    "group.min.session.timeout.ms": "100",
    "offsets.topic.num.partitions": "3",
}


class Save(NamedTuple):
    """In an expectation: any value, saved under a name."""

    name: str


class Ref(NamedTuple):
    """In a request or an expectation: a saved value."""

    name: str


class Differs(NamedTuple):
    """Apache Kafka's answer, and our deliberate deviation: in an expectation, or as lists of steps."""

    kafka: Any
    ours: Any


class Send(NamedTuple):
    """A request on a connection with its own name."""

    connection: str
    key: int
    version: int
    fields: Mapping[str, Any]


class Expect(NamedTuple):
    """The answer to the last request of a connection; unnamed fields are ignored."""

    connection: str
    error: ErrorCode | Differs
    fields: Mapping[str, Any]


class Ask(NamedTuple):
    """A request and its answer, on the connection of the request."""

    send: Send
    answer: Expect


class Until(NamedTuple):
    """The same request, repeated until the answer has this error."""

    send: Send
    error: ErrorCode


class Drop(NamedTuple):
    """Close a connection."""

    connection: str


Step = Send | Expect | Ask | Until | Drop | Differs

# ---- requests, of the story's own group unless `group_id` is given ---------------------------------------------------


def join(
    connection: str,
    member_id: str | Ref = "",
    version: int = 9,
    *,
    instance_id: str | None = None,
    protocols: Sequence[tuple[str, bytes]] = (("range", b"m"),),
    protocol_type: str = "consumer",
    session_ms: int = SESSION_MS,
    rebalance_ms: int = REBALANCE_MS,
    **group: str,
) -> Send:
    fields = {
        "session_timeout_ms": session_ms,
        "rebalance_timeout_ms": rebalance_ms,
        "member_id": member_id,
        "group_instance_id": instance_id,
        "protocol_type": protocol_type,
        "protocols": [{"name": name, "metadata": metadata} for name, metadata in protocols],
        "reason": "",
    }
    return Send(connection, JOIN, version, {**fields, **group})


def sync(
    connection: str,
    member_id: str | Ref,
    generation_id: int | Ref,
    version: int = 5,
    *,
    assignments: Sequence[tuple[str | Ref, bytes]] = (),
    instance_id: str | None = None,
    protocol_type: str | None = "consumer",
    protocol_name: str | None = "range",
    **group: str,
) -> Send:
    fields = {
        "generation_id": generation_id,
        "member_id": member_id,
        "group_instance_id": instance_id,
        "protocol_type": protocol_type,
        "protocol_name": protocol_name,
        "assignments": [{"member_id": each, "assignment": assignment} for each, assignment in assignments],
    }
    return Send(connection, SYNC, version, {**fields, **group})


def heartbeat(
    connection: str,
    member_id: str | Ref,
    generation_id: int | Ref,
    version: int = 4,
    *,
    instance_id: str | None = None,
    **group: str,
) -> Send:
    fields = {"generation_id": generation_id, "member_id": member_id, "group_instance_id": instance_id}
    return Send(connection, HEARTBEAT, version, {**fields, **group})


def leave(connection: str, *members: tuple[str | Ref, str | None], version: int = 5, **group: str) -> Send:
    if version < 3:
        fields: dict[str, Any] = {"member_id": members[0][0]}
    else:
        fields = {"members": [{"member_id": each, "group_instance_id": instance} for each, instance in members]}
    return Send(connection, LEAVE, version, {**fields, **group})


def ask(send: Send, answer: Expect) -> Ask:
    return Ask(send, answer._replace(connection=send.connection))


def ok(connection: str = "", **fields: Any) -> Expect:
    return Expect(connection, ErrorCode.NONE, fields)


def fails(error: ErrorCode, connection: str = "", **fields: Any) -> Expect:
    return Expect(connection, error, fields)


def left(*members: tuple[str | Ref, str | None, ErrorCode]) -> Expect:
    """Return a LeaveGroup answer."""
    names = ("member_id", "group_instance_id", "error_code")
    return ok(members=[dict(zip(names, member, strict=True)) for member in members])


# ---- parts of stories ------------------------------------------------------------------------------------------------


def new_id(connection: str, name: str, **more: Any) -> list[Step]:
    """Return the steps in which a dynamic member gets its id."""
    return [
        join(connection, **more),
        fails(ErrorCode.MEMBER_ID_REQUIRED, connection, member_id=Save(name), generation_id=-1, leader="", members=[]),
    ]


def alone(name: str = "a", **more: Any) -> list[Step]:
    """One dynamic member in a Stable group of generation 1."""
    return [
        *new_id(name, name, **more),
        join(name, Ref(name), **more),
        ok(name, member_id=Ref(name), generation_id=1, leader=Ref(name), protocol_name="range"),
        ask(sync(name, Ref(name), 1, assignments=[(Ref(name), b"assigned")]), ok(assignment=b"assigned")),
    ]


def pair(*, a: Mapping[str, Any] | None = None, b: Mapping[str, Any] | None = None) -> list[Step]:
    """Two members, `a` leads, in a Stable group of generation 2."""
    a = a or {}
    b = b or {}
    return [
        *alone("a", **a),
        *new_id("b", "b", **b),
        join("b", Ref("b"), **b),
        Until(heartbeat("a", Ref("a"), 1), ErrorCode.REBALANCE_IN_PROGRESS),
        ask(join("a", Ref("a"), **a), ok(generation_id=2, leader=Ref("a"), members=2)),
        ok("b", generation_id=2, leader=Ref("a"), members=[]),
        sync("b", Ref("b"), 2),
        ask(sync("a", Ref("a"), 2, assignments=[(Ref("a"), b"for a"), (Ref("b"), b"for b")]), ok(assignment=b"for a")),
        ok("b", assignment=b"for b", protocol_type="consumer", protocol_name="range"),
    ]


def static(name: str, *, version: int = 9, **more: Any) -> list[Step]:
    """One static member in a Stable group of generation 1."""
    return [
        join(name, instance_id=name, version=version, **more),
        ok(name, member_id=Save(name), generation_id=1, leader=Save("leader"), skip_assignment=False),
        sync(name, Ref(name), 1, assignments=[(Ref(name), b"assigned")], instance_id=name),
        ok(name, assignment=b"assigned"),
    ]


UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
INCONSISTENT = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
IN_PROGRESS = ErrorCode.REBALANCE_IN_PROGRESS
FENCED = ErrorCode.FENCED_INSTANCE_ID
ILLEGAL = ErrorCode.ILLEGAL_GENERATION
INVALID_GROUP = ErrorCode.INVALID_GROUP_ID

_TOPICS = encode_subscription(Subscription(("t",)))

# ---- the stories -----------------------------------------------------------------------------------------------------

CASES: dict[str, list[Step]] = {
    # JoinGroup: who may
    "a new dynamic member is sent back for its id": [
        *new_id("a", "a"),
        join("a", Ref("a")),
        ok("a", member_id=Ref("a"), generation_id=1, protocol_type="consumer", protocol_name="range", members=1),
    ],
    "an old client is let in without an id": [
        join("a", version=3),
        ok("a", member_id=Save("a"), generation_id=1, protocol_name="range", leader=Ref("a"), members=1),
    ],
    "version 0": [ask(join("a", version=0), ok(member_id=Save("a"), generation_id=1, leader=Ref("a")))],
    "the first error of version 4": [
        join("a", version=4),
        fails(ErrorCode.MEMBER_ID_REQUIRED, "a", member_id=Save("a"), protocol_name="", generation_id=-1),
    ],
    "the first error of version 7": [
        join("a", version=7),
        fails(ErrorCode.MEMBER_ID_REQUIRED, "a", member_id=Save("a"), protocol_name=None, protocol_type=None),
    ],
    "a member id that nobody gave out, no group": [
        ask(join("a", "nobody"), fails(UNKNOWN, member_id="nobody", generation_id=-1)),
    ],
    "a member id that nobody gave out": [*alone(), ask(join("b", "nobody"), fails(UNKNOWN, member_id="nobody"))],
    "a member id in an empty group": [
        *alone(),
        ask(leave("a", (Ref("a"), None)), left((Ref("a"), None, ErrorCode.NONE))),
        ask(join("a", Ref("a")), fails(UNKNOWN, member_id=Ref("a"))),
    ],
    "no group id": [ask(join("a", group_id=""), fails(INVALID_GROUP, member_id=""))],
    "no group id, other errors": [ask(join("a", "x", group_id="", session_ms=1), fails(INVALID_GROUP, member_id="x"))],
    "a session that is too short": [
        ask(join("a", session_ms=99), fails(ErrorCode.INVALID_SESSION_TIMEOUT, member_id="", generation_id=-1)),
    ],
    "a session that is too long": [
        ask(join("a", "x", session_ms=1_800_001), fails(ErrorCode.INVALID_SESSION_TIMEOUT, member_id="x")),
    ],
    "no protocols": [ask(join("a", protocols=()), fails(INCONSISTENT, member_id=""))],
    "no protocol type": [ask(join("a", protocol_type=""), fails(INCONSISTENT, member_id=""))],
    "another protocol type": [*alone(), ask(join("b", protocol_type="connect"), fails(INCONSISTENT, member_id=""))],
    "no protocol in common": [*alone(), ask(join("b", protocols=[("other", b"")]), fails(INCONSISTENT, member_id=""))],
    "a member that changes to another protocol": [
        *alone(),
        ask(join("a", Ref("a"), protocols=[("other", b"")]), fails(INCONSISTENT, member_id=Ref("a"))),
    ],
    "a pending id with an instance id": [
        *new_id("a", "a"),
        ask(join("a", Ref("a"), instance_id="i"), fails(ErrorCode.UNKNOWN_SERVER_ERROR, member_id="")),
    ],
    "an unknown member with an instance id": [
        *alone(),
        ask(join("b", "nobody", instance_id="i"), fails(UNKNOWN, member_id="nobody")),
    ],
    "a full group": [
        *alone("a", rebalance_ms=SHORT_MS),
        *(step for name in "cdef" for step in new_id(name, name, rebalance_ms=SHORT_MS)),
        # Those who wait count, not the member that has not joined again; ids hold no place.
        *(
            step
            for name in "cde"
            for step in (join(name, Ref(name), rebalance_ms=SHORT_MS), Until(heartbeat("x", Ref(name), 1), IN_PROGRESS))
        ),
        ask(join("f", Ref("f")), fails(ErrorCode.GROUP_MAX_SIZE_REACHED, member_id="")),
        ask(join("a", Ref("a")), fails(ErrorCode.GROUP_MAX_SIZE_REACHED, member_id="")),
        ok("c", generation_id=2),
        ok("d", generation_id=2),
        ok("e", generation_id=2),
    ],
    "a full group that is stable": [
        *pair(),
        join("c", version=3),
        Until(heartbeat("a", Ref("a"), 2), IN_PROGRESS),
        join("a", Ref("a")),
        join("b", Ref("b")),
        ok("c", member_id=Save("c"), generation_id=3),
        ok("a", members=3),
        ok("b"),
        ask(join("d"), fails(ErrorCode.GROUP_MAX_SIZE_REACHED, member_id="")),
    ],
    "an instance id of no letters": [
        ask(join("s", instance_id=""), ok(member_id=Save("s"), generation_id=1, leader=Ref("s"))),
        ask(heartbeat("s", Ref("s"), 1, instance_id=""), ok()),
        ask(leave("s", ("", "")), left(("", "", ErrorCode.NONE))),
    ],
    "a rebalance timeout below zero": [
        *new_id("a", "a", rebalance_ms=-1),
        ask(join("a", Ref("a"), rebalance_ms=-1), ok(generation_id=1, members=1)),
    ],
    "a new member with the same protocol twice": [
        *alone("a", rebalance_ms=SHORT_MS),
        join("b", version=3, protocols=[("range", b"1"), ("range", b"2")], rebalance_ms=SHORT_MS),
        Until(heartbeat("a", Ref("a"), 1), IN_PROGRESS),
        join("a", Ref("a"), rebalance_ms=SHORT_MS),
        Differs([fails(INCONSISTENT, "a", member_id=Ref("a"))], [ok("a", generation_id=2, protocol_name="range")]),
    ],
    # Protocol choice
    "the protocol with the most votes": [
        *new_id("a", "a", protocols=[("x", b"1"), ("y", b"2")]),
        ask(join("a", Ref("a"), protocols=[("x", b"1"), ("y", b"2")]), ok(generation_id=1, protocol_name="x")),
        *new_id("b", "b", protocols=[("y", b"3"), ("x", b"4")]),
        *new_id("c", "c", protocols=[("y", b"5"), ("x", b"7")]),
        join("b", Ref("b"), protocols=[("y", b"3"), ("x", b"4")]),
        join("c", Ref("c"), protocols=[("y", b"5"), ("z", b"6"), ("x", b"7")]),
        Until(heartbeat("a", Ref("a"), 1), IN_PROGRESS),
        join("a", Ref("a"), protocols=[("x", b"1"), ("y", b"2")]),
        ok("a", generation_id=2, protocol_name="y", leader=Ref("a"), members=3),
        ok("b", protocol_name="y", members=[]),
        ok("c", protocol_name="y"),
    ],
    **{
        f"a draw between {first} and {second}": [
            *new_id("a", "a", protocols=[(first, b"1"), (second, b"2")]),
            join("a", Ref("a"), protocols=[(first, b"1"), (second, b"2")]),
            ok("a", generation_id=1, protocol_name=first),
            join("b", version=3, protocols=[(second, b"3"), (first, b"4")]),
            Until(heartbeat("a", Ref("a"), 1), IN_PROGRESS),
            join("a", Ref("a"), protocols=[(first, b"1"), (second, b"2")]),
            ok("a", generation_id=2, protocol_name=winner),
            ok("b", protocol_name=winner),
        ]
        for first, second, winner in (
            ("range", "roundrobin", "range"),
            ("roundrobin", "range", "range"),
            ("cooperative-sticky", "range", "range"),
            ("sticky", "range", "sticky"),
            ("p1", "p2", "p1"),
            ("p2", "p1", "p1"),
        )
    },
    # Rejoining
    "a follower that joins again hears the present generation": [
        *pair(),
        ask(join("b", Ref("b")), ok(generation_id=2, leader=Ref("a"), members=[], member_id=Ref("b"))),
        ask(heartbeat("a", Ref("a"), 2), ok()),
    ],
    "a leader that joins again wants to assign again": [
        *pair(),
        join("a", Ref("a")),
        Until(heartbeat("b", Ref("b"), 2), IN_PROGRESS),
        join("b", Ref("b")),
        ok("a", generation_id=3, leader=Ref("a"), members=2),
        ok("b", generation_id=3, members=[]),
    ],
    "a follower with other metadata": [
        *pair(),
        join("b", Ref("b"), protocols=[("range", b"news")]),
        Until(heartbeat("a", Ref("a"), 2), IN_PROGRESS),
        ask(join("a", Ref("a")), ok(generation_id=3, members=2)),
        ok("b", generation_id=3),
    ],
    "a follower with another order of protocols": [
        *pair(a={"protocols": [("range", b"m"), ("other", b"m")]}, b={"protocols": [("range", b"m"), ("other", b"m")]}),
        join("b", Ref("b"), protocols=[("other", b"m"), ("range", b"m")]),
        Until(heartbeat("a", Ref("a"), 2), IN_PROGRESS),
        ask(join("a", Ref("a"), protocols=[("range", b"m"), ("other", b"m")]), ok(generation_id=3, members=2)),
    ],
    "between the phases, the same again": [
        *new_id("a", "a"),
        ask(join("a", Ref("a")), ok(generation_id=1)),
        ask(join("a", Ref("a")), ok(generation_id=1, leader=Ref("a"), members=1)),
    ],
    "between the phases, other metadata": [
        *new_id("a", "a"),
        ask(join("a", Ref("a")), ok(generation_id=1)),
        join("a", Ref("a"), protocols=[("range", b"news")]),
        ok("a", generation_id=2, members=[{"member_id": Ref("a"), "group_instance_id": None, "metadata": b"news"}]),
    ],
    "the request of a member that joined elsewhere counts": [
        *alone("a"),
        *new_id("b", "b"),
        join("b", Ref("b")),
        Until(heartbeat("a", Ref("a"), 1), IN_PROGRESS),
        Drop("b"),
        join("b2", Ref("b")),
        ask(join("a", Ref("a")), ok(generation_id=2, members=2)),
        ok("b2", generation_id=2, member_id=Ref("b")),
    ],
    # Members that vanish
    "a member that has gone while its join was parked is in the generation, and drops out": [
        *alone("a", rebalance_ms=SHORT_MS),
        join("b", version=3, session_ms=SHORT_MS, rebalance_ms=SHORT_MS),
        Until(heartbeat("a", Ref("a"), 1), IN_PROGRESS),
        Drop("b"),
        ask(join("a", Ref("a"), rebalance_ms=SHORT_MS), ok(generation_id=2, members=2)),
        # It does not send heartbeats: its session ends, and with it the leader's wait.
        ask(sync("a", Ref("a"), 2, assignments=[(Ref("a"), b"mine")]), ok(assignment=b"mine")),
        Until(heartbeat("a", Ref("a"), 2), IN_PROGRESS),
        ask(join("a", Ref("a"), rebalance_ms=SHORT_MS), ok(generation_id=3, members=1)),
    ],
    "a member that does not join again is left behind": [
        *pair(a={"rebalance_ms": SHORT_MS}, b={"rebalance_ms": SHORT_MS}),
        ask(join("a", Ref("a"), rebalance_ms=SHORT_MS), ok(generation_id=3, members=1)),
        ask(heartbeat("b", Ref("b"), 2), fails(UNKNOWN)),
    ],
    "a leader that does not join again loses the lead": [
        *pair(a={"rebalance_ms": SHORT_MS}, b={"rebalance_ms": SHORT_MS}),
        join("b", Ref("b"), protocols=[("range", b"news")], rebalance_ms=SHORT_MS),
        ok("b", generation_id=3, leader=Ref("b"), members=1),
    ],
    "a leader that never syncs": [
        *pair(a={"rebalance_ms": SHORT_MS}, b={"rebalance_ms": SHORT_MS}),
        join("a", Ref("a"), rebalance_ms=SHORT_MS),
        Until(heartbeat("b", Ref("b"), 2), IN_PROGRESS),
        join("b", Ref("b"), rebalance_ms=SHORT_MS),
        ok("a", generation_id=3, leader=Ref("a")),
        ok("b", generation_id=3),
        ask(sync("b", Ref("b"), 3), fails(IN_PROGRESS, assignment=b"", protocol_type=None, protocol_name=None)),
        ask(join("b", Ref("b"), rebalance_ms=SHORT_MS), ok(generation_id=4, leader=Ref("b"), members=1)),
        ask(heartbeat("a", Ref("a"), 3), fails(UNKNOWN)),
    ],
    "a follower that never syncs": [
        *pair(a={"rebalance_ms": SHORT_MS}, b={"rebalance_ms": SHORT_MS}),
        join("a", Ref("a"), rebalance_ms=SHORT_MS),
        Until(heartbeat("b", Ref("b"), 2), IN_PROGRESS),
        join("b", Ref("b"), rebalance_ms=SHORT_MS),
        ok("a", generation_id=3),
        ok("b", generation_id=3),
        ask(sync("a", Ref("a"), 3, assignments=[(Ref("a"), b"1"), (Ref("b"), b"2")]), ok(assignment=b"1")),
        Until(heartbeat("b", Ref("b"), 3), UNKNOWN),
        ask(heartbeat("a", Ref("a"), 3), fails(IN_PROGRESS)),
    ],
    "an id that never comes back holds nobody up for longer than its session": [
        *alone("a", rebalance_ms=60_000),
        *new_id("b", "b", session_ms=300),
        ask(join("a", Ref("a"), rebalance_ms=60_000), ok(generation_id=2, members=1)),
        ask(join("b", Ref("b")), fails(UNKNOWN, member_id=Ref("b"))),
    ],
    "a session ends": [
        *alone("a", session_ms=SHORT_MS),
        Until(sync("a", Ref("a"), 1), UNKNOWN),
        ask(heartbeat("a", Ref("a"), 1), fails(UNKNOWN)),
    ],
    # SyncGroup
    "sync without a group": [
        ask(sync("a", "x", 1), fails(UNKNOWN, assignment=b"", protocol_type=None, protocol_name=None)),
    ],
    "sync without a group id": [ask(sync("a", "x", 1, group_id=""), fails(INVALID_GROUP, assignment=b""))],
    "sync of an unknown member": [*alone(), ask(sync("b", "nobody", 1), fails(UNKNOWN))],
    "sync of an old generation": [*alone(), ask(sync("a", Ref("a"), 0), fails(ILLEGAL))],
    "sync of a generation to come": [*alone(), ask(sync("a", Ref("a"), 2), fails(ILLEGAL))],
    "sync with another protocol type": [*alone(), ask(sync("a", Ref("a"), 1, protocol_type="x"), fails(INCONSISTENT))],
    "sync with another protocol": [*alone(), ask(sync("a", Ref("a"), 1, protocol_name="x"), fails(INCONSISTENT))],
    "sync without a protocol": [*alone(), ask(sync("a", Ref("a"), 1, protocol_name=None), fails(INCONSISTENT))],
    "sync without a protocol type, no group": [ask(sync("a", "x", 1, protocol_type=None), fails(INCONSISTENT))],
    "sync without a protocol type, no group id": [
        ask(sync("a", "x", 1, protocol_type=None, group_id=""), fails(INCONSISTENT)),
    ],
    "sync of version 4 needs no protocol": [*alone(), ask(sync("a", Ref("a"), 1, 4), ok(assignment=b"assigned"))],
    "sync of version 0": [*alone(), ask(sync("a", Ref("a"), 1, 0), ok(assignment=b"assigned"))],
    "sync with several errors": [*alone(), ask(sync("a", "nobody", 7, protocol_name="x"), fails(UNKNOWN))],
    "sync of an old generation with another protocol": [
        *alone(),
        ask(sync("a", Ref("a"), 7, protocol_name="x"), fails(ILLEGAL)),
    ],
    "sync in the join phase": [
        *pair(),
        join("c", version=3),
        Until(heartbeat("a", Ref("a"), 2), IN_PROGRESS),
        ask(sync("a", Ref("a"), 2), fails(IN_PROGRESS)),
    ],
    "sync of an empty group": [
        *alone(),
        ask(leave("a", (Ref("a"), None)), left((Ref("a"), None, ErrorCode.NONE))),
        ask(sync("a", Ref("a"), 1), fails(UNKNOWN)),
    ],
    "a second sync of the leader changes nothing": [
        *alone(),
        ask(sync("a", Ref("a"), 1, assignments=[(Ref("a"), b"other")]), ok(assignment=b"assigned")),
    ],
    "a consumer that the leader left out": [
        *alone("a"),
        join("b", version=3),
        Until(heartbeat("a", Ref("a"), 1), IN_PROGRESS),
        ask(join("a", Ref("a")), ok(generation_id=2)),
        ok("b", member_id=Save("b")),
        sync("b", Ref("b"), 2),
        ask(sync("a", Ref("a"), 2, assignments=[(Ref("a"), b"all"), ("nobody", b"lost")]), ok(assignment=b"all")),
        ok("b", assignment=Differs(b"", empty_assignment())),
    ],
    "a member of another type that the leader left out": [
        join("a", version=3, protocol_type="connect", protocols=[("p", b"")]),
        ok("a", member_id=Save("a"), members=[{"member_id": Ref("a"), "group_instance_id": None, "metadata": b""}]),
        ask(sync("a", Ref("a"), 1, protocol_type="connect", protocol_name="p"), ok(assignment=b"")),
    ],
    "an assignment of no bytes": [
        ask(join("a", version=3), ok(member_id=Save("a"))),
        ask(sync("a", Ref("a"), 1, assignments=[(Ref("a"), b"")]), ok(assignment=b"")),
    ],
    "an assignment that does not fit into a record": [
        ask(join("a", version=3, rebalance_ms=1000), ok(member_id=Save("a"))),
        sync("a", Ref("a"), 1, assignments=[(Ref("a"), bytes(2_000_000))]),
        fails(ErrorCode.UNKNOWN_SERVER_ERROR, "a", assignment=b""),
        ask(heartbeat("a", Ref("a"), 1), fails(IN_PROGRESS)),
        ask(join("a", Ref("a"), rebalance_ms=1000), ok(generation_id=2)),
        ask(sync("a", Ref("a"), 2, assignments=[(Ref("a"), b"small")]), ok(assignment=b"small")),
    ],
    "metadata of a megabyte reaches the leader, and does not fit into a record": [
        join("a", version=3, protocols=[("range", bytes(1 << 20))]),
        ok(
            "a",
            member_id=Save("a"),
            members=[{"member_id": Ref("a"), "group_instance_id": None, "metadata": bytes(1 << 20)}],
        ),
        ask(sync("a", Ref("a"), 1, assignments=[(Ref("a"), b"small")]), fails(ErrorCode.UNKNOWN_SERVER_ERROR)),
    ],
    # Heartbeat
    "heartbeat without a group": [ask(heartbeat("a", "x", 1), fails(UNKNOWN))],
    "heartbeat without a group id": [ask(heartbeat("a", "x", 1, group_id=""), fails(INVALID_GROUP))],
    "heartbeat of an unknown member": [*alone(), ask(heartbeat("a", "nobody", 1), fails(UNKNOWN))],
    "heartbeat of another generation": [*alone(), ask(heartbeat("a", Ref("a"), 0), fails(ILLEGAL))],
    "heartbeat of version 0": [*alone(), ask(heartbeat("a", Ref("a"), 1, 0), ok())],
    "heartbeat of an id that has not come back": [*new_id("a", "a"), ask(heartbeat("a", Ref("a"), 0), fails(UNKNOWN))],
    "heartbeat between the phases": [
        *new_id("a", "a"),
        ask(join("a", Ref("a")), ok(generation_id=1)),
        ask(heartbeat("a", Ref("a"), 1), ok()),
    ],
    # LeaveGroup
    "leave without a group": [ask(leave("a", ("x", None), ("", "i")), left(("x", None, UNKNOWN), ("", "i", UNKNOWN)))],
    "leave without a group, old": [ask(leave("a", ("x", None), version=2), fails(UNKNOWN))],
    "leave without a group id": [ask(leave("a", ("x", None), group_id=""), fails(INVALID_GROUP, members=[]))],
    "leave of version 0": [
        *alone(),
        ask(leave("a", (Ref("a"), None), version=0), ok()),
        ask(leave("a", (Ref("a"), None), version=1), fails(UNKNOWN)),
    ],
    "nobody leaves": [*alone(), ask(leave("a"), left()), ask(heartbeat("a", Ref("a"), 1), ok())],
    "leave of many": [
        *pair(),
        ask(
            leave("a", (Ref("a"), None), ("nobody", None), (Ref("b"), "i"), (Ref("a"), None), ("", None)),
            left(
                (Ref("a"), None, ErrorCode.NONE),
                ("nobody", None, UNKNOWN),
                (Ref("b"), "i", UNKNOWN),
                (Ref("a"), None, UNKNOWN),
                ("", None, UNKNOWN),
            ),
        ),
        ask(heartbeat("b", Ref("b"), 2), fails(IN_PROGRESS)),
        ask(join("b", Ref("b")), ok(generation_id=3, leader=Ref("b"), members=1)),
    ],
    "an id that has not come back leaves": [
        *new_id("a", "a"),
        ask(leave("a", (Ref("a"), None)), left((Ref("a"), None, ErrorCode.NONE))),
        ask(join("a", Ref("a")), fails(UNKNOWN)),
    ],
    "a member leaves while its join is parked": [
        *pair(),
        join("a", Ref("a")),
        Until(heartbeat("b", Ref("b"), 2), IN_PROGRESS),
        ask(leave("c", (Ref("a"), None)), left((Ref("a"), None, ErrorCode.NONE))),
        fails(UNKNOWN, "a", member_id=""),
        ask(join("b", Ref("b")), ok(generation_id=3, members=1)),
    ],
    "the last one leaves, and the next starts with a higher generation": [
        *alone(),
        ask(leave("a", (Ref("a"), None)), left((Ref("a"), None, ErrorCode.NONE))),
        join("b", version=3, protocol_type="connect", protocols=[("p", b"")]),
        ok("b", generation_id=3, protocol_name="p"),
    ],
    # Static members (KIP-345)
    "a static member needs no second join": [
        *static("s"),
        ask(heartbeat("s", Ref("s"), 1, instance_id="s"), ok()),
        ask(heartbeat("s", Ref("s"), 1), ok()),
    ],
    "a static member comes back as the leader of a stable group": [
        *static("s"),
        join("s2", instance_id="s"),
        ok("s2", member_id=Save("s2"), generation_id=1, leader=Ref("s2"), skip_assignment=True, members=1),
        ask(sync("s2", Ref("s2"), 1, instance_id="s"), ok(assignment=b"assigned")),
        ask(heartbeat("s", Ref("s"), 1, instance_id="s"), fails(FENCED)),
        ask(heartbeat("s", Ref("s"), 1), fails(UNKNOWN)),
        ask(sync("s", Ref("s"), 1, instance_id="s"), fails(FENCED)),
        ask(join("s", Ref("s"), instance_id="s"), fails(FENCED, member_id=Ref("s"))),
        ask(leave("s", (Ref("s"), "s")), left((Ref("s"), "s", FENCED))),
    ],
    "a static member comes back, before it could be told to skip the assignment": [
        *static("s", version=8),
        join("s2", instance_id="s", version=8),
        ok("s2", member_id=Save("s2"), generation_id=1, leader=Ref("s"), members=[]),
        ask(sync("s2", Ref("s2"), 1, instance_id="s"), ok(assignment=b"assigned")),
    ],
    "a static member comes back with other metadata for the same protocol": [
        *static("s"),
        join("s2", instance_id="s", protocols=[("range", b"news")]),
        ok(
            "s2",
            member_id=Save("s2"),
            generation_id=1,
            skip_assignment=True,
            members=[{"member_id": Ref("s2"), "group_instance_id": "s", "metadata": b"news"}],
        ),
    ],
    "a static member comes back and changes the chosen protocol": [
        *static("s", protocols=[("range", b"1"), ("other", b"2")]),
        join("s2", instance_id="s", protocols=[("other", b"2"), ("range", b"1")]),
        ok("s2", member_id=Save("s2"), generation_id=2, protocol_name="other", leader=Ref("s2"), skip_assignment=False),
    ],
    "a static member comes back between the phases": [
        ask(join("s", instance_id="s"), ok(member_id=Save("s"), generation_id=1)),
        join("s2", instance_id="s"),
        ok("s2", member_id=Save("s2"), generation_id=2, leader=Ref("s2"), skip_assignment=False, members=1),
    ],
    "a static member comes back in the join phase": [
        *static("s"),
        *new_id("d", "d"),
        join("d", Ref("d")),
        Until(heartbeat("s", Ref("s"), 1, instance_id="s"), IN_PROGRESS),
        ask(join("s2", instance_id="s"), ok(member_id=Save("s2"), generation_id=2, leader=Ref("s2"), members=2)),
        ok("d", generation_id=2, leader=Ref("s2")),
    ],
    "a static member whose join is parked is fenced by its successor": [
        *static("s"),
        *new_id("d", "d"),
        join("s", Ref("s"), instance_id="s"),
        Until(heartbeat("x", Ref("s"), 1, instance_id="s"), IN_PROGRESS),
        join("s2", instance_id="s"),
        fails(FENCED, "s", member_id=Ref("s"), leader="", generation_id=-1),
        ask(join("d", Ref("d")), ok(generation_id=2)),
        ok("s2", generation_id=2, members=2),
    ],
    "a static member whose sync is parked is fenced by its successor": [
        *alone("a"),
        join("s", instance_id="s"),
        Until(heartbeat("a", Ref("a"), 1), IN_PROGRESS),
        ask(join("a", Ref("a")), ok(generation_id=2)),
        ok("s", member_id=Save("s"), generation_id=2),
        sync("s", Ref("s"), 2, instance_id="s"),
        join("s2", instance_id="s"),
        fails(FENCED, "s", assignment=b""),
        ask(heartbeat("a", Ref("a"), 2), fails(IN_PROGRESS)),
    ],
    "an instance id that nobody has": [
        *alone(),
        ask(heartbeat("a", Ref("a"), 1, instance_id="i"), fails(UNKNOWN)),
        ask(sync("a", Ref("a"), 1, instance_id="i"), fails(UNKNOWN)),
        ask(join("a", Ref("a"), instance_id="i"), fails(UNKNOWN, member_id=Ref("a"))),
    ],
    "a static member is removed by its instance id": [
        *static("s"),
        ask(leave("x", ("", "s")), left(("", "s", ErrorCode.NONE))),
        ask(heartbeat("s", Ref("s"), 1, instance_id="s"), fails(UNKNOWN)),
        ask(leave("x", ("", "s")), left(("", "s", UNKNOWN))),
    ],
    "a static member stays for its session": [
        *static("s", session_ms=SHORT_MS, rebalance_ms=60_000),
        Until(sync("s", Ref("s"), 1, instance_id="s"), UNKNOWN),
    ],
    "static members that do not join again stay in the group": [
        *static("s", rebalance_ms=SHORT_MS),
        join("d", version=3, rebalance_ms=SHORT_MS),
        ok("d", generation_id=2, member_id=Save("d"), leader=Ref("d"), members=2),
        ask(heartbeat("s", Ref("s"), 2, instance_id="s"), ok()),
    ],
    # Consumers' own metadata
    "metadata that cannot be read is none of the broker's business": [
        ask(join("a", version=3, protocols=[("range", b"\x7f\xff\xff\xff")]), ok(member_id=Save("a"))),
        ask(sync("a", Ref("a"), 1, assignments=[(Ref("a"), b"\xff")]), ok(assignment=b"\xff")),
    ],
    "metadata of a consumer": [ask(join("a", version=3, protocols=[("range", _TOPICS)]), ok(members=1))],
}

# ---- running them ----------------------------------------------------------------------------------------------------


class CaseRun:
    """One story against one broker; `is_kafka` chooses what `Differs` expects."""

    def __init__(self, address: str, *, is_kafka: bool) -> None:
        self.address = address
        self.is_kafka = is_kafka
        self.group_id = f"g-{uuid.uuid4()}"
        self.saved: dict[str, Any] = {}
        self.connections: dict[str, WireClient] = {}
        self.last: dict[str, tuple[int, int]] = {}

    async def run(self, steps: Sequence[Step]) -> None:
        async with AsyncExitStack() as stack:
            for number, step in enumerate(steps):
                try:
                    await self._step(step, stack)
                except (AssertionError, TimeoutError, EOFError, ConnectionError) as error:
                    error.add_note(f"step {number}: {step}"[:600])
                    raise

    async def _step(self, step: Step, stack: AsyncExitStack) -> None:
        if isinstance(step, Send):
            await self._send(step, stack)
        elif isinstance(step, Ask):
            await self._send(step.send, stack)
            self._check(step.answer, await self._receive(step.send.connection))
        elif isinstance(step, Expect):
            self._check(step, await self._receive(step.connection))
        elif isinstance(step, Until):
            await self._wait_until(step, stack)
        elif isinstance(step, Differs):
            for each in self._pick(step):
                await self._step(each, stack)
        else:
            client = self.connections.pop(step.connection)
            client.writer.close()
            await client.writer.wait_closed()

    async def _wait_until(self, step: Until, stack: AsyncExitStack) -> None:
        async with asyncio.timeout(60):
            while True:
                await self._send(step.send, stack)
                if ErrorCode(int((await self._receive(step.send.connection)).error_code)) is step.error:
                    break
                await asyncio.sleep(0.01)

    async def _send(self, step: Send, stack: AsyncExitStack) -> None:
        if step.connection not in self.connections:
            client = await stack.enter_async_context(WireClient(self.address))
            self.connections[step.connection] = client
        fields = {"group_id": self.group_id, **self._resolve(dict(step.fields))}
        self.connections[step.connection].send(step.key, step.version, fields)
        self.last[step.connection] = step.key, step.version

    async def _receive(self, connection: str) -> Any:
        return await self.connections[connection].receive(*self.last[connection])

    def _resolve(self, value: Any) -> Any:
        if isinstance(value, Ref):
            return self.saved[value.name]
        if isinstance(value, list):
            return [self._resolve(element) for element in value]
        if isinstance(value, dict):
            return {name: self._resolve(element) for name, element in value.items()}
        return value

    def _check(self, step: Expect, response: Any) -> None:
        assert ErrorCode(int(response.error_code)) is self._pick(step.error), response
        for name, expected in step.fields.items():
            if not hasattr(response, name):
                continue  # this version has no such field
            self._compare(name, self._pick(expected), getattr(response, name))

    def _compare(self, name: str, expected: Any, found: Any) -> None:
        if isinstance(expected, Save):
            self.saved[expected.name] = found
        elif name == "members" and isinstance(expected, int):
            assert len(found) == expected, f"{name}: expected {expected}, got {found!r}"
        elif name == "members":
            assert len(found) == len(expected), f"{name}: expected {expected}, got {found!r}"
            for member, fields in zip(found, expected, strict=True):
                for field, value in fields.items():
                    if hasattr(member, field):
                        self._compare(field, value, getattr(member, field))
        elif isinstance(expected, ErrorCode):
            assert ErrorCode(int(found)) is expected, f"{name}: expected {expected!r}, got {found!r}"
        else:
            expected = self._resolve(expected)
            assert found == expected, f"{name}: expected {expected!r}, got {found!r}"[:500]

    def _pick(self, expected: Any) -> Any:
        if isinstance(expected, Differs):
            return expected.kafka if self.is_kafka else expected.ours
        return expected


async def wait_for_coordinator(address: str) -> None:
    """Wait until the broker coordinates groups: the first request creates its topic."""
    async with WireClient(address) as client, asyncio.timeout(60):
        while True:
            answer = await client.call(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["g"]})
            if int(answer.coordinators[0].error_code) == 0:
                break
            await asyncio.sleep(0.05)
        fields = {"group_id": "g", "generation_id": 0, "member_id": "x"}
        while int((await client.call(HEARTBEAT, 3, fields)).error_code) != ErrorCode.UNKNOWN_MEMBER_ID:
            await asyncio.sleep(0.05)


async def _main(address: str, is_kafka: bool, words: Sequence[str]) -> None:
    await wait_for_coordinator(address)
    failed = 0
    for name, steps in CASES.items():
        if words and not any(word in name for word in words):
            continue
        try:
            await CaseRun(address, is_kafka=is_kafka).run(steps)
        except (AssertionError, TimeoutError, EOFError, ConnectionError) as error:
            failed += 1
            print(f"{name}: {error!r}"[:600], *getattr(error, "__notes__", ()), sep="\n    ")
    print(f"{len(CASES)} stories, {failed} failed")


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2] == "kafka", sys.argv[3:]))
