"""ConsumerGroupHeartbeat and ConsumerGroupDescribe on the wire: joining, converging, leaving, and every error.

The flows and their answers are those of Kafka 4.3.1 for the same requests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.protocol.errors import ErrorCode
from tests.broker.groups.consumer.consumer_wire import (
    DELETE_GROUPS,
    DESCRIBE,
    HEARTBEAT,
    PROPERTIES,
    T1,
    T2,
    A,
    B,
    C,
    Members,
    commit,
    configure,
    fetch,
    prepare,
)
from tests.broker.wire import CREATE_PARTITIONS, DELETE_TOPICS, WireClient
from tests.protocol.wire.field_names import unknown_fields


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker whose groups may have short sessions and at most three members."""
    async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path, properties=PROPERTIES)) as running:
        yield running


@pytest.fixture
async def members(broker: Broker, wire: WireClient) -> Members:
    """Prospective members, and two topics."""
    await prepare(wire)
    return Members(wire, broker)


async def test_two_members_share(members: Members) -> None:
    """The second waits until the first has revoked its half and reported that; answers contain only changes."""
    assert await members.beat("g", A, 0, names=["t1"]) == (2, T1)
    assert await members.beat("g", A, 2) == (2, None)
    assert await members.beat("g", A, 2, names=["t1"], owned=T1, rebalance_timeout_ms=5_000) == (2, T1)
    assert await members.state("g") == ("Stable", 2, 2)
    assert await members.beat("g", B, 0, names=["t1"]) == (3, {})
    assert await members.state("g") == ("Reconciling", 3, 3)
    assert await members.beat("g", A, 2) == (2, {"t1": [0, 1]})
    assert await members.beat("g", A, 2, owned=T1) == (2, None)
    assert await members.beat("g", B, 3) == (3, None)
    assert await members.beat("g", A, 2, owned={"t1": [0, 1]}) == (3, None)
    assert await members.beat("g", B, 3) == (3, {"t1": [2, 3]})
    assert await members.state("g") == ("Stable", 3, 3)
    assert await members.beat("g", A, -1) == (-1, None)
    assert await members.state("g") == ("Assigning", 4, 3)
    assert await members.beat("g", B, 3) == (4, T1)


async def test_a_revoking_member_is_described_with_its_partition(members: Members) -> None:
    """A revoking member is still responsible for the partition; the target is its future assignment."""
    await members.beat("g", A, 0, names=["t1"], rack_id="rack", server_assignor="range")
    await members.beat("g", B, 0, names=["t1", "t2"], instance_id="instance")
    await members.beat("g", A, 2)
    group = await members.describe("g")
    assert (group.error_code, group.group_state, group.group_epoch) == (ErrorCode.NONE, "Reconciling", 3)
    assert (group.assignment_epoch, group.assignor_name, group.authorized_operations) == (3, "range", -(1 << 31))
    first, second = sorted(group.members, key=lambda member: str(member.member_id))
    assert (first.member_id, first.member_epoch, first.client_id, first.client_host) == (A, 2, "wire", "/127.0.0.1")
    assert (first.rack_id, first.instance_id, first.member_type) == ("rack", None, 1)
    assert (first.subscribed_topic_names, first.subscribed_topic_regex) == (("t1",), "")
    assert members.named(first.assignment) == T1
    assert members.named(first.target_assignment) == {"t1": [2, 3]}
    assert (second.instance_id, second.subscribed_topic_names) == ("instance", ("t1", "t2"))
    assert members.named(second.assignment) == T2
    assert members.named(second.target_assignment) == {"t1": [0, 1], "t2": [0, 1]}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"member": ""}, ErrorCode.INVALID_REQUEST),
        ({"group": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"owned": {"t1": [0]}}, ErrorCode.INVALID_REQUEST),
        ({"names": None}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"epoch": 3}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"names": None, "subscribed_topic_regex": "(a"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"member": "m" * 40_000}, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_refused_requests(members: Members, fields: dict[str, Any], code: ErrorCode) -> None:
    """An invalid request changes nothing: no group exists afterwards."""
    asked = {"group": "g", "member": A, "epoch": 0, "names": ["t1"], **fields}
    assert await members.error(asked.pop("group"), asked.pop("member"), asked.pop("epoch"), **asked) is code
    assert (await members.describe("g")).error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_version_0_gives_out_member_ids(members: Members) -> None:
    """Only in version 0 may a member join without an id: it gets one of 22 characters."""
    answer = await members.heartbeat("g", "", 0, names=["t1"], version=0)
    assert (answer.error_code, answer.member_epoch, len(answer.member_id)) == (ErrorCode.NONE, 2, 22)
    assert await members.beat("g", answer.member_id, 2, version=0) == (2, None)


