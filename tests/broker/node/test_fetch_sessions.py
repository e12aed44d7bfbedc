"""Fetch sessions (KIP-227): incremental fetches return everything that full ones do, and nothing else; bounds and errors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.node.fetch_sessions import EVICTION_S, FetchSessions, Wanted
from diamant.broker.node.purgatory import Purgatory
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.messages.fetch import FetchPartition, FetchRequest
from diamant.storage.log.log import Log
from tests.broker.wire import DELETE_RECORDS, DELETE_TOPICS, FETCH, METADATA, WireClient, fetch_fields
from tests.waiting import wait_until

NO_LIMIT = 1 << 20
Positions = dict[tuple[str, int], int]


class SessionClient:
    """Fetches in a session like the Java consumer: sends changes, and remembers the rest."""

    def __init__(self, wire: WireClient, version: int = 12) -> None:
        self.wire = wire
        self.version = version
        self.session_id = 0
        self.epoch = 0
        self.ids: dict[str, UUID] = {}
        self.max_wait_ms = 0
        self.min_bytes = 0
        self.max_bytes = NO_LIMIT
        self.isolation_level = 0

    async def park(self, broker: Broker) -> None:
        """Read all there is, and send a fetch that waits for more."""
        await self.fetch()
        self.max_wait_ms, self.min_bytes = 60_000, 1
        self.wire.send(FETCH, self.version, self.fields({}))
        await wait_until_waiting(broker)

    async def learn_ids(self) -> None:
        """Request the ids of all topics, for version 13 and later."""
        answer = await self.wire.call(METADATA, 12, {"topics": None, "allow_auto_topic_creation": False})
        self.ids = {str(topic.name): topic.topic_id for topic in answer.topics}

    def fields(self, positions: Positions, forgotten: Positions | None = None) -> dict[str, Any]:
        """Return the request for these partitions."""
        found = fetch_fields("", 0, max_wait_ms=self.max_wait_ms, min_bytes=self.min_bytes, max_bytes=self.max_bytes)
        (partition,) = found["topics"][0]["partitions"]
        return {
            **found,
            "isolation_level": self.isolation_level,
            "session_id": self.session_id,
            "session_epoch": self.epoch,
            "topics": [
                {**self._topic(topic), "partitions": [{**partition, "partition": index, "fetch_offset": offset}]}
                for (topic, index), offset in positions.items()
            ],
            "forgotten_topics_data": [
                {**self._topic(topic), "partitions": [index]} for topic, index in forgotten or {}
            ],
        }

    async def fetch(self, positions: Positions | None = None, forgotten: Positions | None = None) -> Any:
        """Send one fetch; the session continues unless the answer ends it."""
        answer = await self.wire.call(FETCH, self.version, self.fields(positions or {}, forgotten))
        self.note(answer)
        return answer

    def note(self, answer: Any) -> None:
        """Adopt the session of an answer."""
        if answer.error_code == ErrorCode.NONE:
            self.session_id = answer.session_id
            self.epoch += 1

    def _topic(self, name: str) -> dict[str, Any]:
        return {"topic_id": self.ids[name]} if self.version >= 13 else {"topic": name}


def told(answer: Any) -> dict[tuple[Any, int], tuple[str, int]]:
    """Return error and high watermark of an answer, by partition."""
    return {
        (topic.topic if hasattr(topic, "topic") else topic.topic_id, partition.partition_index): (
            partition.error_code.name.upper(),
            partition.high_watermark,
        )
        for topic in answer.responses
        for partition in topic.partitions
    }


def sizes(answer: Any) -> dict[tuple[Any, int], int]:
    """Return the bytes of records, by partition."""
    return {
        (topic.topic, partition.partition_index): len(partition.records or b"")
        for topic in answer.responses
        for partition in topic.partitions
    }


async def wait_until_waiting(broker: Broker, count: int = 1) -> None:
    """Wait until fetches are parked."""
    await wait_until(lambda: len(broker.node.purgatory) == count)


@pytest.fixture
async def client(wire: WireClient) -> SessionClient:
    """A session client on two topics, without a session yet."""
    await wire.create("a", 3)
    await wire.create("b", 1)
    return SessionClient(wire)


async def test_an_incremental_answer_has_only_what_changed(client: SessionClient) -> None:
    """The first answer has every partition, later ones those with records, until the client moves past them."""
    answer = await client.fetch({("a", 0): 0, ("a", 1): 0, ("b", 0): 0})
    assert client.session_id > 0
    assert told(answer) == {key: ("NONE", 0) for key in (("a", 0), ("a", 1), ("b", 0))}
    assert told(await client.fetch()) == {}
    await client.wire.produce("a", [b"x"] * 3)
    assert told(await client.fetch()) == {("a", 0): ("NONE", 3)}
    again = await client.fetch()
    assert sizes(again)["a", 0] > 0
    assert told(await client.fetch({("a", 0): 3})) == {}


async def test_a_session_without_partitions_ends(broker: Broker, client: SessionClient) -> None:
    """When all partitions are forgotten, the answer has no session, and nothing is kept."""
    await client.fetch({("a", 0): 0})
    answer = await client.fetch({}, {("a", 0): 0})
    assert answer.session_id == 0
    assert answer.error_code == ErrorCode.NONE
    assert len(broker.node.fetch_sessions()) == 0
    assert broker.node.fetch_sessions().partition_count == 0


async def test_errors_are_told_every_time_and_their_end_once(client: SessionClient) -> None:
    """A failed partition is in every answer; its recovery is reported even without other changes."""
    await client.fetch({("a", 0): 0, ("a", 1): 0})
    for positions in ({("a", 1): 99}, {}):
        assert told(await client.fetch(cast(Positions, positions))) == {("a", 1): ("OFFSET_OUT_OF_RANGE", -1)}
    assert told(await client.fetch({("a", 1): 0})) == {("a", 1): ("NONE", 0)}
    assert told(await client.fetch()) == {}
    unknown = await client.fetch({("missing", 0): 0, ("a", 7): 0})
    assert set(told(unknown).values()) == {("UNKNOWN_TOPIC_OR_PARTITION", -1)}
    assert told(await client.fetch()) == told(unknown)


async def test_a_moved_log_start_is_reported(client: SessionClient) -> None:
    """DeleteRecords changes no high watermark, but the log start, which the client needs."""
    await client.wire.produce("a", [b"x"] * 4)
    await client.fetch({("a", 0): 4})
    assert told(await client.fetch()) == {}
    fields = {"topics": [{"name": "a", "partitions": [{"partition_index": 0, "offset": 2}]}], "timeout_ms": 1000}
    await client.wire.call(DELETE_RECORDS, 2, fields)
    answer = await client.fetch()
    assert answer.responses[0].partitions[0].log_start_offset == 2
    assert told(await client.fetch()) == {}


async def test_partitions_that_did_not_fit_get_their_turn(client: SessionClient) -> None:
    """With space for one batch an answer has one partition; the others come first in the next ones, without appends."""
    await client.fetch({("a", 0): 0, ("a", 1): 0, ("a", 2): 0})
    for partition in range(3):
        await client.wire.produce("a", [b"y" * 3000], partition=partition)
    client.max_bytes = 1000
    seen = []
    for _ in range(6):
        seen.append(next(index for (_, index), size in sizes(await client.fetch()).items() if size))
    assert sorted(seen[:3]) == [0, 1, 2]
    assert seen[3:] == seen[:3]


async def test_sessions_without_their_clients_cost_appends_nothing(broker: Broker, wire: WireClient) -> None:
    """The first append notifies each session, later ones none; a client that returns on another connection still gets
    everything.
    """
    await wire.create("a", 1)
    gone = []
    for _ in range(3):
        async with WireClient(broker.bootstrap_servers) as connection:
            session = SessionClient(connection)
            await session.fetch({("a", 0): 0})
            await session.fetch()  # the second look at what was read when the session began
            gone.append(session)
    log = broker.node.topics.log("a", 0)
    assert broker.node.purgatory.is_watched(log)
    for _ in range(2):
        await wire.produce("a", [b"x"])
        assert not broker.node.purgatory.is_watched(log)
    back = gone[1]
    back.wire = wire
    assert told(await back.fetch()) == {("a", 0): ("NONE", 2)}
    assert told(await back.fetch({("a", 0): 2})) == {}
    await wire.produce("a", [b"x"])
    assert told(await back.fetch()) == {("a", 0): ("NONE", 3)}


async def test_session_errors(broker: Broker, client: SessionClient) -> None:
    """Unknown id, wrong epoch, names in a session with ids: a top-level error without topics; the session stays."""
    await client.learn_ids()
    await client.fetch({("a", 0): 0})
    session_id = client.session_id
    for session, epoch, version, expected in [
        (session_id % ((1 << 31) - 1) + 1, 1, 12, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (0, 5, 12, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (session_id, 2, 12, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (session_id, -5, 12, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (session_id, 1, 13, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    ]:
        other = SessionClient(client.wire, version)
        other.session_id, other.epoch, other.ids = session, epoch, client.ids
        answer = await other.fetch({("a", 0): 0})
        assert (answer.error_code, answer.session_id, list(answer.responses)) == (expected, 0, [])
    assert (await client.fetch()).session_id == session_id
    assert len(broker.node.fetch_sessions()) == 1


async def test_closing_and_reopening(broker: Broker, client: SessionClient) -> None:
    """Epoch -1 ends a session with a full answer; epoch 0 with an old id replaces it."""
    await client.fetch({("a", 0): 0})
    first = client.session_id
    client.epoch = -1
    answer = await client.fetch({("a", 0): 0})
    assert answer.session_id == 0
    assert told(answer) == {("a", 0): ("NONE", 0)}
    assert len(broker.node.fetch_sessions()) == 0
    client.session_id, client.epoch = 0, 0
    await client.fetch({("a", 0): 0})
    client.epoch = 0
    second = client.session_id
    await client.fetch({("a", 0): 0})
    assert len({first, second, client.session_id}) == 3
    assert len(broker.node.fetch_sessions()) == 1


@pytest.mark.parametrize(("is_deleted", "expected"), [(False, ("NONE", 1)), (True, ("UNKNOWN_TOPIC_OR_PARTITION", -1))])
async def test_a_waiting_fetch_is_woken_by_any_partition_of_its_session(
    broker: Broker, client: SessionClient, is_deleted: bool, expected: tuple[str, int]
) -> None:
    """The request names no partition; an append to any of the session's, or the deletion of its topic, ends its wait."""
    await client.fetch({("a", 0): 0, ("a", 1): 0, ("b", 0): 0})
    await client.park(broker)
    async with WireClient(broker.bootstrap_servers) as other:
        if is_deleted:
            await other.call(DELETE_TOPICS, 5, {"topic_names": ["b"], "timeout_ms": 1000})
        else:
            await other.produce("b", [b"x"])
    assert told(await client.wire.receive(FETCH, 12)) == {("b", 0): expected}


