"""Share groups over the wire: answers as Kafka's, locks, transactions, starts, members that come and go."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.metrics.figures import take_figures
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import ErrorCode
from diamant.protocol.internal_topics.share_records import SharePartitionKey
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import Env
from tests.broker.groups.share.share_cases import FIRST, SECOND, answers
from tests.broker.groups.share.share_requests import (
    ACCEPT,
    ALTER_SHARE_OFFSETS,
    DESCRIBE_SHARE_OFFSETS,
    GAP,
    GROUP_RESOURCE,
    REJECT,
    RELEASE,
    RENEW,
    SHARE_FETCH,
    SHARE_GROUP_DESCRIBE,
    ShareMemberClient,
    acquired,
    code,
    configure,
    wait_for_coordinator,
)
from tests.broker.http_asking import ask
from tests.broker.request_fields import SET, alteration
from tests.broker.running import running
from tests.broker.stored import batches_of
from tests.broker.transactions.txn_wire import started
from tests.broker.wire import DELETE_RECORDS, DELETE_TOPICS, INCREMENTAL_ALTER_CONFIGS, WireClient
from tests.builder import make_marker
from tests.memory_env import MemoryEnv
from tests.waiting import wait_until

GOLDEN = Path(__file__).parents[3] / "golden" / "groups" / "share_answers_4.3.1.json"
KAFKAS: dict[str, object] = json.loads(GOLDEN.read_text(encoding="utf-8"))
ONE_STATE_PARTITION = {"share_coordinator_state_topic_num_partitions": 1, "group_share_assignment_interval_ms": 0}
LOCK_MS = 30_000
HOUR_MS = 3_600_000


@asynccontextmanager
async def sharing(
    env: Env, topic_configs: Mapping[str, str] | None = None, **config: Any
) -> AsyncIterator[tuple[Broker, WireClient]]:
    """A broker with the topic `t` and the share group `g`, which reads it from the beginning."""
    async with running(env, **{**ONE_STATE_PARTITION, **config}) as (broker, wire):
        await wire.create("t", **(topic_configs or {}))
        await wait_for_coordinator(wire, "g")
        await configure(wire, "g", share_auto_offset_reset="earliest")
        yield broker, wire


def member(broker: Broker, wire: WireClient, member_id: str = FIRST) -> ShareMemberClient:
    """Return a member of `g` on a connection; not joined yet."""
    return ShareMemberClient(wire, "g", "t", broker.node.topics.by_name["t"].topic_id, member_id)


def window(broker: Broker) -> Any:
    """Return the window of the only share partition."""
    topic_id = broker.node.topics.by_name["t"].topic_id
    state = broker.services.groups().share.delivery.state.states[SharePartitionKey("g", topic_id, 0)]
    return state.live


@pytest.fixture(scope="module")
def ours() -> dict[str, object]:
    """Our answers to all cases."""

    async def ask() -> dict[str, object]:
        async with running(MemoryEnv(), **ONE_STATE_PARTITION) as (broker, wire):
            async with WireClient(broker.bootstrap_servers) as second:
                return await answers(wire, second)

    return asyncio.run(ask())


@pytest.mark.parametrize("name", KAFKAS)
def test_the_answer_is_kafkas(ours: dict[str, object], name: str) -> None:
    """Acquired ranges, delivery counts, error codes and messages are those of Kafka 4.3.1."""
    assert ours[name] == KAFKAS[name]


async def test_a_lock_ends_by_the_brokers_clock(clock: SettableClock) -> None:
    """Records that are not acknowledged within the lock's duration are given to another member, who waits for them."""
    async with sharing(MemoryEnv(clock)) as (broker, wire), WireClient(broker.bootstrap_servers) as other:
        one, two = member(broker, wire), member(broker, other, SECOND)
        await wire.produce("t", [b"v"] * 3, timestamp=clock.now_ms())
        await one.wait_until_assigned()
        assert acquired(await one.fetch()) == [[0, 2, 1]]
        await one.acknowledge([(1, 1, [RENEW])], is_renew_ack=True)
        clock.advance_ms(LOCK_MS - 1)
        assert acquired(await two.fetch(wait_ms=0)) == []
        correlation_id = other.send(SHARE_FETCH, 2, _fetch_fields(two, wait_ms=60_000))
        await wait_until(lambda: len(broker.node.purgatory) == 1)
        clock.advance_ms(1)
        assert acquired(await other.receive(SHARE_FETCH, 2, correlation_id)) == [[0, 2, 2]]
        assert code(await one.acknowledge([(0, 2, [ACCEPT])])) == ErrorCode.INVALID_RECORD_STATE


