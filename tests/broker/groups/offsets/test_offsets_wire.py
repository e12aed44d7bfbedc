"""Offsets and the administration of groups over the wire. The expectations were compared with Kafka 4.3.1."""

from __future__ import annotations

import errno
import logging
from typing import Any
from uuid import UUID

import pytest

from diamant.broker.broker import Broker
from diamant.protocol.errors import ErrorCode
from diamant.protocol.internal_topics.group_records import parse_key, parse_offset_commit_value
from diamant.protocol.wire.apis import SERVED
from diamant.storage.env.clocks import SettableClock
from tests.broker.groups.offsets.offset_requests import (
    DESCRIBE_GROUPS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    Member,
    commit,
    delete_groups,
    delete_offsets,
    fetch,
    fetch_error,
    find_coordinator,
    join,
    leave,
    list_groups,
)
from tests.broker.request_fields import offset_commit
from tests.broker.stored import records_of
from tests.broker.wire import DESCRIBE_CONFIGS, METADATA, WireClient
from tests.memory_env import MemoryEnv

NONE = ErrorCode.NONE
UNKNOWN_TOPIC = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
EMPTY = ("", "Empty", "classic")


async def topic_id(client: WireClient, name: str) -> UUID:
    """Return the id of a topic."""
    request = {
        "topics": [{"topic_id": None, "name": name}],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    found: UUID = (await client.call(METADATA, 12, request)).topics[0].topic_id
    return found


# -- the coordinator and its topic ------------------------------------------------------------------------------------


async def test_nothing_is_there_before_the_first_coordinator(wire: WireClient) -> None:
    """Without the topic, every request about a group is NOT_COORDINATOR, and the list is empty."""
    await wire.create("t")
    assert await list_groups(wire) == {}
    assert await fetch_error(wire, "g") == ErrorCode.NOT_COORDINATOR
    assert await commit(wire, "g", {("t", 0): 1}) == [ErrorCode.NOT_COORDINATOR]
    assert await delete_groups(wire, "g") == {"g": ErrorCode.NOT_COORDINATOR}
    assert await delete_offsets(wire, "g", ("t", 0)) == ErrorCode.NOT_COORDINATOR
    described = await wire.call(DESCRIBE_GROUPS, 6, {"groups": ["g"]})
    assert described.groups[0].error_code == ErrorCode.NOT_COORDINATOR
    old = await wire.call(OFFSET_FETCH, 1, {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}]})
    assert old.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR


async def test_the_topic_is_made_as_kafka_makes_it(wire: WireClient, broker: Broker) -> None:
    """The topic has 50 partitions, is compacted, and has segments of 100 MiB; the answer is sent once it can be used."""
    assert await find_coordinator(wire) == NONE
    assert len(broker.node.topics.by_name["__consumer_offsets"].logs) == 50
    resource = {"resource_type": 2, "resource_name": "__consumer_offsets", "configuration_keys": None}
    answer = await wire.call(DESCRIBE_CONFIGS, 4, {"resources": [resource]})
    assert {config.name: config.value for config in answer.results[0].configs if config.config_source == 1} == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }


@pytest.mark.slow
async def test_several_clients_ask_for_the_first_coordinator(broker: Broker) -> None:
    """One topic is created: the first to ask is told to retry, the other is answered once the topic is there."""
    async with WireClient(broker.bootstrap_servers) as one, WireClient(broker.bootstrap_servers) as other:
        numbers = [
            client.send(10, 4, {"key_type": key_type, "coordinator_keys": ["g", "h"]})
            for client, key_type in ((one, 0), (other, 0))
        ]
        answers = [await client.receive(10, 4, number) for client, number in zip((one, other), numbers, strict=True)]
        found = [(row.error_code, row.node_id) for answer in answers for row in answer.coordinators]
        assert sorted(found, reverse=True) == [(ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)] * 2 + [(NONE, 1)] * 2