async def test_a_wait_without_appends_ends_with_an_empty_answer(client: SessionClient) -> None:
    """After max_wait_ms the answer has no topics, and the session continues."""
    await client.fetch({("a", 0): 0})
    client.max_wait_ms, client.min_bytes = 1, 1
    for _ in range(3):
        assert told(await client.fetch()) == {}


async def test_an_answer_that_was_never_sent_loses_nothing(broker: Broker, client: SessionClient) -> None:
    """If a connection breaks during a wait, the session still knows the unsent changes."""
    await client.fetch({("a", 0): 0, ("a", 1): 0})
    await client.fetch()
    async with WireClient(broker.bootstrap_servers) as other:
        breaking = SessionClient(other)
        breaking.session_id, breaking.epoch = client.session_id, client.epoch
        breaking.max_wait_ms, breaking.min_bytes = 60_000, 1 << 19
        other.send(FETCH, 12, breaking.fields({}))
        await wait_until_waiting(broker)
        await client.wire.produce("a", [b"x"])
    await wait_until_waiting(broker, 0)
    client.epoch += 1
    assert told(await client.fetch()) == {("a", 0): ("NONE", 1)}


async def test_a_second_request_of_a_session_ends_the_wait_of_the_first(broker: Broker, client: SessionClient) -> None:
    """With two connections on one session, the older fetch is answered with its data so far."""
    await client.fetch({("a", 0): 0})
    await client.park(broker)
    async with WireClient(broker.bootstrap_servers) as other:
        second = SessionClient(other)
        second.session_id, second.epoch = client.session_id, client.epoch + 1
        assert told(await second.fetch()) == {}
    assert told(await client.wire.receive(FETCH, 12)) == {}


