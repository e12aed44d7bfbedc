"""What goes wrong in share groups: members that die, crashes in the middle, partitions that come, groups of another kind."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import ErrorCode
from diamant.storage.env.clocks import SettableClock
from tests.broker.groups.share.share_cases import FIRST, SECOND
from tests.broker.groups.share.share_requests import (
    ACCEPT,
    REJECT,
    RELEASE,
    RENEW,
    SHARE_GROUP_HEARTBEAT,
    Acks,
    ShareMemberClient,
    acquired,
    code,
    configure,
    plain,
)
from tests.broker.groups.share.test_share_wire import HOUR_MS, LOCK_MS, ONE_STATE_PARTITION, member, sharing, window
from tests.broker.running import running
from tests.broker.wire import CREATE_PARTITIONS, DELETE_TOPICS, WireClient
from tests.memory_env import MemoryEnv
from tests.waiting import wait_until

OFFSET_COMMIT = 8


class Kill(NamedTuple):
    """The files when the broker was killed, and what it had answered until then."""

    env: MemoryEnv
    done: frozenset[int]
    asked: frozenset[int]


async def test_a_crash_between_acknowledgement_and_write_loses_nothing() -> None:
    """What the killed broker answered never comes again, what it was not asked comes, and no delivery counts too much."""
    env = MemoryEnv()
    kills: list[Kill] = []
    updates = {"share_coordinator_snapshot_update_records_per_snapshot": 1}
    async with sharing(env, **updates) as (broker, wire):
        await wire.produce("t", [b"v"] * 8)
        one = member(broker, wire)
        await one.wait_until_assigned()
        assert acquired(await one.fetch()) == [[0, 7, 1]]
        done: frozenset[int] = frozenset()
        asked: frozenset[int] = frozenset()
        env.before_change = lambda: kills.append(Kill(env.copy(), done, asked))
        for offset, kind in ((0, ACCEPT), (5, REJECT), (2, ACCEPT), (7, ACCEPT)):
            asked |= {offset}
            assert code(await one.acknowledge([(offset, offset, [kind])])) == 0
            done = asked
        env.before_change = None
        kills.append(Kill(env.copy(), done, asked))
    assert len(kills) >= 5
    for kill in kills:
        async with running(kill.env, **ONE_STATE_PARTITION, **updates) as (broker, wire):
            broker.services.groups()
            again = acquired(await member(broker, wire, SECOND).fetch())
        given = {offset for first, last, _ in again for offset in range(first, last + 1)}
        assert set(range(8)) - kill.asked <= given <= set(range(8)) - kill.done
        assert {count for _, _, count in again} == {1}, "what was never written does not count"


async def test_a_member_whose_session_in_the_group_expires_holds_its_records() -> None:
    """As in Kafka, the member may acknowledge them until its locks end or its connection closes, but it has to join the group
    again.
    """
    async with sharing(MemoryEnv()) as (broker, wire):
        one = member(broker, wire)
        await wire.produce("t", [b"v"] * 3)
        await one.wait_until_assigned()
        assert acquired(await one.fetch()) == [[0, 2, 1]]
        broker.services.groups().share.timers.advance_ms(broker.node.config.group_share_session_timeout_ms)
        assert code(await one.acknowledge([(0, 0, [ACCEPT])])) == 0
        assert (await one.heartbeat()).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        async with WireClient(broker.bootstrap_servers) as other:
            two = member(broker, other, SECOND)
            assert acquired(await two.fetch(wait_ms=0)) == []


async def test_a_member_that_leaves_holds_its_records_until_its_session_ends() -> None:
    """As in Kafka, leaving the group says nothing about the share session: it may still acknowledge."""
    async with sharing(MemoryEnv()) as (broker, wire), WireClient(broker.bootstrap_servers) as other:
        one, two = member(broker, wire), member(broker, other, SECOND)
        await wire.produce("t", [b"v"] * 3)
        await one.wait_until_assigned()
        assert acquired(await one.fetch()) == [[0, 2, 1]]
        assert (await one.heartbeat(-1)).error_code == ErrorCode.NONE
        assert code(await one.acknowledge([(0, 0, [ACCEPT])])) == 0
        assert acquired(await two.fetch(wait_ms=0)) == []
        assert int((await one.acknowledge([], -1)).error_code) == 0
        assert acquired(await two.fetch(adds=False)) == [[1, 2, 2]]


@pytest.mark.parametrize(
    ("limits", "answer"),
    [
        ({"max_bytes": 0}, [0, None, []]),
        ({"max_bytes": -1}, [0, None, [[0, -1, None, 0, None, []]]]),
        ({"min_bytes": 0, "max_records": 0}, [0, None, []]),
    ],
)
async def test_a_fetch_of_nothing_is_answered_at_once(limits: dict[str, int], answer: list[object]) -> None:
    """As by Kafka 4.3.1, whatever there is: the member holds nothing."""
    async with sharing(MemoryEnv()) as (broker, wire):
        one = member(broker, wire)
        await wire.produce("t", [b"v"] * 5)
        await one.wait_until_assigned()
        await one.fetch(wait_ms=0, max_bytes=0)
        assert plain(await one.fetch(adds=False, wait_ms=60_000, **limits)) == answer
        assert acquired(await one.fetch(adds=False)) == [[0, 4, 1]]
        assert acquired(await one.fetch(adds=False, wait_ms=60_000, min_bytes=0)) == []


async def test_added_partitions_are_assigned() -> None:
    """A heartbeat begins their states, and the next one has them; they begin as the group's configuration says."""
    async with sharing(MemoryEnv()) as (broker, wire):
        one = member(broker, wire)
        await one.wait_until_assigned()
        topics = [{"name": "t", "count": 3, "assignments": None}]
        fields = {"topics": topics, "timeout_ms": 1000, "validate_only": False}
        assert int((await wire.call(CREATE_PARTITIONS, 3, fields)).results[0].error_code) == 0
        await wire.produce("t", [b"v"] * 2, partition=2)
        await one.heartbeat()
        (topic,) = (await one.heartbeat()).assignment.topic_partitions
        assert list(topic.partitions) == [0, 1, 2]
        assert acquired(await one.fetch(partition=2)) == [[0, 1, 1]]