async def test_locks_end_while_another_job_of_the_broker_runs(clock: SettableClock) -> None:
    """Jobs of the clock run one after the other; a request looks at the locks itself."""
    async with sharing(MemoryEnv(clock)) as (broker, wire), WireClient(broker.bootstrap_servers) as other:
        one, two = member(broker, wire), member(broker, other, SECOND)
        await wire.produce("t", [b"v"] * 3, timestamp=clock.now_ms())
        await one.wait_until_assigned()
        assert acquired(await one.fetch()) == [[0, 2, 1]]
        begun, over = asyncio.Event(), asyncio.Event()

        async def long_job() -> None:
            begun.set()
            await over.wait()

        broker.node.scheduler.every("a long job", HOUR_MS, long_job, 0)
        await begun.wait()
        clock.advance_ms(LOCK_MS)
        assert code(await one.acknowledge([(0, 2, [ACCEPT])])) == ErrorCode.INVALID_RECORD_STATE
        assert acquired(await two.fetch(wait_ms=0)) == [[0, 2, 2]]
        over.set()


def _fetch_fields(client: ShareMemberClient, *, wait_ms: int) -> dict[str, object]:
    return {
        "group_id": client.group_id,
        "member_id": client.member_id,
        "share_session_epoch": client.session_epoch,
        "max_wait_ms": wait_ms,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "max_records": 100,
        "batch_size": 100,
        "topics": [],
        "forgotten_topics_data": [],
    }


async def test_the_end_of_a_session_names_no_partition() -> None:
    """Epoch -1 releases what the member holds. As Kafka 4.3.1, the answer names acknowledged partitions alone."""
    async with sharing(MemoryEnv()) as (broker, wire):
        one = member(broker, wire)
        await wire.produce("t", [b"v"] * 3)
        await one.wait_until_assigned()
        assert acquired(await one.fetch()) == [[0, 2, 1]]
        assert not (await one.acknowledge([], -1)).responses
        assert acquired(await one.fetch(0)) == [[0, 2, 2]]


