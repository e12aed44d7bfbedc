"""Cases about groups and transactions, for run.py: many small requests whose bytes are made before the clock starts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import statistics
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from figure import Figure
from kio.serial import entity_reader

from diamant.protocol.batches.header import Record
from diamant.protocol.batches.records import build_batch
from diamant.protocol.wire.apis import request_header_version, response_header_version
from diamant.protocol.wire.schemas import encode_request_fields, response_class

PRODUCE, FETCH, OFFSET_COMMIT, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = (
    0,
    1,
    8,
    10,
    11,
    12,
    13,
    14,
)
CREATE_TOPICS, INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, END_TXN = 19, 22, 24, 26
VERSIONS = {
    PRODUCE: 9, FETCH: 12, OFFSET_COMMIT: 8, FIND_COORDINATOR: 3, JOIN_GROUP: 7, HEARTBEAT: 4, LEAVE_GROUP: 4,
    SYNC_GROUP: 5, CREATE_TOPICS: 5, INIT_PRODUCER_ID: 3, ADD_PARTITIONS_TO_TXN: 3, END_TXN: 3,
}  # fmt: skip

NONE, UNKNOWN_TOPIC, NOT_LEADER, LOADING, NOT_AVAILABLE, NOT_COORDINATOR = 0, 3, 6, 14, 15, 16
REBALANCE_IN_PROGRESS, CONCURRENT_TRANSACTIONS, MEMBER_ID_REQUIRED = 27, 51, 79
RETRIABLE = {UNKNOWN_TOPIC, LOADING, NOT_AVAILABLE, NOT_COORDINATOR, CONCURRENT_TRANSACTIONS}

MEMBERS, GROUP_PARTITIONS = 100, 300
IDLE_CONSUMERS = 1_000
SECONDS = 5.0


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
        answer = await self.exchange(frame_of(api_key, fields))
        start = 4 + response_header_version(api_key, VERSIONS[api_key])
        return entity_reader(response_class(api_key, VERSIONS[api_key]))(answer, start)[0]

    async def settled(self, api_key: int, fields: dict[str, Any]) -> Any:
        """As `call`, again while the coordinator is not ready."""
        while True:
            answer = await self.call(api_key, fields)
            codes = _error_codes(answer)
            if not codes & RETRIABLE:
                if codes - {NONE}:
                    raise RuntimeError(f"API {api_key}: {codes}: {answer}")
                return answer
            await asyncio.sleep(0.05)

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


def frame_of(api_key: int, fields: dict[str, Any]) -> bytes:
    """A request, ready to be sent as often as wanted."""
    version = VERSIONS[api_key]
    header = struct.pack(">hhih", api_key, version, 1, -1)
    header += b"\0" if request_header_version(api_key, version) == 2 else b""
    body = encode_request_fields(api_key, version, fields)
    return struct.pack(">i", len(header) + len(body)) + header + body


def commits(port: int) -> Iterator[Figure]:
    """Committed offsets per second: one partition in each commit on 1 and 16 connections, and ten."""
    for connections, partitions in ((1, 1), (16, 1), (16, 10)):
        rate = asyncio.run(_commit_rate(port, connections, partitions))
        yield Figure(f"commits, {connections} connections, {partitions} partitions each", rate, "per s")


async def _commit_rate(port: int, connections: int, partitions: int) -> float:
    peers = [await Peer.connect(port) for _ in range(connections)]
    topic = f"commits-{connections}-{partitions}"
    await _create(peers[0], topic, partitions)
    frames = []
    for number, peer in enumerate(peers):
        group = f"{topic}-{number}"
        await peer.settled(FIND_COORDINATOR, {"key": group, "key_type": 0})
        rows = [
            {"partition_index": index, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": ""}
            for index in range(partitions)
        ]
        fields = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": topic, "partitions": rows}],
        }
        await peer.settled(OFFSET_COMMIT, fields)
        frames.append(frame_of(OFFSET_COMMIT, fields))
    for peer in peers:
        peer.close()
    return answers_per_second(port, frames)


def transactions(port: int) -> Iterator[Figure]:
    """Transactions per second: a partition added, one record of 100 B, committed; on 1 and 16 connections."""
    for connections in (1, 16):
        rate = asyncio.run(_transaction_rate(port, connections))
        yield Figure(f"transactions, {connections} connections", rate, "per s")


async def _transaction_rate(port: int, connections: int) -> float:
    peers = [await Peer.connect(port) for _ in range(connections)]
    topic = f"transactions-{connections}"
    await _create(peers[0], topic, connections)
    for number, peer in enumerate(peers):
        await peer.settled(FIND_COORDINATOR, {"key": f"{topic}-{number}", "key_type": 1})
    counts = await asyncio.gather(*(_transact(peer, topic, number) for number, peer in enumerate(peers)))
    for peer in peers:
        peer.close()
    return sum(counts) / SECONDS


async def _transact(peer: Peer, topic: str, number: int) -> int:
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
            count, stop = 0, time.perf_counter() + SECONDS
        record = Record(0, time.time_ns() // 1_000_000, b"key", bytes(100))
        batch = build_batch(
            [record],
            base_offset=0,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        partition = {"index": number, "records": bytes(batch)}
        produce = frame_of(
            PRODUCE,
            {
                "transactional_id": name,
                "acks": -1,
                "timeout_ms": 30_000,
                "topic_data": [{"name": topic, "partition_data": [partition]}],
            },
        )
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


def groups(port: int, pid: int) -> Iterator[Figure]:
    """100 members share 300 partitions: the first assignment, one more member, heartbeats; then 1,000 idle consumers."""
    yield from asyncio.run(_group(port, pid))
    yield from asyncio.run(_idle(port, pid))


async def _group(port: int, pid: int) -> list[Figure]:
    peers = [await Peer.connect(port) for _ in range(MEMBERS + 1)]
    await _create(peers[0], "shared", GROUP_PARTITIONS)
    await peers[0].settled(FIND_COORDINATOR, {"key": "crowd", "key_type": 0})
    members = [_Member(peer, "crowd", "shared") for peer in peers]
    began = time.perf_counter()
    for member in members[:-1]:
        await member.announce()
    await asyncio.gather(*(member.join() for member in members[:-1]))
    figures = [Figure(f"first assignment of {MEMBERS} members", (time.perf_counter() - began) * 1000, "ms")]
    took = []
    for _ in range(5):  # one more member comes, all others join again, and it goes
        await members[-1].announce()
        began = time.perf_counter()
        await asyncio.gather(members[-1].join(), *(member.rejoin() for member in members[:-1]))
        took.append((time.perf_counter() - began) * 1000)
        await members[-1].leave()
        await asyncio.gather(*(member.rejoin() for member in members[:-1]))
    figures.append(Figure("one more member: all have their partitions", statistics.median(took), "ms"))
    cpu_s = cpu_seconds(pid)
    rate = answers_per_second(port, [member.heartbeat_frame() for member in members[:-1]])
    used_s = cpu_seconds(pid) - cpu_s
    figures.append(Figure(f"heartbeats, {MEMBERS} connections", rate, "per s"))
    figures.append(Figure("broker CPU per 1,000 heartbeats", used_s * 1e6 / (rate * SECONDS), "ms"))
    for peer in peers:
        peer.close()
    return figures


async def _idle(port: int, pid: int) -> list[Figure]:
    """Consumers as librdkafka's: a heartbeat every 3 s and a fetch that waits 500 ms on an own connection each."""
    peers = [await Peer.connect(port) for _ in range(2 * IDLE_CONSUMERS)]
    await _create(peers[0], "quiet", 100)
    waiting = []
    for number in range(IDLE_CONSUMERS):
        member = _Member(peers[2 * number], f"idle-{number}", "quiet")
        await member.peer.settled(FIND_COORDINATOR, {"key": f"idle-{number}", "key_type": 0})
        await member.announce()
        await member.join()
        partition = {"partition": number % 100, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        fetch = frame_of(
            FETCH,
            {
                "max_wait_ms": 500,
                "min_bytes": 1,
                "max_bytes": 50 << 20,
                "session_epoch": -1,
                "topics": [{"topic": "quiet", "partitions": [partition]}],
            },
        )
        waiting.append(asyncio.create_task(_repeat(peers[2 * number + 1], fetch, 0)))
        waiting.append(asyncio.create_task(_repeat(member.peer, member.heartbeat_frame(), 3)))
    cpu_s = cpu_seconds(pid)
    await asyncio.sleep(10)
    figures = [
        Figure(f"{IDLE_CONSUMERS} idle consumers: broker CPU", (cpu_seconds(pid) - cpu_s) * 100, "ms/s"),
        Figure(f"{IDLE_CONSUMERS} idle consumers: resident memory", resident_mb(pid), "MB"),
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
    partitions = range(number, GROUP_PARTITIONS, count)
    name = topic.encode()
    listed = struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return struct.pack(">hih", 0, 1, len(name)) + name + listed + struct.pack(">i", -1)


async def _create(peer: Peer, topic: str, partitions: int) -> None:
    wanted = {"name": topic, "num_partitions": partitions, "replication_factor": 1}
    answer = await peer.call(CREATE_TOPICS, {"topics": [wanted], "timeout_ms": 30_000})
    _check(answer.topics[0].error_code, f"create {topic}")


def answers_per_second(port: int, frames: list[bytes]) -> float:
    """Answers per second when each connection sends its frame, again after each answer, for SECONDS after one to get warm.

    Plain sockets: an exchange takes a fourth of the time that it takes by asyncio's streams, so that the broker is what is
    measured. All answers to a frame have to be the same.
    """
    connections = {}
    with select.epoll() as ready, contextlib.ExitStack() as stack:
        for frame in frames:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(frame)
            expected = _answer(connection)
            connections[connection.fileno()] = connection, frame, expected
            ready.register(connection, select.EPOLLIN)
            connection.sendall(frame)
        _exchange(ready, connections, 1)
        return _exchange(ready, connections, SECONDS) / SECONDS


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
    produced: Any = entity_reader(response_class(PRODUCE, VERSIONS[PRODUCE]))(answer, 5)[0]
    return int(produced.responses[0].partition_responses[0].error_code)


def _error_codes(answer: Any) -> set[int]:
    """Every error code in an answer."""
    if isinstance(answer, tuple):
        return set().union(*map(_error_codes, answer)) if answer else set()
    names = getattr(type(answer), "__dataclass_fields__", None)
    if names is None:
        return set()
    codes = {int(answer.error_code)} if "error_code" in names else set()
    return codes.union(*(_error_codes(getattr(answer, name)) for name in names))


def _check(code: int, what: str) -> None:
    if code:
        raise RuntimeError(f"{what}: error {code}")


def _processes(pid: int) -> list[int]:
    """The processes of the session that `pid` began (a shell command may have started others)."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if os.getsid(int(entry)) == pid:
                    found.append(int(entry))
            except ProcessLookupError:
                continue
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of the broker's processes, and of those below them that have ended."""
    ticks = 0
    for process in _processes(pid):
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Resident memory of the broker's processes."""
    total = 0
    for process in _processes(pid):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        total += next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)
    return total / 1024
