"""Long checks of batches and long searches run in a thread, in order, while other clients are served."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.protocol.batches import compression
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.protocol.batches.validation import WalkOutcome, walk_records
from diamant.protocol.errors import ErrorCode
from diamant.storage.log.append_checks import LIGHT_DECOMPRESSED_BYTES, LIGHT_RECORDS
from tests.broker.handlers.data.test_produce_errors import altered
from tests.broker.request_fields import list_offsets
from tests.broker.wire import (
    DELETE_TOPICS,
    FETCH,
    LIST_OFFSETS,
    PRODUCE,
    WireClient,
    batch_of,
    fetch_fields,
    produce_fields,
)
from tests.waiting import PATIENCE_S

BOMB_LIKE = [bytes(LIGHT_DECOMPRESSED_BYTES + 1)]
MANY = [b"x"] * (LIGHT_RECORDS + 1)


class BlockedWalk:
    """A walk over records that blocks on large batches until released."""

    def __init__(self, broker: Broker) -> None:
        self.has_begun = threading.Event()
        self.may_end = threading.Event()
        broker.node.directory.validation.walk = self
        broker.node.directory.validation.is_slow = True

    def __call__(self, payload: bytes | memoryview, record_count: int, base_timestamp: int) -> WalkOutcome:
        """Walk; for a large batch only once `may_end` is set."""
        if record_count > 100 or len(payload) > 100_000:
            self.has_begun.set()
            assert self.may_end.wait(PATIENCE_S)
        return walk_records(payload, record_count, base_timestamp)


@pytest.mark.parametrize(
    ("values", "codec"),
    [(MANY, compression.NONE), (MANY, compression.ZSTD), (BOMB_LIKE, compression.GZIP)],
    ids=["many records", "many compressed records", "small but large decompressed"],
)
async def test_a_heavy_batch_holds_up_only_its_own_connection(
    broker: Broker, wire: WireClient, values: list[bytes], codec: int
) -> None:
    """During its check, other connections produce; later requests on its connection wait."""
    await wire.create("t", max_message_bytes="10000000")
    walk = BlockedWalk(broker)
    first = wire.send(PRODUCE, 12, produce_fields("t", 0, batch_of(values, codec=codec)))
    second = wire.send(PRODUCE, 12, produce_fields("t", 0, batch_of([b"behind"])))
    async with WireClient(broker.bootstrap_servers) as other:
        while not walk.has_begun.is_set():
            await other.produce("t", [b"other"])
        ahead = (await other.produce("t", [b"last of the others"])).base_offset
        walk.may_end.set()
    heavy = (await wire.receive(PRODUCE, 12, first)).responses[0].partition_responses[0]
    behind = (await wire.receive(PRODUCE, 12, second)).responses[0].partition_responses[0]
    assert (heavy.error_code, heavy.base_offset) == (0, ahead + 1)
    assert (behind.error_code, behind.base_offset) == (0, ahead + 1 + len(values))


async def test_batches_after_a_heavy_one_of_the_same_request_keep_their_order(broker: Broker, wire: WireClient) -> None:
    """Two batches for one partition in one request are appended in order."""
    broker.node.directory.validation.is_slow = True
    await wire.create("t")
    fields = produce_fields("t", 0, batch_of(MANY))
    fields["topic_data"].append(produce_fields("t", 0, batch_of([b"second"]))["topic_data"][0])
    response = await wire.call(PRODUCE, 12, fields)
    results = [topic.partition_responses[0] for topic in response.responses]
    assert [(result.error_code, result.base_offset) for result in results] == [(0, 0), (0, len(MANY))]


async def test_a_corrupt_heavy_batch_is_refused(broker: Broker, wire: WireClient) -> None:
    """Errors found by the thread are answered like all others, and nothing is stored."""
    broker.node.directory.validation.is_slow = True
    await wire.create("t")
    batch = bytearray(batch_of(MANY))
    batch[-1] ^= 1
    result = (await wire.call(PRODUCE, 12, produce_fields("t", 0, bytes(batch)))).responses[0].partition_responses[0]
    assert result.error_code == ErrorCode.CORRUPT_MESSAGE
    assert (await wire.produce("t", [b"first"])).base_offset == 0


async def test_a_topic_deleted_while_its_batch_is_checked(broker: Broker, wire: WireClient) -> None:
    """The batch gets UNKNOWN_TOPIC_OR_PARTITION, as if it had arrived after the deletion."""
    await wire.create("t")
    walk = BlockedWalk(broker)
    wire.send(PRODUCE, 12, produce_fields("t", 0, batch_of(MANY)))
    async with WireClient(broker.bootstrap_servers) as other:
        while not walk.has_begun.is_set():
            await other.call(FETCH, 12, fetch_fields("t", 0))
        await other.call(DELETE_TOPICS, 5, {"topic_names": ["t"], "timeout_ms": 1000})
        walk.may_end.set()
    result = (await wire.receive(PRODUCE, 12)).responses[0].partition_responses[0]
    assert result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_heavy_batches_are_recompressed_and_stamped(wire: WireClient) -> None:
    """compression.type and LogAppendTime apply to batches checked in a thread, too."""
    await wire.create("t", compression_type="zstd", message_timestamp_type="LogAppendTime")
    before_ms = time.time_ns() // 1_000_000
    assert (await wire.produce("t", MANY, timestamp=before_ms - 1000)).error_code == 0
    fetched = (await wire.call(FETCH, 12, fetch_fields("t", 0))).responses[0].partitions[0]
    assert fetched.records[22] & 0x0F == 0x08 | compression.ZSTD
    assert int.from_bytes(fetched.records[35:43], "big") >= before_ms


async def test_header_validation_stores_what_full_validation_refuses(tmp_path: Path) -> None:
    """`diamant.produce.validation=header` checks only CRC and header, but still the records of compacted topics."""
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path, properties={"diamant.produce.validation": "header"})
    malformed = altered(61, b"\x01")
    async with Broker(config) as broker, WireClient(broker.bootstrap_servers) as wire:
        await wire.create("plain")
        await wire.create("compacted", cleanup_policy="compact")
        codes = []
        for topic in ("plain", "compacted"):
            response = await wire.call(PRODUCE, 12, produce_fields(topic, 0, malformed))
            codes.append(response.responses[0].partition_responses[0].error_code)
        assert codes == [0, ErrorCode.INVALID_RECORD]
        corrupt = (await wire.call(PRODUCE, 12, produce_fields("plain", 0, malformed[:-1] + b"!"))).responses[0]
        assert corrupt.partition_responses[0].error_code == ErrorCode.CORRUPT_MESSAGE


async def test_a_large_batch_is_searched_for_a_time_in_a_thread(wire: WireClient) -> None:
    """ListOffsets by time and by maximum time finds records in batches too large to decode on the loop."""
    await wire.create("t")
    now = time.time_ns() // 1_000_000
    records = [Record(number, now + number, None, b"v") for number in range(5000)]
    batch = bytes(build_batch(records, base_offset=0, codec=compression.GZIP))
    response = await wire.call(PRODUCE, 12, produce_fields("t", 0, batch))
    assert response.responses[0].partition_responses[0].error_code == 0

    async def offset_at(timestamp: int) -> tuple[Any, Any, Any]:
        response = await wire.call(LIST_OFFSETS, 7, list_offsets("t", 0, timestamp))
        found = response.topics[0].partitions[0]
        return int(found.error_code), found.offset, int(found.timestamp)

    assert await offset_at(now + 4321) == (0, 4321, now + 4321)
    assert await offset_at(-3) == (0, 4999, now + 4999)
    assert await offset_at(now + 5000) == (0, -1, -1)


async def test_acks_0_with_a_heavy_batch(wire: WireClient, broker: Broker) -> None:
    """No answer if it was stored; a refused one closes the connection."""
    await wire.create("t")
    wire.send(PRODUCE, 12, produce_fields("t", 0, batch_of(MANY), acks=0))
    assert (await wire.produce("t", [b"behind"])).base_offset == len(MANY)
    batch = bytearray(batch_of(MANY))
    batch[-1] ^= 1
    wire.send(PRODUCE, 12, produce_fields("t", 0, bytes(batch), acks=0))
    assert await wire.is_closed()
