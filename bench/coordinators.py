"""Measurements of any broker with groups and transactions: many small requests whose bytes are made before the clock starts."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import select
import socket
import statistics
import struct
import time
from collections.abc import Iterator
from typing import Any

from client import (
    ADD_PARTITIONS_TO_TXN,
    CREATE_TOPICS,
    END_TXN,
    FETCH,
    FIND_COORDINATOR,
    HEARTBEAT,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    PRODUCE,
    SYNC_GROUP,
    commit_of,
    decoded,
    error_codes,
    fetch_of,
    frame_of,
    new_topic,
    produce_of,
)
from figure import Figure
from processes import RunningBroker, cpu_seconds, resident_mb

from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record

NONE, UNKNOWN_TOPIC, NOT_LEADER, LOADING, NOT_AVAILABLE, NOT_COORDINATOR = 0, 3, 6, 14, 15, 16
REBALANCE_IN_PROGRESS, CONCURRENT_TRANSACTIONS, MEMBER_ID_REQUIRED = 27, 51, 79
RETRIABLE = {UNKNOWN_TOPIC, LOADING, NOT_AVAILABLE, NOT_COORDINATOR, CONCURRENT_TRANSACTIONS}

MEMBERS, PARTITIONS_EACH = 100, 3
IDLE_CONSUMERS = 1_000
SECONDS, WARM, IDLE_S = 2.0, 0.5, 6.0
"""How long requests are sent, half as long before they are counted, and idle consumers watched, for two heartbeats of each."""


class Peer:
    """One connection of the event loop, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, port: int) -> Peer:
        """Connect to the broker."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 24))

    async def exchange(self, frame: bytes) -> bytes:
        """Send a frame and return the answer from its correlation id on."""
        self._writer.write(frame)
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return await self._reader.readexactly(size)

    async def call(self, api_key: int, fields: dict[str, Any]) -> Any:
        """Send a request and return the decoded answer."""
        return decoded(api_key, await self.exchange(frame_of(api_key, fields)))

    async def settled(self, api_key: int, fields: dict[str, Any]) -> Any:
        """As `call`, again while the coordinator is not ready."""
        while True:
            answer = await self.call(api_key, fields)
            codes = error_codes(answer)
            if not codes & RETRIABLE:
                if codes - {NONE}:
                    raise RuntimeError(f"API {api_key}: {codes}: {answer}")
                return answer
            await asyncio.sleep(0.05)

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


def commits(broker: RunningBroker) -> Iterator[Figure]:
    """Committed offsets per second: one partition in each commit on 1 and 16 connections, and ten."""
    for connections, partitions in ((1, 1), (16, 1), (16, 10)):
        frames = asyncio.run(_commit_frames(broker.port, connections, partitions))
        rate = answers_per_second(broker, frames)
        yield Figure(f"commits, {connections} connections, {partitions} partitions each", rate, "per s")


async def _commit_frames(port: int, connections: int, partitions: int) -> list[bytes]:
    peer, topic = await Peer.connect(port), f"commits-{connections}-{partitions}"
    await _create(peer, topic, partitions)
    commits = [commit_of(f"{topic}-{number}", topic, partitions) for number in range(connections)]
    for commit in commits:
        await peer.settled(FIND_COORDINATOR, {"key": commit["group_id"], "key_type": 0})
        await peer.settled(OFFSET_COMMIT, commit)
    peer.close()
    return [frame_of(OFFSET_COMMIT, commit) for commit in commits]


def transactions(broker: RunningBroker) -> Iterator[Figure]:
    """Transactions per second: a partition added, one record of 100 B, committed; on 1 and 16 connections."""
    for connections in (1, 16):
        rate = asyncio.run(_transaction_rate(broker, connections))
        yield Figure(f"transactions, {connections} connections", rate, "per s")


async def _transaction_rate(broker: RunningBroker, connections: int) -> float:
    peers = [await Peer.connect(broker.port) for _ in range(connections)]
    topic, seconds = f"transactions-{connections}", _seconds(broker, SECONDS)
    await _create(peers[0], topic, connections)
    for number, peer in enumerate(peers):
        await peer.settled(FIND_COORDINATOR, {"key": f"{topic}-{number}", "key_type": 1})
    counts = await asyncio.gather(*(_transact(peer, topic, number, seconds) for number, peer in enumerate(peers)))
    for peer in peers:
        peer.close()
    return sum(counts) / seconds


async def _transact(peer: Peer, topic: str, number: int, seconds: float) -> int:
    name = f"{topic}-{number}"
    start = {"transactional_id": name, "transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1}
    producer = await peer.settled(INIT_PRODUCER_ID, start)
    producer_id, epoch = producer.producer_id, producer.producer_epoch
    ids = {"transactional_id": name, "producer_id": producer_id, "producer_epoch": epoch}
    # Version 3 has other names for the same fields.
    added = {f"v3_and_below_{key}": value for key, value in ids.items()}
    add = frame_of(ADD_PARTITIONS_TO_TXN, {**added, "v3_and_below_topics": [{"name": topic, "partitions": [number]}]})
    end = frame_of(END_TXN, {**ids, "committed": True})
    stop = 0.0
    count = sequence = 0
    while not stop or time.perf_counter() < stop:
        if count == 50 and not stop:  # warm
            count, stop = 0, time.perf_counter() + seconds
        record = Record(0, time.time_ns() // 1_000_000, b"key", bytes(100))
        batch = build_batch(
            [record],
            base_offset=0,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        produce = frame_of(PRODUCE, produce_of(topic, number, bytes(batch), name))
        while True:
            answer = await peer.exchange(add)  # flexible: correlation id, tags, throttle, one topic, one partition
            code = struct.unpack(">h", answer[-5:-3])[0]
            if code != CONCURRENT_TRANSACTIONS:
                break
        _check(code, "AddPartitionsToTxn")
        while (code := _produce_code(await peer.exchange(produce))) in (UNKNOWN_TOPIC, NOT_LEADER) and not stop:
            pass  # the topic is new
        _check(code, "Produce")
        _check(struct.unpack(">h", (await peer.exchange(end))[9:11])[0], "EndTxn")
        sequence += 1
        count += 1
    return count


def groups(broker: RunningBroker) -> Iterator[Figure]:
    """100 members share 300 partitions: the first assignment, one more member, heartbeats; then 1,000 idle consumers."""
    count = max(2, int(MEMBERS * min(1, broker.scale)))
    frames, figures = asyncio.run(_group(broker.port, count))
    yield from figures
    cpu_s, seconds = cpu_seconds(broker.pid), _seconds(broker, SECONDS)
    rate = answers_per_second(broker, frames)
    used_s = cpu_seconds(broker.pid) - cpu_s
    yield Figure(f"heartbeats, {count} connections", rate, "per s")
    yield Figure("broker CPU per 1,000 heartbeats", used_s * 1e6 / (rate * seconds * (1 + WARM)), "ms")
    for in_sessions in (False, True):
        yield from asyncio.run(_idle(broker, in_sessions=in_sessions))


async def _group(port: int, count: int) -> tuple[list[bytes], list[Figure]]:
    """Return the heartbeats of a group's members, and what their rebalances took."""
    peers = [await Peer.connect(port) for _ in range(count + 1)]
    await _create(peers[0], "shared", PARTITIONS_EACH * count)
    await peers[0].settled(FIND_COORDINATOR, {"key": "crowd", "key_type": 0})
    members = [_Member(peer, "crowd", "shared") for peer in peers]
    began = time.perf_counter()
    for member in members[:-1]:
        await member.announce()
    await asyncio.gather(*(member.join() for member in members[:-1]))
    figures = [Figure(f"first assignment of {count} members", (time.perf_counter() - began) * 1000, "ms")]
    took = []
    for _ in range(5):  # one more member comes, all others join again, and it goes
        await members[-1].announce()
        began = time.perf_counter()
        await asyncio.gather(members[-1].join(), *(member.rejoin() for member in members[:-1]))
        took.append((time.perf_counter() - began) * 1000)
        await members[-1].leave()
        await asyncio.gather(*(member.rejoin() for member in members[:-1]))
    figures.append(Figure("one more member: all have their partitions", statistics.median(took), "ms"))
    frames = [member.heartbeat_frame() for member in members[:-1]]
    for peer in peers:
        peer.close()
    return frames, figures