async def test_a_session_with_a_partition_that_does_not_exist_ends_without_a_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Such a session logs nothing, because a client could fill the log."""
    async with sharing(MemoryEnv()) as (broker, wire):
        one = member(broker, wire)
        await one.wait_until_assigned()
        assert (await one.fetch(partition=7)).responses
        assert int((await one.acknowledge([], -1)).error_code) == 0
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


async def test_the_brokers_limits_of_share_groups_can_be_configured() -> None:
    """A session beyond `group.share.max.share.sessions` is refused; a group's own values lie within the broker's bounds."""
    async with (
        sharing(MemoryEnv(), group_share_max_share_sessions=1, group_share_max_session_timeout_ms=50_000) as (
            broker,
            wire,
        ),
        WireClient(broker.bootstrap_servers) as other,
    ):
        one, two = member(broker, wire), member(broker, other, SECOND)
        await one.wait_until_assigned()
        await two.wait_until_assigned()
        assert code(await one.fetch(wait_ms=0)) == ErrorCode.NONE
        assert code(await two.fetch(wait_ms=0)) == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        await one.fetch(-1, adds=False, wait_ms=0)
        assert code(await two.fetch(wait_ms=0)) == ErrorCode.NONE
        change = alteration(GROUP_RESOURCE, "g", ("share.session.timeout.ms", SET, "50001"))
        answer = (await wire.call(INCREMENTAL_ALTER_CONFIGS, 1, change)).responses[0]
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert answer.error_message == "share.session.timeout.ms must be in the range 45000 to 50000 inclusive."


async def test_status_and_metrics_show_what_members_hold(clock: SettableClock) -> None:
    """Status and metrics list each share partition: start offset, records in flight, who holds which until when, at which
    delivery.
    """
    async with sharing(MemoryEnv(clock)) as (broker, wire):
        one = member(broker, wire)
        await wire.produce("t", [b"v"] * 5, timestamp=clock.now_ms())
        await one.wait_until_assigned()
        assert acquired(await one.fetch()) == [[0, 4, 1]]
        await one.acknowledge([(0, 1, [ACCEPT]), (3, 3, [RELEASE])])
        (shown,) = (await broker.status()).to_fields()["share_partitions"]  # type: ignore[misc]
        lock = {"member_id": FIRST, "deliveries": 1, "lock_ends_ms": clock.now_ms() + LOCK_MS}
        assert shown == {
            "group": "g",
            "topic": "t",
            "partition": 0,
            "start_offset": 2,
            "in_flight": 3,
            "batches": 1,
            "largest_batch": 5,
            "lock_timeouts": 0,
            "held": [{**lock, "first": 2, "last": 2}, {**lock, "first": 4, "last": 4}],
        }
        figures = await take_figures(broker.services)
        assert (figures.share_partitions[0].in_flight, figures.share_partitions[0].batches) == (3, 1)


async def test_a_record_is_archived_after_its_last_delivery(clock: SettableClock) -> None:
    """The fifth lock that ends archives a record; it is given to nobody again, and the window moves on."""
    async with sharing(MemoryEnv(clock)) as (broker, wire):
        one = member(broker, wire)
        await wire.produce("t", [b"poison"], timestamp=clock.now_ms())
        await one.wait_until_assigned()
        for delivery in range(1, 6):
            assert acquired(await one.fetch()) == [[0, 0, delivery]]
            clock.advance_ms(LOCK_MS)
            await wait_until(lambda: window(broker).next_lock_end_ms() is None)
        assert window(broker).start_offset == 1
        await wire.produce("t", [b"next"], timestamp=clock.now_ms())
        assert acquired(await one.fetch()) == [[1, 1, 1]]


async def test_a_fetch_waits_for_records() -> None:
    """A fetch without records is answered by the next produce."""
    async with sharing(MemoryEnv()) as (broker, wire), WireClient(broker.bootstrap_servers) as other:
        one = member(broker, wire)
        await one.wait_until_assigned()
        await one.fetch(wait_ms=0)
        correlation_id = wire.send(SHARE_FETCH, 2, _fetch_fields(one, wait_ms=60_000))
        await wait_until(lambda: len(broker.node.purgatory) == 1)
        await other.produce("t", [b"v", b"w"])
        assert acquired(await wire.receive(SHARE_FETCH, 2, correlation_id)) == [[0, 1, 1]]


async def test_a_closed_connection_releases_its_records() -> None:
    """What a member held when its connection closed is available at once, with its delivery counted."""
    async with sharing(MemoryEnv()) as (broker, wire):
        await wire.produce("t", [b"v"] * 2)
        async with WireClient(broker.bootstrap_servers) as gone:
            one = member(broker, gone)
            await one.wait_until_assigned()
            assert acquired(await one.fetch()) == [[0, 1, 1]]
        await wait_until(lambda: window(broker).next_lock_end_ms() is None)
        two = member(broker, wire, SECOND)
        assert acquired(await two.fetch()) == [[0, 1, 2]]


async def test_acknowledged_records_stay_so_over_a_start() -> None:
    """After a start, what was acknowledged or rejected is never given again, everything else is, and counts as before."""
    env = MemoryEnv()
    async with sharing(env) as (broker, wire):
        await wire.produce("t", [b"v"] * 10)
        one = member(broker, wire)
        await one.wait_until_assigned()
        assert acquired(await one.fetch()) == [[0, 9, 1]]
        types = [ACCEPT, RELEASE, REJECT]
        assert code(await one.acknowledge([(3, 5, types)])) == 0
        assert acquired(await one.fetch(adds=False)) == [[4, 4, 2]]
        killed = env.copy()
    for copy in (env, killed):
        async with running(copy, **ONE_STATE_PARTITION) as (broker, wire):
            broker.services.groups()
            two = member(broker, wire, SECOND)
            # An orderly stop closes the connection, which ends and counts the delivery; a kill forgets it.
            more = 0 if copy is killed else 1
            assert acquired(await two.fetch()) == [[0, 2, 1 + more], [4, 4, 2 + more], [6, 9, 1 + more]]
            described = await wire.call(SHARE_GROUP_DESCRIBE, 1, {"group_ids": ["g"]})
            assert [one.member_id for one in described.groups[0].members] == [FIRST]


@pytest.mark.parametrize("updates", [0, 2], ids=["snapshots only", "updates between"])
async def test_the_state_topic_is_pruned(updates: int) -> None:
    """Records that a later snapshot makes redundant are removed, and a start needs only the rest."""
    env = MemoryEnv()
    setting = {"share_coordinator_snapshot_update_records_per_snapshot": updates}
    async with sharing(env, **setting) as (broker, wire):
        await wire.produce("t", [b"v"] * 8)
        one = member(broker, wire)
        await one.wait_until_assigned()
        await one.fetch()
        for offset in (0, 1, 2, 4, 7):
            assert code(await one.acknowledge([(offset, offset, [ACCEPT])])) == 0
        log = broker.node.topics.log("__share_group_state", 0)
        await broker.services.groups().share.delivery.state.prune()
        assert log.log_start_offset == (5 if not updates else 3)
    async with running(env, **ONE_STATE_PARTITION, **setting) as (broker, wire):
        broker.services.groups()
        assert acquired(await member(broker, wire, SECOND).fetch()) == [[3, 3, 2], [5, 6, 2]]


async def test_a_partition_that_is_no_longer_read_does_not_keep_the_state_topic_from_being_pruned() -> None:
    """It gets a new snapshot once many records of others follow its last one, and a start knows what is acknowledged."""
    env = MemoryEnv()
    setting = {"share_coordinator_snapshot_update_records_per_snapshot": 1}
    async with sharing(env, **setting) as (broker, wire):
        await wire.create("still")
        ids = {name: topic.topic_id for name, topic in broker.node.topics.by_name.items()}
        for name in ("t", "still"):
            await wire.produce(name, [b"v"] * 12)
        one = ShareMemberClient(wire, "g", "still", ids["still"], FIRST)
        await one.wait_until_assigned()
        assert acquired(await one.fetch()) == [[0, 11, 1]]
        assert code(await one.acknowledge([(0, 11, [ACCEPT])])) == 0
        assert (await one.heartbeat(-1)).error_code == 0
        two = member(broker, wire, SECOND)
        await two.wait_until_assigned()
        await two.fetch()
        for offset in range(10):
            assert code(await two.acknowledge([(offset, offset, [ACCEPT])])) == 0
        log = broker.node.topics.log("__share_group_state", 0)
        await broker.services.groups().share.delivery.state.prune()
        assert log.log_end_offset - log.log_start_offset <= 8
    async with running(env, **ONE_STATE_PARTITION, **setting) as (broker, wire):
        broker.services.groups()
        three = ShareMemberClient(wire, "g", "still", ids["still"], SECOND)
        await three.wait_until_assigned()
        await wire.produce("still", [b"new"])
        assert acquired(await three.fetch()) == [[12, 12, 1]]


async def test_aborted_records_are_not_given_with_read_committed() -> None:
    """With read_committed, records of open transactions wait, and those of aborted ones are archived."""
    async with sharing(MemoryEnv()) as (broker, wire):
        await configure(wire, "g", share_isolation_level="read_committed")
        txn = await started(wire, topic="other")
        one = member(broker, wire)
        await one.wait_until_assigned()
        await wire.produce("t", [b"before"])
        assert await txn.produce("t", 0, version=12) == "NONE"
        await wire.produce("t", [b"after"])
        assert acquired(await one.fetch()) == [[0, 0, 1]]
        assert await txn.end(commit=False, version=5) == "NONE"
        assert acquired(await one.fetch(adds=False)) == [[2, 3, 1]]


async def test_the_group_follows_the_log_and_its_topic() -> None:
    """DeleteRecords moves the window; with its topic a partition's state is gone, and a new topic begins at its start."""
    async with sharing(MemoryEnv()) as (broker, wire):
        one = member(broker, wire)
        await wire.produce("t", [b"v"] * 10)
        await one.wait_until_assigned()
        assert acquired(await one.fetch(max_records=1)) == [[0, 9, 1]]
        assert code(await one.acknowledge([(0, 9, [RELEASE])])) == 0
        topics = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 4}]}]
        await wire.call(DELETE_RECORDS, 2, {"topics": topics, "timeout_ms": 1000})
        assert acquired(await one.fetch(adds=False)) == [[4, 9, 2]]
        await wire.call(DELETE_TOPICS, 6, {"topics": [{"name": "t", "topic_id": None}], "timeout_ms": 1000})
        assert code(await one.fetch(adds=False)) == ErrorCode.UNKNOWN_TOPIC_ID
        assert not broker.services.groups().share.delivery.state.states
        await wire.create("t")
        described = await wire.call(DESCRIBE_SHARE_OFFSETS, 1, {"groups": [{"group_id": "g", "topics": None}]})
        assert described.groups[0].topics == ()  # the new topic of that name is another one
        two = member(broker, wire, SECOND)
        await two.wait_until_assigned()
        await wire.produce("t", [b"new"])
        assert acquired(await two.fetch()) == [[0, 0, 1]]


