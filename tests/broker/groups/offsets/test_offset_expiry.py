"""Offsets expire by a clock moved by the tests (`offsets.retention.minutes`, 7 days)."""

from __future__ import annotations

from collections.abc import Callable

from diamant.broker.broker import Broker
from diamant.broker.groups.classic.classic_group import ClassicGroup
from diamant.broker.groups.coordinator.offset_expiry import expired_offsets
from diamant.broker.groups.store.group import Group
from diamant.protocol.errors import ErrorCode
from diamant.protocol.internal_topics.consumer_protocol import Subscription
from diamant.protocol.internal_topics.group_records import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    GroupMetadataKey,
    GroupMetadataMember,
    GroupMetadataValue,
    OffsetCommitKey,
    encode_offset_commit_value,
    encode_record,
    parse_key,
)
from diamant.storage.env.clocks import SettableClock
from tests.broker.groups.offsets.offset_requests import commit, fetch, join, leave, list_groups, wait_until_loaded
from tests.broker.stored import records_of
from tests.broker.wire import WireClient
from tests.protocol.internal_topics.subscriptions import encode_subscription
from tests.waiting import wait_until

DAY_MS = 24 * 3600 * 1000
RETENTION_MS = 7 * DAY_MS


def stored(commit_timestamp_ms: int, expire_timestamp_ms: int = -1) -> tuple[bytes, int]:
    """Return an offset as stored by the group."""
    return encode_offset_commit_value(5, -1, "", commit_timestamp_ms, expire_timestamp_ms), 0


def classic_group(
    topics: tuple[str, ...] | None,
    *,
    protocol_type: str = "consumer",
    state_ms: int = -1,
    metadata: bytes | None = None,
) -> Group:
    """Return a Stable group with one member that reads `topics`, Empty for None; offsets for t and u, committed at 0."""
    members: tuple[GroupMetadataMember, ...] = ()
    if topics is not None:
        subscription = encode_subscription(Subscription(topics=topics)) if metadata is None else metadata
        members = (GroupMetadataMember("m", None, "c", "/h", 1000, 1000, subscription, b""),)
    protocol, leader = ("range", "m") if members else (None, None)
    value = GroupMetadataValue(protocol_type, 3, protocol, leader, state_ms, members)
    group = Group("g")
    group.classic = ClassicGroup.from_value("g", value)
    group.offsets.put("t", 0, stored(0))
    group.offsets.put("u", 0, stored(0))
    return group


def test_simple_groups_lose_offsets_by_the_commits_time() -> None:
    """Each offset expires separately; a commit's own retention time replaces the broker's."""
    group = Group("g")
    group.offsets.put("t", 0, stored(1000))
    group.offsets.put("t", 1, stored(1001))
    group.offsets.put("u", 0, stored(1001, 1_001))
    group.offsets.put("u", 1, stored(0, 10**15))
    assert expired_offsets(group, 1000, RETENTION_MS) == []
    assert expired_offsets(group, 1001, RETENTION_MS) == [("u", 0)]
    assert expired_offsets(group, 999 + RETENTION_MS, RETENTION_MS) == [("u", 0)]
    assert expired_offsets(group, 1000 + RETENTION_MS, RETENTION_MS) == [("t", 0), ("u", 0)]


def test_empty_groups_count_from_when_they_became_empty() -> None:
    """If that time is unknown, as in records from before Kafka 2.1, the age counts from the commits."""
    both = [("t", 0), ("u", 0)]
    group = classic_group(None, state_ms=1000)
    assert expired_offsets(group, 999 + RETENTION_MS, RETENTION_MS) == []
    assert expired_offsets(group, 1000 + RETENTION_MS, RETENTION_MS) == both
    assert expired_offsets(classic_group(None), RETENTION_MS, RETENTION_MS) == both


def test_members_keep_the_offsets_of_what_they_read() -> None:
    """Offsets of other topics expire by commit time; with unknown subscriptions nothing expires."""
    late = 2 * RETENTION_MS
    assert expired_offsets(classic_group(("t",)), late, RETENTION_MS) == [("u", 0)]
    assert expired_offsets(classic_group(()), RETENTION_MS - 1, RETENTION_MS) == []
    assert expired_offsets(classic_group(("t",), protocol_type="connect"), late, RETENTION_MS) == []
    assert expired_offsets(classic_group(("t",), metadata=b"\x00garbage"), late, RETENTION_MS) == []