async def _idle(broker: RunningBroker, *, in_sessions: bool) -> list[Figure]:
    """Consumers as librdkafka's, or Java's, which fetch in sessions: a heartbeat every 3 s and a fetch that waits 500 ms on
    an own connection each.
    """
    count, seconds = max(1, int(IDLE_CONSUMERS * min(1, broker.scale))), _seconds(broker, IDLE_S)
    peers = [await Peer.connect(broker.port) for _ in range(2 * count)]
    kind = f"{count} idle consumers{' in sessions' if in_sessions else ''}"
    topic = f"quiet-{in_sessions}"
    await _create(peers[0], topic, 100)
    waiting = []
    for number in range(count):
        member = _Member(peers[2 * number], f"{topic}-{number}", topic)
        await member.peer.settled(FIND_COORDINATOR, {"key": f"{topic}-{number}", "key_type": 0})
        await member.announce()
        await member.join()
        fetch, peer = fetch_of(topic, {number % 100: 0}), peers[2 * number + 1]
        fetching = _fetch_in_session(peer, fetch) if in_sessions else _repeat(peer, frame_of(FETCH, fetch), 0)
        waiting.append(asyncio.create_task(fetching))
        waiting.append(asyncio.create_task(_repeat(member.peer, member.heartbeat_frame(), 3)))
    cpu_s = cpu_seconds(broker.pid)
    await asyncio.sleep(seconds)
    figures = [
        Figure(f"{kind}: broker CPU", (cpu_seconds(broker.pid) - cpu_s) * 1000 / seconds, "ms/s"),
        Figure(f"{kind}: resident memory", resident_mb(broker.pid), "MB"),
    ]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for peer in peers:
        peer.close()
    return figures