async def test_a_moved_log_start_is_noticed_by_a_fetch_that_would_read_below_it() -> None:
    """Until then, as with Kafka, records below it keep their state: what is done or held stays so."""
    async with sharing(MemoryEnv()) as (broker, wire):
        one = member(broker, wire)
        await wire.produce("t", [b"v"] * 5)
        await one.wait_until_assigned()
        assert acquired(await one.fetch()) == [[0, 4, 1]]
        assert code(await one.acknowledge([(2, 4, [GAP])])) == 0
        topics = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 5}]}]
        await wire.call(DELETE_RECORDS, 2, {"topics": topics, "timeout_ms": 1000})
        await wire.produce("t", [b"v"] * 5)
        assert acquired(await one.fetch(adds=False)) == [[5, 9, 1]]
        assert code(await one.acknowledge([(3, 5, [ACCEPT])])) == ErrorCode.INVALID_RECORD_STATE
        assert code(await one.acknowledge([(0, 1, [RELEASE])])) == 0
        assert acquired(await one.fetch(adds=False, wait_ms=0)) == []
        assert window(broker).start_offset == 5


async def test_a_log_start_may_pass_all_that_is_held() -> None:
    """What was held is archived when its member leaves, and the window begins at the log's start."""
    async with sharing(MemoryEnv()) as (broker, wire):
        one, two = member(broker, wire), member(broker, wire, SECOND)
        await wire.produce("t", [b"v"] * 5)
        await one.wait_until_assigned()
        await two.wait_until_assigned()
        assert acquired(await one.fetch(max_records=3, share_acquire_mode=1)) == [[0, 2, 1]]
        topics = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 5}]}]
        await wire.call(DELETE_RECORDS, 2, {"topics": topics, "timeout_ms": 1000})
        assert acquired(await two.fetch(wait_ms=0)) == []
        await one.acknowledge([], -1)
        await wire.produce("t", [b"v"] * 2)
        assert acquired(await two.fetch(adds=False)) == [[5, 6, 1]]
        assert window(broker).start_offset == 5