# -- commit and fetch -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(SERVED[OFFSET_COMMIT].min, SERVED[OFFSET_COMMIT].max))
async def test_a_commit_can_be_fetched(client: WireClient, version: int) -> None:
    """A commit is fetched in every version with names; with leader epoch and metadata where the versions have them."""
    assert await commit(client, "g", {("t", 0): 10, ("t", 1): 11}, version=version, metadata="mé") == [NONE, NONE]
    assert await fetch(client, "g") == {("t", 0): 10, ("t", 1): 11}
    answer = await client.call(
        OFFSET_FETCH,
        7,
        {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}], "require_stable": True},
    )
    (partition,) = answer.topics[0].partitions
    assert partition.metadata == "mé"
    assert partition.committed_leader_epoch == (3 if version >= 6 else -1)


@pytest.mark.parametrize("version", range(SERVED[OFFSET_FETCH].min, SERVED[OFFSET_FETCH].max))
async def test_an_offset_that_was_never_committed_is_minus_one(client: WireClient, version: int) -> None:
    """Unknown groups, topics and partitions give no error, and empty metadata, which some clients require."""
    await commit(client, "g", {("t", 0): 10})
    for group_id in ("g", "unknown"):
        wanted = {"t": [1, 99], "unknown": [0]}
        assert set((await fetch(client, group_id, wanted, version=version)).values()) == {-1}
    request: dict[str, Any] = {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [1]}]}
    if version >= 8:
        answer = (await client.call(OFFSET_FETCH, version, {"groups": [request], "require_stable": False})).groups[0]
    else:
        answer = await client.call(OFFSET_FETCH, version, {**request, "require_stable": False})
    assert answer.topics[0].partitions[0].metadata == ""


async def test_topics_by_id(client: WireClient) -> None:
    """Version 10 of both requests has ids of topics; an unknown id is UNKNOWN_TOPIC_ID for its partitions only."""
    known, unknown = await topic_id(client, "t"), UUID(int=77)
    codes = await commit(client, "g", {(known, 0): 7, (known, 9): 1, (unknown, 0): 1}, version=10)
    assert codes == [NONE, UNKNOWN_TOPIC, ErrorCode.UNKNOWN_TOPIC_ID]
    for topics in ([{"topic_id": id_, "partition_indexes": [0]} for id_ in (known, unknown)], None):
        request = {"groups": [{"group_id": "g", "member_epoch": -1, "topics": topics}], "require_stable": False}
        answer = (await client.call(OFFSET_FETCH, 10, request)).groups[0]
        found = [(topic.topic_id, topic.partitions[0].committed_offset) for topic in answer.topics]
        assert found == ([(known, 7)] if topics is None else [(known, 7), (unknown, -1)])
        assert answer.topics[0].partitions[0].error_code == NONE
        if topics is not None:
            assert answer.topics[1].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_several_groups_in_one_fetch(client: WireClient) -> None:
    """Each has its own topics and result."""
    await commit(client, "g", {("t", 0): 1})
    await commit(client, "h", {("u", 0): 2})
    groups = [
        {"group_id": "g", "topics": None},
        {"group_id": "h", "topics": [{"name": "u", "partition_indexes": [0]}]},
        {"group_id": "none", "topics": None},
    ]
    answer = await client.call(OFFSET_FETCH, 8, {"groups": groups, "require_stable": False})
    found = [
        (group.group_id, [(topic.name, topic.partitions[0].committed_offset) for topic in group.topics])
        for group in answer.groups
    ]
    assert found == [("g", [("t", 1)]), ("h", [("u", 2)]), ("none", [])]


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ("x" * 4096, NONE),
        ("x" * 4097, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ("é" * 4096, NONE),
        ("😀" * 2048, NONE),
        ("😀" * 2049, ErrorCode.OFFSET_METADATA_TOO_LARGE),
    ],
    ids=["ascii", "ascii too long", "two bytes", "surrogates", "surrogates too long"],
)
async def test_metadata_has_a_limit(client: WireClient, metadata: str, expected: ErrorCode) -> None:
    """offset.metadata.max.bytes counts UTF-16 code units, as in Java."""
    assert await commit(client, "g", {("t", 0): 5}, metadata=metadata) == [expected]