async def test_read_committed_sessions_follow_the_last_stable_offset(client: SessionClient) -> None:
    """A change of the isolation level reads every partition again."""
    await client.wire.produce("a", [b"x"])
    await client.fetch({("a", 0): 1})
    client.isolation_level = 1
    await client.fetch()
    assert told(await client.fetch()) == {}
    await client.wire.produce("a", [b"x"])
    assert told(await client.fetch()) == {("a", 0): ("NONE", 2)}


@pytest.mark.parametrize("version", [7, 12])
async def test_deletion_and_recreation_by_name(client: SessionClient, version: int) -> None:
    """The name is unknown until the topic exists again, then refers to the new topic."""
    client.version = version
    await client.fetch({("a", 0): 0, ("b", 0): 0})
    await client.fetch()
    await client.wire.call(DELETE_TOPICS, 5, {"topic_names": ["b"], "timeout_ms": 1000})
    for _ in range(2):
        assert told(await client.fetch()) == {("b", 0): ("UNKNOWN_TOPIC_OR_PARTITION", -1)}
    await client.wire.create("b")
    assert told(await client.fetch()) == {("b", 0): ("NONE", 0)}
    await client.wire.produce("b", [b"x"])
    assert told(await client.fetch()) == {("b", 0): ("NONE", 1)}