async def test_a_full_window_of_aborted_records_does_not_stop_a_group() -> None:
    """No member acknowledges them: the window moves over them once it is full. Kafka 4.3.1 gives nothing any more."""
    async with sharing(MemoryEnv()) as (broker, wire):
        await configure(wire, "g", share_isolation_level="read_committed", share_partition_max_record_locks="100")
        log = broker.node.topics.log("t", 0)
        records = [Record(offset, 0, None, b"v") for offset in range(150)]
        of_producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
        log.append_internal(build_batch(records, base_offset=0, **of_producer))
        log.append_internal(make_marker(5, is_commit=False, timestamp=0))
        await wire.produce("t", [b"v"], timestamp=0)
        one = member(broker, wire)
        await one.wait_until_assigned()
        assert acquired(await one.fetch()) == [[150, 151, 1]]


async def test_the_page_of_a_group_knows_a_new_topic_from_a_deleted_one_of_its_name() -> None:
    """As long as no member has asked for its partitions, the group has none of them."""
    async with sharing(MemoryEnv(), diamant_http_listen="127.0.0.1:0") as (broker, wire):
        await member(broker, wire).wait_until_assigned()
        await wire.call(DELETE_TOPICS, 6, {"topics": [{"name": "t", "topic_id": None}], "timeout_ms": 1000})
        await wire.create("t")
        for page in ("/groups", "/groups/g"):
            assert (await ask(broker, "GET", page)).status == HTTPStatus.OK


