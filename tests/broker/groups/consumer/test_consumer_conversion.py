"""Groups that convert between the classic and the consumer protocol, empty or with members.

The flows and their answers are those of Kafka 4.3.1 for the same requests.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.protocol.errors import ErrorCode
from diamant.protocol.internal_topics.consumer_protocol import (
    Subscription,
    encode_assignment,
    parse_assignment,
)
from diamant.protocol.internal_topics.group_records import ConsumerGroupMetadataKey, parse_key
from tests.broker.groups.classic.classic_cases import Send, heartbeat, join, leave, sync
from tests.broker.groups.consumer.consumer_wire import PROPERTIES, T1, T2, A, B, C, Members, prepare
from tests.broker.stored import records_of
from tests.broker.wire import WireClient
from tests.protocol.internal_topics.subscriptions import encode_subscription

DESCRIBE_GROUPS = 15

MOST_THREADS = 32
"""Of a loop's executor, whatever the machine."""


class ClassicMembers(Members):
    """Sends requests of classic members, too."""

    async def ask(self, group: str, send: Send) -> Any:
        """Send a request of the stories of classic groups."""
        return await self.wire.call(send.key, send.version, {"group_id": group, **send.fields})

    async def join(
        self,
        group: str,
        member: str,
        *,
        names: Sequence[str] = ("t1",),
        owned: Mapping[str, tuple[int, ...]] | None = None,
        protocols: Sequence[str] = ("range", "cooperative-sticky"),
        metadata: bytes | None = None,
        version: int = 5,
        **more: Any,
    ) -> Any:
        if metadata is None:
            metadata = encode_subscription(Subscription(tuple(names), None, owned or {}))
        offered = [(name, metadata) for name in protocols]
        return await self.ask(group, join("", member, version, protocols=offered, rebalance_ms=5_000, **more))

    async def join_twice(self, group: str, **fields: Any) -> Any:
        """Join a dynamic member, the second time with its assigned id."""
        first = await self.join(group, "", **fields)
        assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return await self.join(group, first.member_id, **fields)

    async def sync(self, group: str, member: str, generation: int, **more: Any) -> Any:
        return await self.ask(group, sync("", member, generation, **more))

    async def synced(self, group: str, member: str, generation: int, **fields: Any) -> dict[str, list[int]]:
        """Return the assignment of a SyncGroup answer."""
        answer = await self.sync(group, member, generation, **fields)
        assert answer.error_code == ErrorCode.NONE
        return {
            topic: sorted(partitions) for topic, partitions in parse_assignment(answer.assignment).partitions.items()
        }

    async def classic_beat(self, group: str, member: str, generation: int, **more: Any) -> ErrorCode:
        return ErrorCode(int((await self.ask(group, heartbeat("", member, generation, **more))).error_code))

    async def leave(self, group: str, *member_ids: str) -> list[ErrorCode]:
        answer = await self.ask(group, leave("", *((member_id, None) for member_id in member_ids)))
        assert answer.error_code == ErrorCode.NONE
        return [ErrorCode(int(member.error_code)) for member in answer.members]

    async def classic_state(self, group: str) -> str:
        answer = await self.wire.call(DESCRIBE_GROUPS, 5, {"groups": [group], "include_authorized_operations": False})
        return str(answer.groups[0].group_state)

    async def classic_group(self, group: str, assignment: bytes | None = None) -> str:
        """Create a Stable classic group of one member, by default with t1; return the member's id."""
        joined = await self.join_twice(group)
        assignment = encode_assignment(T1) if assignment is None else assignment
        await self.sync(group, joined.member_id, joined.generation_id, assignments=[(joined.member_id, assignment)])
        return str(joined.member_id)


