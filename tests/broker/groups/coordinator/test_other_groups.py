"""Share and streams groups that a Kafka left in `__consumer_offsets`: they exist as in Kafka 4.3.1."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.groups.store.group import Group
from diamant.broker.groups.store.other_group import OtherGroup
from diamant.protocol.errors import ErrorCode
from diamant.protocol.internal_topics.group_records import encode_offset_commit_value
from diamant.protocol.internal_topics.other_group_keys import (
    STREAMS,
    OtherGroupKey,
    OtherRecord,
    parse_other_key,
    tombstone_keys,
)
from diamant.protocol.primitives import encode_string
from tests.broker.groups.coordinator import other_group_cases
from tests.broker.groups.offsets.offset_requests import delete_groups, find_coordinator, list_groups, wait_until_loaded
from tests.broker.running import running
from tests.broker.stored import batches_of
from tests.memory_env import MemoryEnv

GOLDEN = Path(__file__).parents[3] / "golden" / "groups" / "other_groups_4.3.1.json"
RECORDED: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
OFFSET_COMMIT = 1
SESSION_MS = 45_000


async def left_by_kafka(env: MemoryEnv, *names: str) -> None:
    """Write a log with the topic `t` and the groups "KIND NAME", as Kafka left them."""
    async with running(env) as (broker, wire):
        await wire.create("t")
        await find_coordinator(wire)
        await wait_until_loaded(broker)
        topic_id = broker.node.topics.by_name["t"].topic_id
        for kind, records in RECORDED["records"].items():
            for name in names:
                group = f"{kind} {name}"
                found = []
                for number, rest, value in records:
                    key = number.to_bytes(2, "big") + encode_string(group) + bytes.fromhex(rest)
                    is_offset = number == OFFSET_COMMIT
                    now_ms = env.clock.now_ms()
                    offset = encode_offset_commit_value(1, -1, "", now_ms, topic_id=topic_id) if is_offset else b""
                    found.append((key, offset or bytes.fromhex(value)))
                broker.services.groups().log.append(group, found)


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    """Our answers, all from one broker."""

    async def run() -> dict[str, Any]:
        env = MemoryEnv()
        await left_by_kafka(env, *other_group_cases.REQUESTS)
        async with running(env) as (broker, _):
            return await other_group_cases.ask(broker.bootstrap_servers)

    return asyncio.run(run())


@pytest.mark.parametrize("name", RECORDED["answers"])
def test_answer_is_as_kafkas(answers: dict[str, Any], name: str) -> None:
    """Codes, messages, states and types equal the recorded ones, and so do the groups that are left in the end."""
    assert answers[name] == RECORDED["answers"][name]


async def groups_after_a_restart(env: MemoryEnv) -> dict[str, tuple[str, str, str]]:
    """Return the groups that a new start finds."""
    async with running(env) as (_, wire):
        return await list_groups(wire)


async def test_a_compaction_keeps_their_records() -> None:
    """The cleaner leaves the last record of each key, of whatever type."""
    env = MemoryEnv()
    await left_by_kafka(env, "a", "b")
    before = await groups_after_a_restart(env)
    assert sorted(kind for _, _, kind in before.values()) == ["share"] * 4 + ["streams"] * 6
    async with running(env) as (broker, _):
        await broker.compact("__consumer_offsets")
    assert await groups_after_a_restart(env) == before


async def tombstones_of(broker: Broker, group_id: str) -> list[OtherGroupKey | None]:
    """Return the keys that the last batch of the group's log erases."""
    log = broker.services.groups().log.log_of(group_id)
    *_, (_, records) = batches_of(log)
    assert all(record.value is None for record in records)
    return [parse_other_key(record.key or b"") for record in records]


async def test_a_deletion_erases_all_records_in_kafkas_order() -> None:
    """Kafka refuses to load a partition in which a group is erased before its members, or without its target's epoch."""
    env = MemoryEnv()
    await left_by_kafka(env, "a")
    async with running(env) as (broker, wire):
        await wait_until_loaded(broker)
        for kind in ("share-live", "streams-live"):
            group_id = f"{kind} a"
            assert await delete_groups(wire, group_id) == {group_id: ErrorCode.NON_EMPTY_GROUP}
            end_sessions(broker, broker.services.groups().groups[group_id])
            assert await delete_groups(wire, group_id) == {group_id: ErrorCode.NONE}
            if kind == "share-live":
                continue  # the end of its session has erased its member
            erased = [one.record for one in await tombstones_of(broker, group_id) if one is not None]
            assert erased == sorted(erased)
            assert {OtherRecord.TARGET_EPOCH, OtherRecord.MEMBER, OtherRecord.EPOCH} < {*erased}
        left = await list_groups(wire)
    assert [name for name in left if "live" in name] == []
    assert await groups_after_a_restart(env) == left


def end_sessions(broker: Broker, group: Group) -> None:
    """Let the sessions of a group's members end now."""
    if group.other is None:
        broker.services.groups().share.timers.advance_ms(SESSION_MS)
    else:
        group.other.sessions_end_s = 0.0


async def test_members_count_for_one_session() -> None:
    """No member can send a heartbeat here, so the group is Empty when the sessions that began with the load are over."""
    key = parse_other_key(b"\x00\x13" + encode_string("g") + encode_string("m"))
    assert key is not None
    group = OtherGroup(STREAMS)
    assert group.state == "Empty"
    group.restore(key, b"\x00\x00")
    assert (group.state, group.is_empty) == ("Stable", False)
    group.sessions_end_s = asyncio.get_running_loop().time()
    assert (group.state, group.is_empty) == ("Empty", True)


async def test_only_share_groups_outlive_the_expiry_of_offsets() -> None:
    """As in Kafka, a streams group without members and offsets goes with the next check; share groups have no offsets."""
    env = MemoryEnv()
    await left_by_kafka(env, "a")
    async with running(env) as (broker, wire):
        await wait_until_loaded(broker)
        groups = broker.services.groups()
        for group in groups.groups.values():
            end_sessions(broker, group)
        await groups.expiry.expire()
        assert sorted(await list_groups(wire)) == ["share-empty a", "share-live a", "streams-offsets a"]


def test_the_groups_own_records_are_always_erased() -> None:
    """The records of a group's epoch and of its target's are erased, even if no record of them is known."""
    keys = [parse_other_key(key) for key in tombstone_keys(STREAMS, "g", [])]
    assert [(one.group_type, one.group_id, one.record) for one in keys if one is not None] == [
        (STREAMS, "g", OtherRecord.TARGET_EPOCH),
        (STREAMS, "g", OtherRecord.EPOCH),
    ]