async def test_a_group_of_another_kind_refuses_members_of_a_share_group() -> None:
    """The group keeps its offsets."""
    async with sharing(MemoryEnv()) as (broker, wire):
        offsets = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": None}]
        commit = {
            "group_id": "classic",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": "t", "partitions": offsets}],
        }
        await wire.call(OFFSET_COMMIT, 8, commit)
        one = ShareMemberClient(wire, "classic", "t", broker.node.topics.by_name["t"].topic_id, FIRST)
        answer = await one.heartbeat(0)
        assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert answer.error_message == "Group classic is not a share group."


@pytest.mark.parametrize(("field", "name"), [("group_id", "GroupId"), ("member_id", "MemberId"), ("rack_id", "RackId")])
async def test_blanks_are_no_name(field: str, name: str) -> None:
    """A name of blanks is refused, as in Kafka 4.3.1."""
    async with sharing(MemoryEnv()) as (_, wire):
        fields = {"group_id": "g", "member_id": FIRST, "member_epoch": 0, "subscribed_topic_names": ["t"], field: " "}
        answer = await wire.call(SHARE_GROUP_HEARTBEAT, 1, fields)
        assert (answer.error_code, answer.error_message) == (ErrorCode.INVALID_REQUEST, f"{name} can't be empty.")