async def _repeat(peer: Peer, frame: bytes, pause_s: float) -> None:
    while True:
        await peer.exchange(frame)
        await asyncio.sleep(pause_s)


async def _fetch_in_session(peer: Peer, fields: dict[str, Any]) -> None:
    opened = await peer.call(FETCH, fields | {"session_epoch": 0})
    frame = bytearray(frame_of(FETCH, fields | {"session_id": opened.session_id, "session_epoch": 1, "topics": []}))
    epoch_at = frame.index(struct.pack(">ii", opened.session_id, 1)) + 4
    for epoch in itertools.count(1):
        struct.pack_into(">i", frame, epoch_at, epoch)
        (code,) = struct.unpack_from(">h", await peer.exchange(bytes(frame)), 9)
        _check(code, "Fetch in a session")


class _Member:
    """A member of a classic group, leader if it has to be."""

    def __init__(self, peer: Peer, group: str, topic: str) -> None:
        self.peer = peer
        self._group, self._topic = group, topic
        self._member_id = ""
        self._generation = -1

    async def announce(self) -> None:
        """Ask for a member id (KIP-394)."""
        self._member_id = ""
        while not self._member_id:
            answer = await self.peer.call(JOIN_GROUP, self._join_fields())
            if answer.error_code not in RETRIABLE | {MEMBER_ID_REQUIRED}:
                raise RuntimeError(f"JoinGroup: {answer.error_code}")
            self._member_id = answer.member_id

    async def join(self) -> None:
        """Join and sync until the group is stable."""
        while True:
            joined = await self.peer.call(JOIN_GROUP, self._join_fields())
            if joined.error_code:
                raise RuntimeError(f"JoinGroup: {joined.error_code}")
            self._generation = joined.generation_id
            assignments = []
            if joined.leader == self._member_id:
                names = [member.member_id for member in joined.members]
                assignments = [
                    {"member_id": name, "assignment": _assignment(self._topic, number, len(names))}
                    for number, name in enumerate(names)
                ]
            fields = {
                "group_id": self._group,
                "generation_id": self._generation,
                "member_id": self._member_id,
                "protocol_type": "consumer",
                "protocol_name": "range",
                "assignments": assignments,
            }
            synced = await self.peer.call(SYNC_GROUP, fields)
            if synced.error_code == NONE:
                return
            if synced.error_code != REBALANCE_IN_PROGRESS:
                raise RuntimeError(f"SyncGroup: {synced.error_code}")

    async def rejoin(self) -> None:
        """Send heartbeats until one tells of a rebalance; then join."""
        frame = self.heartbeat_frame()
        while True:
            code = struct.unpack(">h", (await self.peer.exchange(frame))[9:11])[0]
            if code == REBALANCE_IN_PROGRESS:
                return await self.join()
            _check(code, "Heartbeat")
            await asyncio.sleep(0.01)

    async def leave(self) -> None:
        """Leave the group."""
        member = {"member_id": self._member_id, "group_instance_id": None}
        await self.peer.call(LEAVE_GROUP, {"group_id": self._group, "members": [member]})

    def heartbeat_frame(self) -> bytes:
        """A heartbeat in the present generation."""
        fields = {"group_id": self._group, "generation_id": self._generation, "member_id": self._member_id}
        return frame_of(HEARTBEAT, fields)

    def _join_fields(self) -> dict[str, Any]:
        topic = self._topic.encode()
        metadata = struct.pack(">hih", 0, 1, len(topic)) + topic + struct.pack(">i", -1)
        return {
            "group_id": self._group,
            "session_timeout_ms": 30_000,
            "rebalance_timeout_ms": 60_000,
            "member_id": self._member_id,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": metadata}],
        }