async def test_a_broken_state_partition_refuses_and_the_rest_serves() -> None:
    """A record of the state topic that cannot be read makes the share partitions of that partition unavailable, no others."""
    env = MemoryEnv()
    async with sharing(env, share_coordinator_state_topic_num_partitions=2) as (broker, wire):
        await wire.create("many", 8)
        one = ShareMemberClient(wire, "g", "many", broker.node.topics.by_name["many"].topic_id, FIRST)
        await one.wait_until_assigned()
        state = broker.services.groups().share.delivery.state
        broken = state.partition_of(SharePartitionKey("g", one.topic_id, 0))
        state.topic.append(broken, [(b"\0\0\0", b"\0\0")])
        expected = {number: state.partition_of(SharePartitionKey("g", one.topic_id, number)) for number in range(8)}
    async with running(env) as (broker, wire):
        broker.services.groups()
        await broker.services.groups().share.delivery.state.loaded()
        again = ShareMemberClient(wire, "g", "many", one.topic_id, SECOND)
        for number, partition in expected.items():
            refused = ErrorCode.COORDINATOR_NOT_AVAILABLE if partition == broken else 0
            assert code(await again.fetch(0, partition=number, wait_ms=0)) == refused
    assert len(set(expected.values())) == 2


async def test_the_state_topic_holds_no_keys() -> None:
    """`__share_group_state` has ids and offsets: neither keys nor values of records, so an erasure need not search it."""
    async with sharing(MemoryEnv()) as (broker, wire):
        one = member(broker, wire)
        await wire.produce("t", [b"the secret value"] * 3)
        await one.wait_until_assigned()
        await one.fetch()
        await one.acknowledge([(0, 1, [ACCEPT])])
        log = broker.node.topics.log("__share_group_state", 0)
        stored = [record for _, records in batches_of(log) for record in records]
        assert len(stored) == 2
        assert not any(b"secret" in bytes(record.value or b"") for record in stored)


async def test_locks_of_a_partition_that_cannot_be_used_wait(clock: SettableClock) -> None:
    """If the log of a partition fails, the end of its locks is tried again later, and the broker goes about other work."""
    async with sharing(MemoryEnv(clock)) as (broker, wire):
        one = member(broker, wire)
        await wire.produce("t", [b"v"] * 3, timestamp=clock.now_ms())
        await one.wait_until_assigned()
        assert acquired(await one.fetch()) == [[0, 2, 1]]
        topic = broker.node.topics.by_name["t"]
        log = topic.logs.pop(0)
        clock.advance_ms(LOCK_MS)
        await broker.node.scheduler.settled()
        assert window(broker).next_lock_end_ms() is not None
        topic.logs[0] = log
        clock.advance_ms(1_000)
        await wait_until(lambda: window(broker).next_lock_end_ms() is None)


async def test_an_offset_beyond_the_end_waits_for_it() -> None:
    """A start offset beyond the log's end is not an error: records from there on are given out once they are there."""
    async with sharing(MemoryEnv()) as (broker, wire):
        one = member(broker, wire)
        await one.wait_until_assigned()
        await one.heartbeat(-1)
        partitions = [{"partition_index": 0, "start_offset": 2}]
        alter = {"group_id": "g", "topics": [{"topic_name": "t", "partitions": partitions}]}
        assert int((await wire.call(ALTER_SHARE_OFFSETS, 0, alter)).error_code) == 0
        assert acquired(await one.fetch(0, wait_ms=0)) == []
        await wire.produce("t", [b"v"] * 2)
        await wire.produce("t", [b"v"] * 2)
        assert acquired(await one.fetch(adds=False)) == [[2, 3, 1]]


async def test_the_page_shows_share_groups(clock: SettableClock) -> None:
    """Members and lag, and for each partition its start, the records in flight, who holds which until when."""
    async with sharing(MemoryEnv(clock), diamant_http_listen="127.0.0.1:0") as (broker, wire):
        one = member(broker, wire)
        await wire.produce("t", [b"v"] * 5, timestamp=clock.now_ms())
        await one.wait_until_assigned()
        assert acquired(await one.fetch()) == [[0, 4, 1]]
        await one.acknowledge([(0, 1, [ACCEPT])])
        listed, text = await words_of(broker, "/groups"), await words_of(broker, "/groups/g")
        assert "g 3 Stable 1 t 1 share" in listed
        assert "Share group, Stable, lag 3." in text
        assert re.search(rf"Assignment {FIRST} \S+ \S+ t 0", text)
        assert f"t-0 2 5 3 3 2 to 4 by {FIRST}, delivery 1, locked until" in text
        assert "Committed offsets" not in text


async def words_of(broker: Broker, path: str) -> str:
    """Return the words of a view, without markup."""
    answer = await ask(broker, "GET", path)
    return " ".join(re.sub("<[^>]+>", " ", answer.body.decode()).split())