async def test_an_acknowledgement_at_a_wrong_epoch_changes_nothing() -> None:
    """The record stays with its member, who may acknowledge it at the right epoch."""
    async with sharing(MemoryEnv()) as (broker, wire):
        one = member(broker, wire)
        await wire.produce("t", [b"v"])
        await one.wait_until_assigned()
        assert acquired(await one.fetch()) == [[0, 0, 1]]
        right = one.session_epoch
        assert code(await one.acknowledge([(0, 0, [RELEASE])], right + 1)) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert code(await one.acknowledge([(0, 0, [ACCEPT])], right)) == 0


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [
        (
            8,
            "The share group member has a greater member epoch (8) than the one known by the group coordinator (3). "
            "The member must abandon all its partitions and rejoin.",
        ),
        (
            1,
            "The share group member has a smaller member epoch (1) than the one known by the group coordinator (3), and it does "
            "not match the previous member epoch (2). The member must abandon all its partitions and rejoin.",
        ),
    ],
)
async def test_a_fenced_member_holds_its_records(epoch: int, answer: str) -> None:
    """As in Kafka 4.3.1: the group refuses it until it joins again, but its share session lets it acknowledge."""
    async with sharing(MemoryEnv()) as (broker, wire):
        one = member(broker, wire)
        await wire.produce("t", [b"v"] * 3)
        await one.wait_until_assigned()
        assert one.member_epoch == 3
        assert acquired(await one.fetch()) == [[0, 2, 1]]
        refused = await one.heartbeat(epoch)
        assert (refused.error_code, refused.error_message) == (ErrorCode.FENCED_MEMBER_EPOCH, answer)
        assert code(await one.acknowledge([(0, 0, [ACCEPT])])) == 0
        assert int((await one.heartbeat(0)).error_code) == 0
        assert code(await one.acknowledge([(1, 2, [ACCEPT])])) == 0


@pytest.mark.parametrize(
    ("epoch", "refusal"),
    [
        (0, ErrorCode.INVALID_SHARE_SESSION_EPOCH),
        (1, ErrorCode.SHARE_SESSION_NOT_FOUND),
        (3, ErrorCode.SHARE_SESSION_NOT_FOUND),
        (-1, ErrorCode.SHARE_SESSION_NOT_FOUND),
    ],
)
async def test_a_closed_session_refuses_acknowledgements(epoch: int, refusal: ErrorCode) -> None:
    """What its last request acknowledged is done, and the rest comes again. The codes are those of Kafka 4.3.1."""
    async with sharing(MemoryEnv()) as (broker, wire):
        one = member(broker, wire)
        await wire.produce("t", [b"v"] * 3)
        await one.wait_until_assigned()
        assert acquired(await one.fetch()) == [[0, 2, 1]]
        assert code(await one.acknowledge([(1, 1, [ACCEPT])], -1)) == 0
        assert code(await one.acknowledge([(2, 2, [ACCEPT])], epoch)) == refusal
        assert acquired(await one.fetch(0)) == [[0, 0, 2], [2, 2, 2]]


@pytest.mark.parametrize("is_new", [False, True], ids=["deleted", "created again"])
async def test_records_of_a_deleted_topic_are_not_acknowledged(is_new: bool) -> None:
    """Also not those of the same offsets in a new topic of that name, which has another id."""
    async with sharing(MemoryEnv()) as (broker, wire):
        one = member(broker, wire)
        await wire.produce("t", [b"v"] * 3)
        await one.wait_until_assigned()
        assert acquired(await one.fetch()) == [[0, 2, 1]]
        await wire.call(DELETE_TOPICS, 6, {"topics": [{"name": "t", "topic_id": None}], "timeout_ms": 1000})
        if is_new:
            await wire.create("t")
            await wire.produce("t", [b"new"] * 3)
        assert code(await one.acknowledge([(0, 2, [ACCEPT])])) == ErrorCode.UNKNOWN_TOPIC_ID
        if is_new:
            new = member(broker, wire)
            await new.wait_until_assigned()
            assert acquired(await new.fetch(0)) == [[0, 2, 1]]