def _assignment(topic: str, number: int, count: int) -> bytes:
    partitions = range(number, PARTITIONS_EACH * count, count)
    name = topic.encode()
    listed = struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return struct.pack(">hih", 0, 1, len(name)) + name + listed + struct.pack(">i", -1)


async def _create(peer: Peer, topic: str, partitions: int) -> None:
    answer = await peer.call(CREATE_TOPICS, new_topic(topic, partitions))
    _check(answer.topics[0].error_code, f"create {topic}")


def _seconds(broker: RunningBroker, whole: float) -> float:
    return whole * min(1, broker.scale)


def answers_per_second(broker: RunningBroker, frames: list[bytes]) -> float:
    """Answers per second when each connection sends its frame, and again after each answer.

    Plain sockets: an exchange takes a fourth of the time that it takes by asyncio's streams, so that the broker is what is
    measured. All answers to a frame have to be the same.
    """
    connections = {}
    with select.epoll() as ready, contextlib.ExitStack() as stack:
        for frame in frames:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", broker.port), 30))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(frame)
            expected = _answer(connection)
            connections[connection.fileno()] = connection, frame, expected
            ready.register(connection, select.EPOLLIN)
            connection.sendall(frame)
        seconds = _seconds(broker, SECONDS)
        _exchange(ready, connections, seconds * WARM)
        return _exchange(ready, connections, seconds) / seconds


def _exchange(ready: select.epoll, connections: dict[int, tuple[socket.socket, bytes, bytes]], seconds: float) -> int:
    stop = time.perf_counter() + seconds
    count = 0
    while time.perf_counter() < stop:
        for descriptor, _ in ready.poll():
            connection, frame, expected = connections[descriptor]
            if _answer(connection) != expected:
                raise RuntimeError("an answer differs from the one before")
            connection.sendall(frame)
            count += 1
    return count


def _answer(connection: socket.socket) -> bytes:
    data = connection.recv(1 << 16)
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        more = connection.recv(1 << 16)
        if not more:
            raise RuntimeError("the broker has closed a connection")
        data += more
    return data


def _produce_code(answer: bytes) -> int:
    """The error of the one partition of a Produce 9 answer, which stands before its offsets and what follows them."""
    return int(decoded(PRODUCE, answer).responses[0].partition_responses[0].error_code)


def _check(code: int, what: str) -> None:
    if code:
        raise RuntimeError(f"{what}: error {code}")