async def test_each_row_of_a_mixed_request_has_its_own_result(client: WireClient, groups_broker: Broker) -> None:
    """In several topics, rows are refused for three reasons; the other rows are in the log, one by one. Without any other row
    there is no group.
    """
    assert await commit(client, "other", {("nope", 0): 5}) == [UNKNOWN_TOPIC]
    assert await list_groups(client) == {}
    long = "m" * 5000
    topics: list[tuple[str, list[tuple[int, int, str | None]]]] = [
        ("nope", [(0, 1, "")]),
        ("t", [(9, 1, ""), (-1, 1, ""), (0, 2, long), (1, 3, "kept"), (2, 4, None)]),
        ("u", [(0, 5, long)]),
        ("t", [(2, 6, ""), (7, 7, ""), (2, 8, "")]),
    ]
    answer = await client.call(OFFSET_COMMIT, 9, offset_commit("g", *topics, leader_epoch=3))
    too_long = ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert [[(row.partition_index, row.error_code) for row in topic.partitions] for topic in answer.topics] == [
        [(0, UNKNOWN_TOPIC)],
        [(9, UNKNOWN_TOPIC), (-1, UNKNOWN_TOPIC), (0, too_long), (1, NONE), (2, NONE)],
        [(0, too_long)],
        [(2, NONE), (7, UNKNOWN_TOPIC), (2, NONE)],
    ]
    assert await fetch(client, "g") == {("t", 1): 3, ("t", 2): 8}
    records = records_of(groups_broker.services.groups().log.log_of("g"))
    written = [(parse_key(record.key or b""), parse_offset_commit_value(record.value or b"")) for record in records]
    assert [(key, value.offset, value.metadata) for key, value in written] == [
        (("g", "t", 1), 3, "kept"),
        (("g", "t", 2), 4, ""),
        (("g", "t", 2), 6, ""),
        (("g", "t", 2), 8, ""),
    ]
    for partition in (1, 2):
        stored = groups_broker.services.groups().groups["g"].offsets.get("t", partition)
        assert stored is not None
        *_, last = [record for record in records if parse_key(record.key or b"") == ("g", "t", partition)]
        assert stored == (last.value, last.offset)


async def test_a_commit_that_does_not_fit_into_a_batch(client: WireClient) -> None:
    """Beyond max.message.bytes all of it is refused, and no group exists afterwards."""
    answer = await client.call(OFFSET_COMMIT, 9, offset_commit("g", ("t", [(0, 1, "m" * 4000)] * 300)))
    codes = [found.error_code for found in answer.topics[0].partitions]
    assert codes == [ErrorCode.UNKNOWN_SERVER_ERROR] * 300
    assert await list_groups(client) == {}


async def test_groups_without_members_take_commits_without_membership_only(client: WireClient) -> None:
    """With a generation, the answer is GROUP_ID_NOT_FOUND or, to older clients, ILLEGAL_GENERATION, and UNKNOWN_MEMBER_ID
    once the group exists.
    """
    member = Member("g", "m", 3)
    assert await commit(client, "g", {("t", 0): 1}, member=member) == [ErrorCode.GROUP_ID_NOT_FOUND]
    assert await commit(client, "g", {("t", 0): 1}, member=member, version=8) == [ErrorCode.ILLEGAL_GENERATION]
    assert await commit(client, "g", {("t", 0): 1}, member=Member("g", "m", -1)) == [NONE]
    assert await commit(client, "g", {("t", 0): 2}, member=member) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert await fetch(client, "g") == {("t", 0): 1}


async def test_the_empty_group_id(client: WireClient) -> None:
    """The empty group id exists for old clients: it may commit, fetch, be described and deleted, but nothing else."""
    assert await commit(client, "", {("t", 0): 1}) == [NONE]
    assert await fetch(client, "") == {("t", 0): 1}
    assert await delete_offsets(client, "", ("t", 0)) == ErrorCode.INVALID_GROUP_ID
    assert await delete_groups(client, "") == {"": NONE}


