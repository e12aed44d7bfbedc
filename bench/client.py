"""A client that sends prebuilt batches over one blocking socket: what it measures is the broker."""

from __future__ import annotations

import os
import socket
import ssl
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from kio.serial import entity_reader

from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.protocol.wire.apis import request_header_version, response_header_version
from diamant.protocol.wire.schemas import encode_request_fields, response_class

PRODUCE, FETCH, METADATA, OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 0, 1, 3, 8, 9, 10
JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP, CREATE_TOPICS, INIT_PRODUCER_ID = 11, 12, 13, 14, 19, 22
ADD_PARTITIONS_TO_TXN, END_TXN, INCREMENTAL_ALTER_CONFIGS = 24, 26, 44
SASL_HANDSHAKE, SASL_AUTHENTICATE, ALTER_USER_SCRAM_CREDENTIALS = 17, 36, 51
VERSIONS = {
    PRODUCE: 9, FETCH: 12, METADATA: 9, OFFSET_COMMIT: 8, OFFSET_FETCH: 7, FIND_COORDINATOR: 3, JOIN_GROUP: 7, HEARTBEAT: 4,
    LEAVE_GROUP: 4, SYNC_GROUP: 5, CREATE_TOPICS: 5, INIT_PRODUCER_ID: 3, ADD_PARTITIONS_TO_TXN: 3, END_TXN: 3,
    INCREMENTAL_ALTER_CONFIGS: 1, SASL_HANDSHAKE: 1, SASL_AUTHENTICATE: 2, ALTER_USER_SCRAM_CREDENTIALS: 0,
}  # fmt: skip
IN_FLIGHT = 5
BATCH_BYTES = 100_000
NOT_LED_YET = (3, 6)
"""UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER."""