@pytest.fixture
async def members(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[ClassicMembers]:
    """Members of a broker with the test's migration policy; the default is bidirectional."""
    policy = getattr(request, "param", "bidirectional")
    properties = {**PROPERTIES, "group.consumer.migration.policy": policy}
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path, properties=properties)
    async with Broker(config) as broker, WireClient(broker.bootstrap_servers) as wire:
        await prepare(wire)
        yield ClassicMembers(wire, broker)


@pytest.mark.parametrize("members", ["bidirectional", "disabled"], indirect=True)
async def test_empty_groups_convert_whatever_the_policy(members: ClassicMembers) -> None:
    """An empty group converts in both directions, as soon as the last member has left."""
    member = await members.classic_group("g")
    assert await members.leave("g", member) == [ErrorCode.NONE]
    assert await members.beat("g", A, 0, names=["t1"]) == (2, T1)
    assert await members.classic_state("g") == "Dead"
    await members.beat("g", A, -1)
    assert (await members.join_twice("g")).error_code == ErrorCode.NONE
    assert (await members.describe("g")).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert await members.classic_state("g") == "CompletingRebalance"


async def test_a_resolution_does_not_outlive_its_group(members: ClassicMembers) -> None:
    """The regular expressions are resolved after the conversion to classic, without effect on that group."""
    may_end = threading.Event()
    for _ in range(MOST_THREADS):  # what else is for a thread waits
        asyncio.get_running_loop().run_in_executor(None, may_end.wait, 20)
    await members.beat("g", A, 0, subscribed_topic_regex="t[12]")
    groups = members.broker.services.groups()
    group = groups.group("g")
    assert group is not None
    assert group.consumer is not None
    resolving = groups.consumer.runner.background._progress[group.consumer].resolving
    assert resolving is not None
    await members.beat("g", A, -1)
    joined = await members.join_twice("g")
    may_end.set()
    await asyncio.gather(resolving, return_exceptions=True)
    assert groups.group_or_new("g").consumer is None
    assert await members.classic_beat("g", joined.member_id, joined.generation_id) is ErrorCode.NONE