async def test_deletion_and_recreation_by_id(client: SessionClient) -> None:
    """The old id is unknown, then inconsistent; the client forgets it and continues with the new one in the session."""
    client.version = 17
    await client.learn_ids()
    old = client.ids["b"]
    await client.fetch({("a", 0): 0, ("b", 0): 0})
    await client.wire.call(DELETE_TOPICS, 5, {"topic_names": ["b"], "timeout_ms": 1000})
    for _ in range(2):
        assert told(await client.fetch()) == {(old, 0): ("UNKNOWN_TOPIC_OR_PARTITION", -1)}
    await client.wire.create("b")
    for _ in range(2):
        assert told(await client.fetch()) == {(old, 0): ("INCONSISTENT_TOPIC_ID", -1)}
    forgotten = client.fields({}, {("b", 0): 0})["forgotten_topics_data"]
    await client.learn_ids()
    fields = client.fields({("b", 0): 0})
    fields["forgotten_topics_data"] = forgotten
    answer = await client.wire.call(FETCH, 17, fields)
    assert told(answer) == {(client.ids["b"], 0): ("NONE", 0)}


@pytest.mark.slow
async def test_quiet_partitions_cost_nothing(broker: Broker, wire: WireClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one of 200 partitions active, a fetch reads only that one, and the purgatory gets no new entries."""
    await wire.create("wide", 200)
    client = SessionClient(wire)
    await client.fetch({("wide", index): 0 for index in range(200)})
    await client.fetch()
    reads: list[int] = []
    read = Log.read

    def counted(log: Log, *args: Any, **kwargs: Any) -> Any:
        reads.append(log.partition)
        return read(log, *args, **kwargs)

    monkeypatch.setattr(Log, "read", counted)
    for round_ in range(5):
        await wire.produce("wide", [b"x"], partition=7)
        assert set(told(await client.fetch())) == {("wide", 7)}
        await client.fetch({("wide", 7): round_ + 1})
    assert set(reads) == {7}
    assert len(reads) == 10


@pytest.fixture
async def small_broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with slots for two sessions."""
    properties = {"max.incremental.fetch.session.cache.slots": "2"}
    async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path, properties=properties)) as running:
        yield running


async def test_without_room_there_is_no_session(small_broker: Broker) -> None:
    """The third client gets session 0 and full answers."""
    async with WireClient(small_broker.bootstrap_servers) as wire:
        await wire.create("a")
        clients = [SessionClient(wire) for _ in range(3)]
        for client in clients:
            assert told(await client.fetch({("a", 0): 0})) == {("a", 0): ("NONE", 0)}
        assert [client.session_id > 0 for client in clients] == [True, True, False]


class Clock:
    """Real time for sessions, moved manually."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def wanted(count: int, topic: str = "t") -> list[Wanted]:
    """Return this number of partitions from offset 0."""
    return [(topic, None, FetchPartition(index, -1, 0, -1, -1, NO_LIMIT)) for index in range(count)]


def make_sessions(clock: Clock, max_partitions: int = 1000) -> FetchSessions:
    """Create sessions without a broker."""
    return FetchSessions(Purgatory(asyncio.get_running_loop()), clock, max_partitions)


def open_session(sessions: FetchSessions, count: int, slots: int = 2) -> int:
    """Return a new session's id, 0 if there is none."""
    session = sessions.open(wanted(count), broker_id=1, slots=slots, uses_topic_ids=False, isolation_level=0)
    return 0 if session is None else session.session_id


def continued(sessions: FetchSessions, session_id: int, epoch: int, count: int = 0, topic: str = "t") -> None:
    """Send an incremental request that adds `count` partitions."""
    topics = [(topic, None, [partition for _, _, partition in wanted(count)])] if count else []
    sessions.continued(FetchRequest(0, 0, NO_LIMIT, 0, session_id, epoch, cast(Any, topics), [], ""), 12, 1)