async def test_only_members_of_the_generation_commit(client: WireClient) -> None:
    """A group with members refuses other clients, each with its error."""
    member = await join(client, "g", "t")
    assert await commit(client, "g", {("t", 0): 1}, member=member) == [NONE]
    for wrong, code in (
        (member._replace(generation=member.generation + 1), ErrorCode.ILLEGAL_GENERATION),
        (member._replace(member_id="other"), ErrorCode.UNKNOWN_MEMBER_ID),
        (Member("g", "", -1), ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        assert await commit(client, "g", {("t", 0): 2}, member=wrong) == [code]
    codes = await commit(client, "g", {("t", 0): 2}, member=member, group_instance_id="i")
    assert codes == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert await fetch(client, "g") == {("t", 0): 1}
    await leave(client, member)
    assert await commit(client, "g", {("t", 0): 3}) == [NONE]


async def test_a_retention_time_of_any_size(client: WireClient, groups_broker: Broker, clock: SettableClock) -> None:
    """Versions 2 to 4 may send one; the record then has the expiry time."""
    for retention_ms in (100_000, 0, 2**62, 2**63 - 1, -(2**63)):
        codes = await commit(client, "g", {("t", 0): 1}, version=4, retention_time_ms=retention_ms)
        assert codes == [NONE], retention_ms
    assert await commit(client, "g", {("t", 0): 1}, version=2, retention_time_ms=100_000) == [NONE]
    stored = groups_broker.services.groups().groups["g"].offsets.get("t", 0)
    assert stored is not None
    assert parse_offset_commit_value(stored[0]).expire_timestamp == clock.now_ms() + 100_000


# -- administration ---------------------------------------------------------------------------------------------------


async def test_groups_are_listed_by_state_and_type(client: WireClient) -> None:
    """Names of states and types match in upper and lower case; filters with only unknown names match nothing."""
    await commit(client, "simple", {("t", 0): 1})
    await join(client, "stable", "t")
    stable = ("consumer", "Stable", "classic")
    assert await list_groups(client) == {"simple": EMPTY, "stable": stable}
    assert await list_groups(client, states=["eMPTY"]) == {"simple": EMPTY}
    assert await list_groups(client, states=["Stable", "Dead"], types=["Classic"]) == {"stable": stable}
    assert await list_groups(client, types=["consumer"]) == {}
    assert await list_groups(client, types=["nonsense"]) == {}
    assert await list_groups(client, states=["nonsense"]) == {}


async def test_a_stable_group_is_described_with_its_members(client: WireClient) -> None:
    """The description has subscription and assignment, which are omitted while the group rebalances."""
    member = await join(client, "g", "t", sync=False)
    before = (await client.call(DESCRIBE_GROUPS, 4, {"groups": ["g"]})).groups[0]
    assert (before.group_state, before.protocol_type, before.protocol_data) == ("CompletingRebalance", "consumer", "")
    assert before.members[0].member_id == member.member_id
    assert before.members[0].member_metadata == b""
    await leave(client, member)
    member = await join(client, "g", "t")
    after = (await client.call(DESCRIBE_GROUPS, 4, {"groups": ["g"]})).groups[0]
    assert (after.group_state, after.protocol_data) == ("Stable", "range")
    (found,) = after.members
    assert (found.member_id, found.client_id, found.client_host) == (member.member_id, "wire", "/127.0.0.1")
    assert b"t" in found.member_metadata
    assert found.member_assignment != b""


async def test_groups_without_members_are_deleted(client: WireClient) -> None:
    """Groups are deleted with all their offsets; those with members are NON_EMPTY_GROUP, unknown ones GROUP_ID_NOT_FOUND."""
    await commit(client, "simple", {("t", partition): 1 for partition in range(3)})
    member = await join(client, "classic", "t")
    assert await delete_groups(client, "simple", "classic", "none") == {
        "simple": NONE,
        "classic": ErrorCode.NON_EMPTY_GROUP,
        "none": ErrorCode.GROUP_ID_NOT_FOUND,
    }
    await commit(client, "classic", {("t", 0): 1}, member=member)
    await leave(client, member)
    assert await delete_groups(client, "classic") == {"classic": NONE}
    assert await list_groups(client) == {}
    assert await fetch(client, "simple") == await fetch(client, "classic") == {}


async def test_offsets_are_deleted(client: WireClient) -> None:
    """Offsets are deleted individually; a missing offset is not an error, a missing topic is."""
    await commit(client, "g", {("t", 0): 1, ("t", 1): 2})
    assert await delete_offsets(client, "g", ("t", 0), ("t", 2), ("t", 9), ("nope", 0)) == {
        ("t", 0): NONE,
        ("t", 2): NONE,
        ("t", 9): UNKNOWN_TOPIC,
        ("nope", 0): UNKNOWN_TOPIC,
    }
    assert await fetch(client, "g") == {("t", 1): 2}
    assert await delete_offsets(client, "none", ("nope", 0)) == ErrorCode.GROUP_ID_NOT_FOUND


async def test_offsets_of_topics_that_are_read_stay(client: WireClient) -> None:
    """Consumers have known subscriptions; for other protocol types nothing may be deleted."""
    member = await join(client, "g", "t")
    await commit(client, "g", {("t", 0): 1, ("u", 0): 2}, member=member)
    assert await delete_offsets(client, "g", ("t", 0), ("u", 0)) == {
        ("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ("u", 0): NONE,
    }
    assert await fetch(client, "g") == {("t", 0): 1}
    await join(client, "connect", "t", protocol_type="connect")
    assert await delete_offsets(client, "connect", ("t", 0)) == ErrorCode.NON_EMPTY_GROUP


async def test_offsets_go_with_their_topic(client: WireClient, groups_broker: Broker) -> None:
    """A new topic with the name has none of them; other topics keep theirs. The tombstones are in the log."""
    await commit(client, "g", {("t", 0): 1, ("u", 0): 2})
    await commit(client, "h", {("t", 1): 3})
    await client.call(20, 4, {"topic_names": ["t"], "timeout_ms": 1000})
    assert await fetch(client, "g") == {("u", 0): 2}
    assert await fetch(client, "h") == {}
    await client.create("t", 3)
    assert await fetch(client, "g", {"t": [0]}) == {("t", 0): -1}
    assert groups_broker.services.groups().groups["h"].offsets.count == 0


async def test_deleting_the_coordinators_topic_forgets_everything(client: WireClient) -> None:
    """All groups are dropped at once; the next coordinator begins empty."""
    await commit(client, "g", {("t", 0): 1})
    member = await join(client, "classic", "t")
    await client.call(20, 4, {"topic_names": ["__consumer_offsets"], "timeout_ms": 1000})
    assert await fetch_error(client, "g") == ErrorCode.NOT_COORDINATOR
    assert await list_groups(client) == {}
    assert await find_coordinator(client) == NONE
    assert await fetch(client, "g") == {}
    codes = await commit(client, "classic", {("t", 0): 1}, member=member)
    assert codes == [ErrorCode.GROUP_ID_NOT_FOUND]


async def test_a_full_disk_is_not_coordinator(
    client: WireClient, groups_env: MemoryEnv, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing changes; the client looks for a coordinator and retries."""
    await commit(client, "g", {("t", 0): 1})
    fault = groups_env.fail("append", "/data/__consumer_offsets-*/*.log", errno.ENOSPC)
    with caplog.at_level(logging.CRITICAL):
        assert await commit(client, "g", {("t", 0): 2}) == [ErrorCode.NOT_COORDINATOR]
        assert await commit(client, "h", {("t", 0): 2}) == [ErrorCode.NOT_COORDINATOR]
        assert await delete_groups(client, "g") == {"g": ErrorCode.NOT_COORDINATOR}
    fault.clear()
    assert await fetch(client, "g") == {("t", 0): 1}
    assert set(await list_groups(client)) == {"g"}
    assert await commit(client, "g", {("t", 0): 3}) == [NONE]