async def test_upgrade_and_downgrade_with_members(members: ClassicMembers) -> None:
    """A consumer joins a classic group and gets half the partitions once the classic member has revoked them. When it leaves,
    the remaining members form a classic group, and rebalance.
    """
    member = await members.classic_group("g")
    assert await members.beat("g", A, 0, names=["t1"]) == (2, {})
    assert await members.state("g") == ("Reconciling", 2, 2)
    described = await members.describe("g")
    assert {one.member_id: one.member_type for one in described.members} == {member: 0, A: 1}
    assert await members.classic_beat("g", member, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert (await members.sync("g", member, 1)).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    joined = await members.join("g", member, owned={"t1": (0, 1, 2, 3)})
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (ErrorCode.NONE, 1, "range")
    kept = await members.synced("g", member, 1)
    assert len(kept["t1"]) == 2
    assert await members.classic_beat("g", member, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    joined = await members.join("g", member, owned={"t1": tuple(kept["t1"])})
    assert joined.generation_id == 2
    assert await members.synced("g", member, 2) == kept
    assert await members.beat("g", A, 2) == (2, {"t1": [one for one in range(4) if one not in kept["t1"]]})
    assert await members.state("g") == ("Stable", 2, 2)
    assert await members.classic_beat("g", member, 2) is ErrorCode.NONE
    assert await members.beat("g", A, -1) == (-1, None)
    assert (await members.describe("g")).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert await members.classic_state("g") == "PreparingRebalance"
    assert await members.classic_beat("g", member, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    joined = await members.join("g", member)
    assert (joined.generation_id, joined.leader) == (3, member)


async def test_classic_member_joins_a_consumer_group(members: ClassicMembers) -> None:
    """The classic member gets the free partitions at once, and a heartbeat tells it to rejoin for the rest."""
    await members.beat("g", A, 0, names=["t1"])
    joined = await members.join_twice("g")
    member, generation = joined.member_id, joined.generation_id
    assert (joined.error_code, generation, len(member)) == (ErrorCode.NONE, 3, 22)
    assert (joined.leader, joined.members, joined.protocol_name) == ("", (), "range")
    assert await members.synced("g", member, generation) == {}
    assert await members.classic_beat("g", member, generation) is ErrorCode.NONE
    _, kept = await members.beat("g", A, 2)
    assert kept is not None
    await members.beat("g", A, 2, owned=kept)
    assert await members.classic_beat("g", member, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    joined = await members.join("g", member)
    rest = await members.synced("g", member, joined.generation_id)
    assert sorted(rest["t1"] + kept["t1"]) == T1["t1"]
    assert await members.leave("g", member, "nobody", A) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
    ]
    assert (await members.state("g"))[0] == "Empty"


async def test_classic_requests_to_a_consumer_group_are_checked(members: ClassicMembers) -> None:
    """Generation, protocol, membership, and the member's own protocol are checked."""
    await members.beat("g", A, 0, names=["t1"])
    joined = await members.join_twice("g")
    member, generation = joined.member_id, joined.generation_id
    for answer, code in (
        (
            await members.sync("g", member, generation, protocol_name="roundrobin"),
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ),
        (await members.sync("g", member, 9), ErrorCode.ILLEGAL_GENERATION),
        (await members.sync("g", A, 2), ErrorCode.UNKNOWN_MEMBER_ID),
        (await members.sync("g", "nobody", 2), ErrorCode.UNKNOWN_MEMBER_ID),
        (await members.sync("g", member, generation, instance_id="i"), ErrorCode.UNKNOWN_MEMBER_ID),
        (await members.join("g", "", protocol_type="connect"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (await members.join("g", "", protocols=["sticky"]), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (await members.join("g", "", metadata=b"\x00", version=3), ErrorCode.UNKNOWN_SERVER_ERROR),
        (await members.join("g", "known", instance_id="i"), ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        assert answer.error_code == code
        assert getattr(answer, "member_id", "") == ""
    assert await members.classic_beat("g", member, 9) is ErrorCode.ILLEGAL_GENERATION
    assert await members.classic_beat("g", A, 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert (await members.join("g", "", version=3)).error_code == ErrorCode.NONE
    assert (await members.join("g", "", version=3)).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


async def test_a_refused_join_removes_an_empty_consumer_group(members: ClassicMembers) -> None:
    """The unknown member id is refused, and the group no longer exists in memory or in the log."""
    await members.beat("g", A, 0, names=["t1"])
    assert (await members.heartbeat("g", A, -1)).error_code == ErrorCode.NONE
    assert (await members.state("g"))[0] == "Empty"
    answer = await members.join("g", "known")
    assert (answer.error_code, answer.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "known")
    assert await members.error("g", A, -1) is ErrorCode.GROUP_ID_NOT_FOUND
    assert (await members.describe("g")).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert members.broker.services.groups().group("g") is None
    records = records_of(members.broker.services.groups().log.log_of("g"))
    *_, last = [record.value for record in records if parse_key(record.key or b"") == ConsumerGroupMetadataKey("g")]
    assert last is None


async def test_static_members_change_the_protocol(members: ClassicMembers) -> None:
    """A static member may rejoin with the other protocol at any time, and keeps its partitions; if it was the last one
    with the consumer protocol, the group becomes classic without a rebalance.
    """
    assert await members.beat("g", A, 0, names=["t2"], instance_id="i") == (2, T2)
    joined = await members.join("g", "", names=["t2"], instance_id="i")
    assert (joined.error_code, joined.generation_id) == (ErrorCode.NONE, 2)
    assert await members.classic_state("g") == "Stable"
    assert await members.synced("g", joined.member_id, 2, instance_id="i") == T2
    assert await members.classic_beat("g", joined.member_id, 2, instance_id="i") is ErrorCode.NONE
    assert await members.beat("g", B, 0, names=["t2"]) == (3, {})
    assert await members.beat("g", C, 0, names=["t2"], instance_id="i") == (3, {"t2": [0]})
    assert await members.classic_beat("g", joined.member_id, 2, instance_id="i") is ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.parametrize("members", ["upgrade"], indirect=True)
async def test_no_downgrade(members: ClassicMembers) -> None:
    """If the policy forbids downgrades, the group stays a consumer group with classic members only."""
    member = await members.classic_group("g")
    await members.beat("g", A, 0, names=["t1"])
    await members.beat("g", A, -1)
    assert await members.state("g") == ("Assigning", 3, 2)
    joined = await members.join("g", member, owned={"t1": (0, 1, 2, 3)})
    assert await members.synced("g", member, joined.generation_id) == T1


@pytest.mark.parametrize("members", ["downgrade"], indirect=True)
async def test_no_upgrade(members: ClassicMembers) -> None:
    """If the policy forbids upgrades, a classic group with members admits none with the consumer protocol."""
    await members.classic_group("g")
    assert await members.error("g", A, 0, names=["t1"]) is ErrorCode.GROUP_ID_NOT_FOUND
    assert await members.classic_state("g") == "Stable"


@pytest.mark.parametrize("members", ["disabled"], indirect=True)
async def test_no_classic_members(members: ClassicMembers) -> None:
    """If the policy forbids conversions, a consumer group with members admits no classic ones."""
    await members.beat("g", A, 0, names=["t1"])
    assert (await members.join("g", "")).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(
    ("fields", "assignment"),
    [
        ({"protocol_type": "connect"}, b""),
        ({"metadata": b"\x00"}, b""),
        ({}, encode_assignment({"t1": [0]}, b"of a custom assignor")),
        ({}, b"\x00\x01garbage"),
    ],
    ids=["no consumers", "malformed subscription", "user data", "malformed assignment"],
)
async def test_a_group_that_cannot_be_upgraded_stays_classic(
    members: ClassicMembers, fields: dict[str, Any], assignment: bytes
) -> None:
    """A group without consumers, with unreadable metadata or with custom assignor data stays classic."""
    joined = await members.join_twice("g", **fields)
    if "protocol_type" not in fields:
        await members.sync("g", joined.member_id, 1, assignments=[(joined.member_id, assignment)])
    before = await members.classic_state("g")
    assert await members.error("g", A, 0, names=["t1"]) is ErrorCode.GROUP_ID_NOT_FOUND
    assert await members.classic_state("g") == before


async def test_upgrade_in_the_middle_of_a_rebalance(members: ClassicMembers) -> None:
    """Parked members are told to rejoin, and find a consumer group."""
    joined = await members.join_twice("g")
    member = joined.member_id
    assert await members.beat("g", A, 0, names=["t1"]) == (2, {"t1": [2, 3]})
    assert await members.classic_beat("g", member, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    joined = await members.join("g", member)
    assert await members.synced("g", member, joined.generation_id) == {"t1": [0, 1]}


async def test_members_of_both_protocols_survive_a_restart(tmp_path: Path) -> None:
    """The restored group includes its classic member, which continues normally."""
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path, properties=PROPERTIES)
    async with Broker(config) as broker, WireClient(broker.bootstrap_servers) as wire:
        await prepare(wire)
        members = ClassicMembers(wire, broker)
        await members.beat("g", A, 0, names=["t2"])
        joined = await members.join_twice("g")
        assert await members.synced("g", joined.member_id, joined.generation_id) == T1
        before = await members.describe("g")
    async with Broker(config) as broker, WireClient(broker.bootstrap_servers) as wire:
        members = ClassicMembers(wire, broker)
        await members.wait_until_loaded("g")
        assert await members.describe("g") == before
        assert await members.classic_beat("g", joined.member_id, joined.generation_id) is ErrorCode.NONE
        assert await members.synced("g", joined.member_id, joined.generation_id) == T1