class Client:
    """One blocking connection, with TLS by `context`."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.suite = ""
        """The cipher suite of TLS."""
        if context is not None:
            secured = context.wrap_socket(self.socket, server_hostname="127.0.0.1")
            self.socket, self.suite = secured, (secured.cipher() or ("",))[0]

    def read(self, size: int) -> bytearray:
        """Wait for so many bytes."""
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = self.socket.recv_into(view)
            if not count:
                raise ConnectionError("the broker closed the connection")
            view = view[count:]
        return data

    def receive(self, api_key: int) -> Any:
        """Wait for an answer and decode it."""
        return decoded(api_key, bytes(self.read(int.from_bytes(self.read(4), "big"))))

    def call(self, api_key: int, fields: dict[str, Any]) -> Any:
        """Send a request and wait for its answer."""
        self.socket.sendall(frame_of(api_key, fields))
        return self.receive(api_key)

    def create(self, topic: str, partitions: int = 1, **configs: str) -> None:
        """Create a topic (configs with underscores for dots)."""
        answer = self.call(CREATE_TOPICS, new_topic(topic, partitions, **configs))
        if answer.topics[0].error_code:
            raise RuntimeError(f"create {topic}: {answer.topics[0].error_code} {answer.topics[0].error_message}")

    def produce(self, topic: str, batches: Sequence[bytes], partitions: int = 1) -> None:
        """Send all batches, to the partitions in turns, in order, acks=all, and wait until they are acknowledged.

        The first of each partition is sent alone, again and again while Kafka does not lead yet what it has just created.
        """
        frames = (frame_of(PRODUCE, produce_of(topic, n % partitions, batch)) for n, batch in enumerate(batches))
        for frame in islice(frames, partitions):
            self.socket.sendall(frame)
            while not self.is_acknowledged():
                time.sleep(0.01)
                self.socket.sendall(frame)
        sent = 0
        for sent, frame in enumerate(frames, start=1):
            if sent > IN_FLIGHT:
                assert self.is_acknowledged()
            self.socket.sendall(frame)
        for _ in range(min(sent, IN_FLIGHT)):
            assert self.is_acknowledged()

    def is_acknowledged(self) -> bool:
        """Wait for the answer to a Produce; False if it has to be sent again."""
        result = self.receive(PRODUCE).responses[0].partition_responses[0]
        if result.error_code not in (0, *NOT_LED_YET):
            raise RuntimeError(f"produce: {result.error_code} {result.error_message}")
        return not result.error_code

    def fetch_all(self, topic: str, end: int, partitions: int = 1) -> Iterator[memoryview]:
        """Yield record sets from the beginning up to offset `end` of each partition."""
        offsets = dict.fromkeys(range(partitions), 0)
        while offsets:
            answer = self.call(FETCH, fetch_of(topic, offsets))
            for partition in answer.responses[0].partitions:
                if partition.error_code:
                    raise RuntimeError(f"fetch of {topic}-{partition.partition_index}: {partition.error_code}")
                if not partition.records:
                    continue
                yield memoryview(partition.records)
                for _, header in iter_headers(partition.records):
                    offsets[partition.partition_index] = header.next_offset
            offsets = {number: offset for number, offset in offsets.items() if offset < end}


def frame_of(api_key: int, fields: dict[str, Any]) -> bytes:
    """Return a request, ready to be sent as often as wanted."""
    version = VERSIONS[api_key]
    header = struct.pack(">hhih", api_key, version, 1, -1)
    header += b"\0" if request_header_version(api_key, version) == 2 else b""
    body = encode_request_fields(api_key, version, fields)
    return struct.pack(">i", len(header) + len(body)) + header + body


def decoded(api_key: int, answer: bytes) -> Any:
    """Return an answer, which is given from its correlation id on."""
    version = VERSIONS[api_key]
    return entity_reader(response_class(api_key, version))(answer, 4 + response_header_version(api_key, version))[0]


def error_codes(answer: Any) -> set[int]:
    """Return every error code in an answer."""
    if isinstance(answer, tuple):
        return set().union(*map(error_codes, answer))
    names = getattr(type(answer), "__dataclass_fields__", ())
    codes = {int(answer.error_code)} if "error_code" in names else set()
    return codes.union(*(error_codes(getattr(answer, name)) for name in names))


def batches_of(value_bytes: int, count: int, batch_bytes: int = BATCH_BYTES) -> list[bytes]:
    """Return batches of about `batch_bytes` with `count` messages in all, or one full batch; only a few differ."""
    per_batch = max(1, min(count, batch_bytes // value_bytes))
    now_ms = time.time_ns() // 1_000_000
    pool = [
        bytes(
            build_batch([Record(n, now_ms, b"key", os.urandom(value_bytes)) for n in range(per_batch)], base_offset=0)
        )
        for _ in range(min(20, max(1, count // per_batch)))
    ]
    return [pool[n % len(pool)] for n in range(max(1, count // per_batch))]


def new_topic(topic: str, partitions: int, **configs: str) -> dict[str, Any]:
    """Return the fields of CreateTopics (configs with underscores for dots)."""
    settings = [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()]
    wanted = {"name": topic, "num_partitions": partitions, "replication_factor": 1, "configs": settings}
    return {"topics": [wanted], "timeout_ms": 30_000}


def produce_of(topic: str, partition: int, batch: bytes, transactional_id: str | None = None) -> dict[str, Any]:
    """Return the fields of a Produce of one batch, acks=all."""
    rows = [{"index": partition, "records": batch}]
    return {
        "transactional_id": transactional_id,
        "acks": -1,
        "timeout_ms": 30_000,
        "topic_data": [{"name": topic, "partition_data": rows}],
    }


def fetch_of(topic: str, offsets: Mapping[int, int]) -> dict[str, Any]:
    """Return the fields of a Fetch of partitions from these offsets on, which waits for 500 ms at most."""
    rows = [
        {"partition": number, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        for number, offset in offsets.items()
    ]
    return {
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 50 << 20,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": rows}],
    }


def commit_of(group: str, topic: str, partitions: int) -> dict[str, Any]:
    """Return the fields of an OffsetCommit of somebody who is no member, of an offset for each partition."""
    rows = [
        {"partition_index": index, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": ""}
        for index in range(partitions)
    ]
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": topic, "partitions": rows}],
    }