async def test_member_epochs(members: Members) -> None:
    """The previous epoch is accepted if the member owns only partitions assigned then; all others are fenced."""
    await members.beat("g", A, 0, names=["t1"])
    assert await members.error("g", B, 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert await members.error("g", A, 3) is ErrorCode.FENCED_MEMBER_EPOCH
    assert await members.error("g", A, 1) is ErrorCode.FENCED_MEMBER_EPOCH
    assert await members.beat("g", A, 2, names=["t1", "t2"]) == (3, {**T1, **T2})
    assert await members.error("g", A, 2) is ErrorCode.FENCED_MEMBER_EPOCH
    assert await members.beat("g", A, 2, owned=T1) == (3, None)
    await members.beat("g", B, 0, names=["t1", "t2"])
    _, kept = await members.beat("g", A, 3)
    assert kept is not None
    assert await members.error("g", A, 2, owned=T1) is ErrorCode.FENCED_MEMBER_EPOCH
    assert await members.beat("g", A, 0, names=["t1", "t2"]) == (4, kept)


async def test_a_member_beyond_the_maximum_size_is_refused(members: Members) -> None:
    """The fourth member is refused; the present ones are not."""
    for member in (A, B, C):
        await members.beat("g", member, 0, names=["t1"])
    assert await members.error("g", "d" * 22, 0, names=["t1"]) is ErrorCode.GROUP_MAX_SIZE_REACHED
    await members.beat("g", A, 0, names=["t1"])


async def test_static_members(members: Members) -> None:
    """One that leaves temporarily keeps its partitions, and a member with its instance id gets them."""
    assert await members.beat("g", A, 0, names=["t2"], instance_id="i") == (2, T2)
    join: dict[str, Any] = {"names": ["t2"], "instance_id": "i"}
    assert await members.error("g", B, 0, **join) is ErrorCode.UNRELEASED_INSTANCE_ID
    assert await members.error("g", B, 2, instance_id="i") is ErrorCode.FENCED_INSTANCE_ID
    assert await members.error("g", A, 2, instance_id="other") is ErrorCode.UNKNOWN_MEMBER_ID
    assert await members.error("g", B, -2, instance_id="i") is ErrorCode.FENCED_INSTANCE_ID
    assert await members.beat("g", A, -2, instance_id="i") == (-2, None)
    assert await members.state("g") == ("Reconciling", 2, 2)
    assert await members.error("g", A, 2, instance_id="i") is ErrorCode.FENCED_MEMBER_EPOCH
    assert await members.beat("g", B, 0, **join) == (2, T2)
    assert await members.state("g") == ("Stable", 2, 2)
    assert await members.beat("g", B, -1, instance_id="i") == (-1, None)
    assert await members.state("g") == ("Empty", 3, 2)


async def test_topics_change(members: Members) -> None:
    """Created, grown and deleted topics increase the group epoch at the next heartbeat."""
    assert await members.beat("g", A, 0, names=["new", "t2"]) == (2, T2)
    await members.wire.create("new", 2)
    assert await members.beat("g", A, 2) == (3, {"new": [0, 1], **T2})
    topic = {"name": "new", "count": 3, "assignments": None}
    await members.wire.call(CREATE_PARTITIONS, 3, {"topics": [topic], "timeout_ms": 1000, "validate_only": False})
    assert await members.beat("g", A, 3) == (4, {"new": [0, 1, 2], **T2})
    await members.wire.call(DELETE_TOPICS, 5, {"topic_names": ["new"], "timeout_ms": 1000})
    assert await members.beat("g", A, 4) == (4, T2)
    assert await members.beat("g", A, 4, owned=T2) == (5, None)
    assert await members.state("g") == ("Stable", 5, 5)


async def test_regular_expressions(members: Members) -> None:
    """Regular expressions are resolved after the heartbeat; a later topic is found, too."""
    assert await members.beat("g", A, 0, subscribed_topic_regex="t[12]") == (1, {})
    await members.wait_for_epoch("g", 2)
    assert await members.beat("g", A, 1) == (2, {**T1, **T2})
    epoch, _ = await members.beat("g", B, 0, subscribed_topic_regex="t[12]")
    assert epoch == 3
    assert await members.beat("g", B, 3, subscribed_topic_regex="", names=[]) == (4, None)
    assert await members.beat("g", A, 2) == (4, None)
    await members.wire.create("t12", 1)
    await members.wire.create("t3", 1)
    assert await members.beat("g", A, 4, subscribed_topic_regex="t[0-9]") == (4, {})
    await members.wait_for_epoch("g", 5)
    assert await members.beat("g", A, 4, owned={}) == (5, {"t1": T1["t1"], "t2": T2["t2"], "t3": [0]})
    consumer = members.broker.services.groups().groups["g"].consumer
    assert consumer is not None
    assert {regex: found.topics for regex, found in consumer.resolved.items()} == {"t[0-9]": {"t1", "t2", "t3"}}
    assert consumer.is_subscribed("t3")
    assert not consumer.is_subscribed("t12")


async def test_commits_and_fetches_check_the_epoch(members: Members) -> None:
    """The member's epoch, or an older one for partitions assigned since then (KIP-1251)."""
    await members.beat("g", A, 0, names=["t1"])
    await members.beat("g", A, 2, names=["t1", "t2"])
    assert await commit(members, "g", A, 3) is ErrorCode.NONE
    assert await commit(members, "g", A, 2) is ErrorCode.NONE
    assert await commit(members, "g", A, 2, topic="t2") is ErrorCode.STALE_MEMBER_EPOCH
    assert await commit(members, "g", A, 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert await commit(members, "g", A, 4) is ErrorCode.STALE_MEMBER_EPOCH
    assert await commit(members, "g", B, 3) is ErrorCode.UNKNOWN_MEMBER_ID
    assert await commit(members, "g", "", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert await commit(members, "g", A, 3, version=8) is ErrorCode.UNSUPPORTED_VERSION
    assert await fetch(members, "g", A, 3) is ErrorCode.NONE
    assert await fetch(members, "g", A, 2) is ErrorCode.STALE_MEMBER_EPOCH
    assert await fetch(members, "g", B, 3) is ErrorCode.UNKNOWN_MEMBER_ID
    assert await fetch(members, "g", None, -1) is ErrorCode.NONE
    await members.beat("g", A, -1)
    assert await commit(members, "g", "", -1) is ErrorCode.NONE


async def test_session_timeout(members: Members) -> None:
    """A member that is silent for longer than its group's timeout is removed."""
    configure(members.broker, "g", "consumer.session.timeout.ms", "100")
    configure(members.broker, "g", "consumer.heartbeat.interval.ms", "50")
    answer = await members.heartbeat("g", A, 0, names=["t1"])
    assert answer.heartbeat_interval.total_seconds() == 0.05
    await members.wait_until_gone("g", A)
    assert await members.error("g", A, 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert await members.state("g") == ("Empty", 3, 2)


async def test_rebalance_timeout(members: Members) -> None:
    """A member that sends heartbeats but does not revoke within its rebalance timeout is removed."""
    await members.beat("g", A, 0, names=["t1"], rebalance_timeout_ms=50)
    await members.beat("g", B, 0, names=["t1"])
    assert await members.beat("g", A, 2) == (2, {"t1": [0, 1]})
    await members.wait_until_gone("g", A)
    assert await members.beat("g", B, 3) == (4, T1)


async def test_group_configs_are_held_within_the_brokers(members: Members) -> None:
    """A group's own interval is clamped to the broker's limits."""
    configure(members.broker, "g", "consumer.heartbeat.interval.ms", "1000000")
    answer = await members.heartbeat("g", A, 0, names=["t1"])
    assert answer.heartbeat_interval.total_seconds() == 15


async def test_assignment_interval(tmp_path: Path) -> None:
    """A member that joins right after an assignment waits for the next one (KIP-1263)."""
    properties = {**PROPERTIES, "group.consumer.assignment.interval.ms": "15000"}
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path, properties=properties)
    async with Broker(config) as broker, WireClient(broker.bootstrap_servers) as wire:
        await prepare(wire)
        members = Members(wire, broker)
        assert await members.beat("g", A, 0, names=["t1"]) == (2, T1)
        assert await members.beat("g", B, 0, names=["t1"]) == (2, {})
        assert await members.state("g") == ("Assigning", 3, 2)
        configure(broker, "g", "consumer.assignment.interval.ms", "0")
        assert await members.beat("g", B, 2) == (3, None)
        assert await members.beat("g", A, 2) == (2, {"t1": [0, 1]})


async def test_groups_survive_a_restart(tmp_path: Path) -> None:
    """Members, epochs, assignments and regular expressions are restored; a revocation in progress continues."""
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path, properties=PROPERTIES)
    async with Broker(config) as broker, WireClient(broker.bootstrap_servers) as wire:
        await prepare(wire)
        members = Members(wire, broker)
        await members.beat("g", A, 0, names=["t1"], instance_id="i")
        await members.beat("g", B, 0, names=["t1"], subscribed_topic_regex="t2")
        await members.wait_for_epoch("g", 4)
        await members.beat("g", A, 2, instance_id="i")
        await members.beat("left", A, 0, names=["t1"])
        await members.beat("left", A, -1)
        before = [await members.describe("g"), await members.describe("left")]
    async with Broker(config) as broker, WireClient(broker.bootstrap_servers) as wire:
        members = Members(wire, broker)
        await members.wait_until_loaded("g")
        await members.wait_until_loaded("left")
        assert [await members.describe("g"), await members.describe("left")] == before
        (static,) = (member for member in before[0].members if member.member_id == A)
        kept = members.named(static.target_assignment)
        assert await members.beat("g", A, 2, owned=kept, instance_id="i") == (before[0].assignment_epoch, None)
        group = await wire.call(DELETE_GROUPS, 2, {"groups_names": ["left"]})
        assert group.results[0].error_code == ErrorCode.NONE
        assert (await members.describe("left")).error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_handlers_name_no_unknown_fields(members: Members) -> None:
    """The handlers' fields all exist in the protocol."""
    await members.beat("g", A, 0, names=["t1"])
    consumer = members.broker.services.groups().consumer
    assert unknown_fields(DESCRIBE, "response", {"groups": [consumer.describe("g")]}) == []
    assignment = {"topic_partitions": [{"topic_id": None, "partitions": []}]}
    fields = {"member_id": "", "member_epoch": 0, "heartbeat_interval_ms": 0, "assignment": assignment}
    assert unknown_fields(HEARTBEAT, "response", {**fields, "error_code": 0, "error_message": ""}) == []
