"""A client that sends prebuilt batches over one blocking socket: what it measures is the broker."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kio.serial import entity_reader

from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.header import Record
from diamant.protocol.batches.records import build_batch
from diamant.protocol.wire.apis import request_header_version, response_header_version
from diamant.protocol.wire.schemas import encode_request_fields, response_class

PRODUCE, FETCH, METADATA, CREATE_TOPICS, INCREMENTAL_ALTER_CONFIGS = 0, 1, 3, 19, 44
VERSIONS = {PRODUCE: 9, FETCH: 12, METADATA: 9, CREATE_TOPICS: 5, INCREMENTAL_ALTER_CONFIGS: 1}
IN_FLIGHT = 5
BATCH_BYTES = 100_000


class Client:
    """One blocking connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, api_key: int, body: bytes) -> None:
        """Send a request."""
        version = VERSIONS[api_key]
        header = struct.pack(">hhih", api_key, version, 1, -1)
        header += b"\0" if request_header_version(api_key, version) == 2 else b""
        self.socket.sendall(struct.pack(">i", len(header) + len(body)) + header + body)

    def receive(self, api_key: int) -> Any:
        """Wait for an answer and decode it."""
        (size,) = struct.unpack(">i", self._read(4))
        frame = self._read(size)
        start = 4 + response_header_version(api_key, VERSIONS[api_key])
        return entity_reader(response_class(api_key, VERSIONS[api_key]))(bytes(frame), start)[0]

    def call(self, api_key: int, fields: dict[str, Any]) -> Any:
        """Send a request and wait for its answer."""
        self.send(api_key, encode_request_fields(api_key, VERSIONS[api_key], fields))
        return self.receive(api_key)

    def create(self, topic: str, partitions: int = 1, **configs: str) -> None:
        """Create a topic (configs with underscores for dots)."""
        settings = [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()]
        wanted = {"name": topic, "num_partitions": partitions, "replication_factor": 1, "configs": settings}
        answer = self.call(CREATE_TOPICS, {"topics": [wanted], "timeout_ms": 30_000})
        if answer.topics[0].error_code:
            raise RuntimeError(f"create {topic}: {answer.topics[0].error_code} {answer.topics[0].error_message}")

    def produce(self, topic: str, batches: Sequence[bytes], partitions: int = 1) -> None:
        """Send all batches, to the partitions in turns, acks=all, and wait until they are acknowledged."""
        waiting = 0
        for number, batch in enumerate(batches):
            if waiting == IN_FLIGHT:
                self._acknowledged()
                waiting -= 1
            fields = _produce_fields(topic, number % partitions, batch)
            self.send(PRODUCE, encode_request_fields(PRODUCE, VERSIONS[PRODUCE], fields))
            waiting += 1
        for _ in range(waiting):
            self._acknowledged()

    def fetch_all(self, topic: str, end: int, partitions: int = 1) -> Iterator[memoryview]:
        """Yield record sets from the beginning up to offset `end` of each partition."""
        offsets = dict.fromkeys(range(partitions), 0)
        while offsets:
            answer = self.call(FETCH, _fetch_fields(topic, offsets))
            for partition in answer.responses[0].partitions:
                if partition.error_code:
                    raise RuntimeError(f"fetch of {topic}-{partition.partition_index}: {partition.error_code}")
                if not partition.records:
                    continue
                yield memoryview(partition.records)
                for _, header in iter_headers(partition.records):
                    offsets[partition.partition_index] = header.next_offset
            offsets = {number: offset for number, offset in offsets.items() if offset < end}

    def _acknowledged(self) -> None:
        result = self.receive(PRODUCE).responses[0].partition_responses[0]
        if result.error_code:
            raise RuntimeError(f"produce: {result.error_code} {result.error_message}")

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = self.socket.recv_into(view)
            if not count:
                raise ConnectionError("the broker closed the connection")
            view = view[count:]
        return data


def batches_of(value_bytes: int, count: int, batch_bytes: int = BATCH_BYTES) -> list[bytes]:
    """Batches of about `batch_bytes` with `count` messages in all; only a few differ."""
    per_batch = max(1, min(count, batch_bytes // value_bytes))
    now_ms = time.time_ns() // 1_000_000
    pool = [
        bytes(
            build_batch([Record(n, now_ms, b"key", os.urandom(value_bytes)) for n in range(per_batch)], base_offset=0)
        )
        for _ in range(min(20, max(1, count // per_batch)))
    ]
    return [pool[n % len(pool)] for n in range(max(1, count // per_batch))]


def _produce_fields(topic: str, partition_index: int, batch: bytes) -> dict[str, Any]:
    partition = {"index": partition_index, "records": batch}
    return {
        "transactional_id": None,
        "acks": -1,
        "timeout_ms": 30_000,
        "topic_data": [{"name": topic, "partition_data": [partition]}],
    }


def _fetch_fields(topic: str, offsets: Mapping[int, int]) -> dict[str, Any]:
    partitions = [
        {"partition": number, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        for number, offset in offsets.items()
    ]
    return {
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 50 << 20,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": partitions}],
    }
