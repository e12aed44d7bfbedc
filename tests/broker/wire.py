"""A client without cleverness: sends what it is told and reads what comes, by kio's schemas, not the broker's
encoders.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from kio.serial import entity_reader

from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.protocol.wire.apis import request_header_version, response_header_version
from diamant.protocol.wire.schemas import encode_request_fields, response_class

PRODUCE, FETCH, LIST_OFFSETS, METADATA, FIND_COORDINATOR, API_VERSIONS = 0, 1, 2, 3, 10, 18
CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, INIT_PRODUCER_ID, OFFSET_FOR_LEADER_EPOCH = 19, 20, 21, 22, 23
DESCRIBE_CONFIGS, ALTER_CONFIGS, DESCRIBE_LOG_DIRS, CREATE_PARTITIONS = 32, 33, 35, 37
INCREMENTAL_ALTER_CONFIGS, DESCRIBE_CLUSTER = 44, 60
ANSWER_TIMEOUT_S = 60


class WireClient:
    """One connection; use with `async with`."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        host, _, port = address.rpartition(":")
        self._tls = tls
        self._host, self._port = host, int(port)
        self._correlation_id = 0

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except (ConnectionError, ssl.SSLError):
            pass

    def frame(self, api_key: int, version: int, body: bytes, *, client_id: bytes | None = b"wire") -> bytes:
        """Return a request's bytes; its correlation id is one more than the last."""
        self._correlation_id += 1
        header = struct.pack(">hhi", api_key, version, self._correlation_id)
        header += struct.pack(">h", -1) if client_id is None else struct.pack(">h", len(client_id)) + client_id
        if request_header_version(api_key, version) == 2:
            header += b"\x00"
        return struct.pack(">i", len(header) + len(body)) + header + body

    def send(self, api_key: int, version: int, fields: dict[str, Any]) -> int:
        """Send a request without waiting; its correlation id."""
        self.writer.write(self.frame(api_key, version, encode_request_fields(api_key, version, fields)))
        return self._correlation_id

    async def receive_frame(self) -> tuple[int, bytes]:
        """Correlation id and the rest of the next answer."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            frame = await self.reader.readexactly(size)
        return struct.unpack(">i", frame[:4])[0], frame[4:]

    async def receive(self, api_key: int, version: int, correlation_id: int | None = None) -> Any:
        """Return the next answer, decoded; it must be of the expected request and hold nothing else."""
        found, body = await self.receive_frame()
        assert found == (self._correlation_id if correlation_id is None else correlation_id)
        if response_header_version(api_key, version):
            assert body[:1] == b"\x00"
            body = body[1:]
        response, size = entity_reader(response_class(api_key, version))(body, 0)
        assert size == len(body)
        return response

    async def call(self, api_key: int, version: int, fields: dict[str, Any]) -> Any:
        """Send a request and wait for its answer."""
        correlation_id = self.send(api_key, version, fields)
        return await self.receive(api_key, version, correlation_id)

    async def is_closed(self) -> bool:
        """Wait until the broker has closed this connection."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    # Requests that many tests need

    async def create(self, name: str, partitions: int = 1, **configs: str) -> Any:
        """Create a topic (configs with underscores for dots); its result."""
        response = await self.call(
            CREATE_TOPICS,
            7,
            {
                "topics": [
                    {
                        "name": name,
                        "num_partitions": partitions,
                        "replication_factor": -1,
                        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
                    }
                ],
                "timeout_ms": 1000,
            },
        )
        return response.topics[0]

    async def produce(
        self,
        topic: str,
        values: Sequence[bytes],
        *,
        partition: int = 0,
        version: int = 12,
        acks: int = -1,
        **batch: Any,
    ) -> Any:
        """Produce one batch of records without keys; its partition's result."""
        response = await self.call(
            PRODUCE, version, produce_fields(topic, partition, batch_of(values, **batch), acks=acks)
        )
        return response.responses[0].partition_responses[0]


def batch_of(values: Sequence[bytes], *, timestamp: int | None = None, **batch: Any) -> bytes:
    """Return a batch as a producer sends it, stamped now unless told otherwise: an old producer is forgotten by a restart."""
    now = time.time_ns() // 1_000_000 if timestamp is None else timestamp
    return bytes(
        build_batch([Record(offset, now, None, value) for offset, value in enumerate(values)], base_offset=0, **batch)
    )


def produce_fields(topic: str, partition: int, records: bytes | None, *, acks: int = -1) -> dict[str, Any]:
    """Return a Produce request for one partition."""
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout_ms": 1000,
        "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": records}]}],
    }


def fetch_fields(
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    leader_epoch: int = -1,
) -> dict[str, Any]:
    """Return a Fetch request for one partition, up to version 12."""
    return {
        "replica_id": -1,
        "max_wait_ms": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [
            {
                "topic": topic,
                "partitions": [
                    {
                        "partition": partition,
                        "current_leader_epoch": leader_epoch,
                        "fetch_offset": offset,
                        "last_fetched_epoch": -1,
                        "log_start_offset": -1,
                        "partition_max_bytes": partition_max_bytes,
                    }
                ],
            }
        ],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
