"""Compacted topics: records of keys, as they are written and read, and the checkpoint of their cleaner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from diamant.broker.config.broker_config import BrokerConfig
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import build_batch, iter_records
from diamant.protocol.batches.header import Record
from diamant.protocol.errors import ErrorCode
from diamant.storage.checkpoints.checkpoints import read_offset_checkpoint
from diamant.storage.env.env import RealEnv
from tests.broker.fetching import fetch
from tests.broker.wire import PRODUCE, WireClient, produce_fields

START_MS = 1_700_000_000_000
SMALL = {"cleanup_policy": "compact", "internal_segment_bytes": "1000", "min_cleanable_dirty_ratio": "0"}


def config(path: Path, **kafka_names: object) -> BrokerConfig:
    """Return a broker's configuration with a free port."""
    return BrokerConfig(listen="127.0.0.1:0", data_dir=path, **kafka_names)


def keyed(words: Sequence[str], timestamp: int) -> bytes:
    """Return a batch of records from "key=value"."""
    records = []
    for offset, word in enumerate(words):
        key, _, value = word.partition("=")
        records.append(Record(offset, timestamp, key.encode(), value.encode() or None))
    return bytes(build_batch(records, base_offset=0))


async def produce(wire: WireClient, topic: str, *words: str, timestamp: int = START_MS, partition: int = 0) -> int:
    """Produce one batch; return its base offset."""
    response = await wire.call(PRODUCE, 12, produce_fields(topic, partition, keyed(words, timestamp)))
    result = response.responses[0].partition_responses[0]
    assert result.error_code == ErrorCode.NONE
    return int(result.base_offset)


async def fill(
    wire: WireClient, topic: str, count: int, *, keys: int = 10, start: int = 0, timestamp: int = START_MS
) -> dict[str, str]:
    """Produce `count` batches of one record; return the last value of each key."""
    last = {}
    for index in range(start, start + count):
        key, value = f"k{index % keys}", f"v{index}-" + "x" * 50
        await produce(wire, topic, f"{key}={value}", timestamp=timestamp)
        last[key] = value
    return last


async def read(wire: WireClient, topic: str, offset: int = 0) -> list[tuple[int, str, str]]:
    """Return (offset, key, value) of everything from `offset` on, read as a consumer does."""
    found: list[tuple[int, str, str]] = []
    while True:
        answer = await fetch(wire, topic, offset)
        assert answer.error_code == ErrorCode.NONE
        blob = bytes(answer.records or b"")
        batches = list(iter_headers(blob))
        if not batches:
            return found
        for position, _ in batches:
            found += [
                (record.offset, (record.key or b"").decode(), (record.value or b"").decode())
                for record in iter_records(blob, position)
                if record.offset >= offset
            ]
        offset = batches[-1][1].next_offset


def checkpoint(path: Path) -> dict[tuple[str, int], int]:
    """Return the content of the cleaner's checkpoint file."""
    return read_offset_checkpoint(RealEnv(), f"{path}/cleaner-offset-checkpoint")