async def test_what_retention_removes_is_given_to_nobody(clock: SettableClock) -> None:
    """What a member holds then it may still acknowledge or release without an error."""
    async with sharing(MemoryEnv(clock), {"retention.ms": str(HOUR_MS)}) as (broker, wire):
        one = member(broker, wire)
        for timestamp in [clock.now_ms() - HOUR_MS + LOCK_MS // 2] * 2:
            await wire.produce("t", [b"old"] * 3, timestamp=timestamp)
        await one.wait_until_assigned()
        assert acquired(await one.fetch(max_records=1)) == [[0, 2, 1]]
        clock.advance_ms(LOCK_MS - 1)
        await broker.services.housekeeping.retain()
        await wire.produce("t", [b"new"], timestamp=clock.now_ms())
        assert acquired(await one.fetch(adds=False)) == [[6, 6, 1]]
        assert code(await one.acknowledge([(0, 0, [ACCEPT]), (1, 2, [RELEASE])])) == 0
        assert acquired(await one.fetch(adds=False, wait_ms=0)) == []
        clock.advance_ms(1)
        await wait_until(lambda: window(broker).in_flight_count == 1)
        assert window(broker).start_offset == 6


async def test_a_batch_of_a_hundred_thousand_records_is_one_range() -> None:
    """It is given whole, beyond the window's 2,000, and acknowledged in parts; only then are later records given."""
    async with sharing(MemoryEnv()) as (broker, wire):
        log = broker.node.topics.log("t", 0)
        log.append_internal(build_batch([Record(offset, 0, None, b"") for offset in range(100_000)], base_offset=0))
        one = member(broker, wire)
        await one.wait_until_assigned()
        assert acquired(await one.fetch(max_records=500)) == [[0, 99_999, 1]]
        assert len(list(window(broker).runs())) == 1
        await wire.produce("t", [b"next"], timestamp=0)
        assert acquired(await one.fetch(adds=False, wait_ms=0)) == []
        assert code(await one.acknowledge([(0, 98_000, [ACCEPT])])) == 0
        assert acquired(await one.fetch(adds=False)) == [[100_000, 100_000, 1]]
        assert code(await one.acknowledge([(98_001, 99_999, [ACCEPT])])) == 0
        assert window(broker).start_offset == 100_000


@pytest.mark.slow
async def test_a_thousand_members_share_one_partition() -> None:
    """All have the partition; each record goes to one of them. One member more is refused."""
    count, hour_ms = 1_000, 3_600_000
    sessions = {"group_share_max_session_timeout_ms": hour_ms, "group_share_session_timeout_ms": hour_ms}
    async with sharing(MemoryEnv(), group_share_max_size=count, **sessions) as (broker, wire):
        await wire.produce("t", [b"v"] * count)
        members = [member(broker, wire, f"member-{number:04}") for number in range(count)]
        await members[0].wait_until_assigned()
        for one in members:
            (topic,) = (await one.heartbeat(0)).assignment.topic_partitions
            assert list(topic.partitions) == [0]
        refused = {"group_id": "g", "member_id": "last", "member_epoch": 0, "subscribed_topic_names": ["t"]}
        answer = await wire.call(SHARE_GROUP_HEARTBEAT, 1, refused)
        assert answer.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        given = [acquired(await one.fetch(share_acquire_mode=1, max_records=1, wait_ms=0)) for one in members]
        assert given == [[[offset, offset, 1]] for offset in range(count)]


async def test_a_group_without_renewals_refuses_one_and_keeps_all_as_it_was() -> None:
    """The record's state is wrong, not the request; the batches beside it are not acknowledged either. As in Kafka 4.3.1."""
    async with sharing(MemoryEnv()) as (broker, wire):
        await configure(wire, "g", share_renew_acknowledge_enable="false")
        one = member(broker, wire)
        await wire.produce("t", [b"v"] * 10)
        await one.wait_until_assigned()
        assert acquired(await one.fetch()) == [[0, 9, 1]]
        refusal = "Renewing acquisition locks is not enabled for the group."
        acks: Acks
        for acks in ([(0, 0, [RENEW])], [(1, 1, [ACCEPT]), (2, 2, [RENEW])], [(3, 4, [ACCEPT, RENEW])]):
            answer = plain(await one.acknowledge(acks, is_renew_ack=True))
            assert answer == [0, None, [[0, ErrorCode.INVALID_RECORD_STATE, refusal]]]
        assert code(await one.acknowledge([(1, 1, [ACCEPT]), (3, 3, [ACCEPT])])) == 0
        answer = plain(await one.acknowledge([(1, 1, [RENEW])], is_renew_ack=True))
        refusal = "The offset cannot be acknowledged. The offset is not acquired."
        assert answer == [0, None, [[0, ErrorCode.INVALID_RECORD_STATE, refusal]]]
        assert code(await one.acknowledge([(5, 5, [RENEW])])) == ErrorCode.INVALID_REQUEST