async def test_eviction_follows_kafka() -> None:
    """A session silent for two minutes is evicted first; else one older than that and smaller than the new one; else none.
    Without slots there are no sessions.
    """
    clock = Clock()
    sessions = make_sessions(clock)
    assert open_session(sessions, 1, slots=0) == 0
    first, second = open_session(sessions, 5), open_session(sessions, 3)
    assert open_session(sessions, 100) == 0  # both are young
    clock.now_s = EVICTION_S
    continued(sessions, first, 1)
    continued(sessions, second, 1)
    clock.now_s += 1
    assert open_session(sessions, 3) == 0  # not larger than the smallest
    third = open_session(sessions, 4)
    assert third
    with pytest.raises(KafkaError) as caught:
        continued(sessions, second, 2)
    assert caught.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    clock.now_s += EVICTION_S
    assert open_session(sessions, 1)  # the first one has been silent for too long
    assert sessions.eviction_count == 2
    assert len(sessions) == 2
    assert sessions.partition_count == 5


async def test_all_sessions_together_are_bounded() -> None:
    """No session is opened beyond the bound of partitions, and one that grows beyond it ends."""
    sessions = make_sessions(Clock(), max_partitions=10)
    first = open_session(sessions, 6, slots=100)
    assert open_session(sessions, 5, slots=100) == 0
    second = open_session(sessions, 4, slots=100)
    with pytest.raises(KafkaError) as caught:
        continued(sessions, first, 1, count=1, topic="other")
    assert caught.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(sessions), sessions.partition_count) == (1, 4)
    sessions.close(second)
    assert sessions.partition_count == 0


async def test_epochs_wrap_around_to_1() -> None:
    """The epoch after the largest one is 1: 0 would open a new session."""
    sessions = make_sessions(Clock())
    session = sessions.open(wanted(1), broker_id=1, slots=1, uses_topic_ids=False, isolation_level=0)
    assert session is not None
    session.epoch = (1 << 31) - 1
    continued(sessions, session.session_id, session.epoch)
    assert session.epoch == 1


@pytest.mark.parametrize("seed", range(6))
async def test_a_session_misses_nothing_and_repeats_nothing(broker: Broker, seed: int) -> None:
    """With random appends, additions, removals and small answers, a consumer with a session reads exactly the log's batches."""
    print(f"seed {seed}")
    choose = random.Random(seed)
    async with WireClient(broker.bootstrap_servers) as wire:
        topics = ["a", "b", "c"]
        for topic in topics:
            await wire.create(topic, 2)
        every = [(topic, partition) for topic in topics for partition in range(2)]
        client = SessionClient(wire, choose.choice([7, 11, 12]))
        positions: Positions = dict.fromkeys(every[:4], 0)
        changed: Positions = dict(positions)
        seen: dict[tuple[str, int], bytes] = dict.fromkeys(every, b"")

        async def consume() -> bool:
            nonlocal changed
            client.max_bytes = choose.choice([1, 500, NO_LIMIT])
            removed = {} if client.epoch == 0 else {key: 0 for key in forgotten}
            answer = await client.fetch(dict(positions) if client.epoch == 0 else changed, removed)
            changed = {}
            forgotten.clear()
            got = False
            for topic in answer.responses:
                for partition in topic.partitions:
                    key = (str(topic.topic), partition.partition_index)
                    assert key in positions
                    records = bytes(partition.records or b"")
                    if records:
                        got = True
                        seen[key] += records
                        positions[key] = changed[key] = end_of(records)
            return got

        forgotten: set[tuple[str, int]] = set()
        for _ in range(60):
            action = choose.random()
            key = choose.choice(every)
            if action < 0.5:
                await wire.produce(key[0], [choose.randbytes(choose.randrange(200))], partition=key[1])
            elif action < 0.6:
                if key in positions and len(positions) > 1:
                    forgotten.add(key)
                    changed.pop(key, None)
                    del positions[key]
            elif action < 0.7:
                if key not in positions and key not in forgotten:
                    positions[key] = changed[key] = end_of(seen[key]) if seen[key] else 0
            elif action < 0.75:
                client.epoch = 0  # give the session up and begin anew
            else:
                await consume()
        for key in every:
            if key not in positions:
                if key in forgotten:
                    await consume()
                positions[key] = changed[key] = end_of(seen[key]) if seen[key] else 0
        assert client.session_id > 0
        while await consume():
            pass
        for key in every:
            log = broker.node.topics.log(*key)
            assert seen[key] == log.active.file.pread(log.size, 0), key


def end_of(records: bytes) -> int:
    """Return the offset after the last batch."""
    *_, (_, last) = iter_headers(records)
    return last.next_offset