def test_offsets_of_open_transactions_stay() -> None:
    """A pending offset may still take effect."""
    group = Group("g")
    group.offsets.put("t", 0, stored(0))
    group.offsets.put("t", 1, stored(0))
    group.offsets.put_pending(7, "t", 1, stored(0))
    assert expired_offsets(group, RETENTION_MS, RETENTION_MS) == [("t", 0)]


async def test_offsets_and_then_the_group_expire(
    client: WireClient, groups_broker: Broker, clock: SettableClock, make_broker: Callable[..., Broker]
) -> None:
    """Both expire at the next check; their tombstones are in the log, and a restart restores nothing."""
    await commit(client, "g", {("t", 0): 1, ("t", 1): 2})
    clock.advance_ms(DAY_MS)
    await commit(client, "g", {("t", 1): 3})
    group = groups_broker.services.groups().groups["g"]
    clock.advance_ms(RETENTION_MS - DAY_MS)
    await wait_until(lambda: group.offsets.count == 1)
    assert await fetch(client, "g") == {("t", 1): 3}
    assert set(await list_groups(client)) == {"g"}
    clock.advance_ms(DAY_MS)
    await wait_until(lambda: not groups_broker.services.groups().groups)
    assert await list_groups(client) == {}
    records = records_of(groups_broker.services.groups().log.log_of("g"))
    assert [(parse_key(record.key or b""), record.value is None) for record in records[-3:]] == [
        (OffsetCommitKey("g", "t", 0), True),
        (OffsetCommitKey("g", "t", 1), True),
        (GroupMetadataKey("g"), True),
    ]
    await groups_broker.stop()
    async with make_broker() as broker:
        await wait_until_loaded(broker)
        assert broker.services.groups().groups == {}


async def test_groups_with_members_stay(client: WireClient, groups_broker: Broker, clock: SettableClock) -> None:
    """Groups with members keep offsets of any age; retention begins when the last member leaves. A group without offsets is
    removed at once.
    """
    member = await join(client, "g", "t")
    await commit(client, "g", {("t", 0): 1}, member=member)
    idle = await join(client, "idle", "t")
    clock.advance_ms(3 * RETENTION_MS)
    await groups_broker.services.groups().expiry.expire()
    assert await fetch(client, "g") == {("t", 0): 1}
    await leave(client, member)
    await leave(client, idle)
    await groups_broker.services.groups().expiry.expire()
    assert set(await list_groups(client)) == {"g"}
    clock.advance_ms(RETENTION_MS - 1)
    await groups_broker.services.groups().expiry.expire()
    assert await fetch(client, "g") == {("t", 0): 1}
    clock.advance_ms(1)
    await groups_broker.services.groups().expiry.expire()
    assert await list_groups(client) == {}
    codes = await commit(client, "g", {("t", 0): 1}, member=member)
    assert codes == [ErrorCode.GROUP_ID_NOT_FOUND]


async def test_empty_consumer_groups_go_with_all_their_records(
    client: WireClient, groups_broker: Broker, make_broker: Callable[..., Broker]
) -> None:
    """An expired group of the consumer protocol leaves no records."""
    partition = groups_broker.services.groups().log.topic.partition_of("g")
    record = encode_record(ConsumerGroupMetadataKey("g"), ConsumerGroupMetadataValue(3))
    groups_broker.services.groups().log.topic.append(partition, [record])
    await groups_broker.stop()
    async with make_broker() as broker:
        await wait_until_loaded(broker)
        async with WireClient(broker.bootstrap_servers) as other:
            assert await list_groups(other) == {"g": ("consumer", "Empty", "consumer")}
            await broker.services.groups().expiry.expire()
            assert await list_groups(other) == {}
    async with make_broker() as broker:
        await wait_until_loaded(broker)
        assert broker.services.groups().groups == {}
