"""How long compact-and-wait takes on a topic of 10,000 records, a topic for each shape, after a first one.

The records are appended within the broker, and no time is left for a worker process to get ready before the call.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from figure import Figure

from diamant import Broker
from diamant.broker.topics.creation import create_topics
from diamant.broker.topics.creation_checks import check_new_topic
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.compression import CODEC_NAMES
from diamant.protocol.batches.header import Record

RECORDS, PER_KEY = 10_000, 10
VALUE_BYTES = 100
WORDS = [bytes(random.Random(number).choices(b"abcdefghijklmnopqrstuvwxyz", k=7)) for number in range(500)]


class Shape(NamedTuple):
    """How the records are written."""

    batch_records: int
    codec: str = "none"
    is_mixed: bool = False
    """Keys are written in any order, so that some of a batch stays; else one after the other, and a batch stays or goes."""

    def __str__(self) -> str:
        return f"{self.batch_records} a batch, {self.codec}" + ", mixed" * self.is_mixed


SHAPES = (
    Shape(100),
    *(Shape(count, codec) for count in (1, 2, 10) for codec in CODEC_NAMES),
    *(Shape(count, codec, is_mixed=True) for count in (10, 100) for codec in CODEC_NAMES),
)


def compact_and_wait(directory: Path, scale: float) -> Iterator[Figure]:
    """The time of each call, in both modes."""
    records = max(100, int(RECORDS * scale))
    written = [(shape, batches_of(shape, records)) for shape in SHAPES]
    gc.freeze()  # A collection of these batches takes 30 ms, and falls on any topic.
    for mode in ("prompt", "kafka"):
        yield from asyncio.run(_measured(directory / mode, mode, written, records))


async def _measured(
    directory: Path, mode: str, written: list[tuple[Shape, list[bytearray]]], records: int
) -> list[Figure]:
    figures = []
    properties = {"diamant.cleaner.mode": mode, "log.cleaner.enable": "false"}
    async with Broker(listen="127.0.0.1:0", data_dir=str(directory), properties=properties) as broker:
        for number, (shape, batches) in enumerate([written[0], *written]):
            topic = f"t{number}"
            await fill(broker, topic, batches)
            began = time.perf_counter()
            report = await broker.compact(topic)
            took_ms = (time.perf_counter() - began) * 1000
            assert report.removed == {"superseded": records - records // PER_KEY}
            figures.append(Figure(f"{mode}, {shape}", took_ms, "ms"))
    return figures[1:]


def batches_of(shape: Shape, records: int) -> list[bytearray]:
    """Return batches with `PER_KEY` records for each key."""
    now_ms, codec = time.time_ns() // 1_000_000, CODEC_NAMES.index(shape.codec)
    keys = [offset % (records // PER_KEY) for offset in range(records)]
    if shape.is_mixed:
        random.Random(1).shuffle(keys)
    values = [text(number) for number in range(records)]
    return [
        build_batch(
            [
                Record(offset - first, now_ms, b"key-%d" % keys[offset], values[offset])
                for offset in range(first, min(first + shape.batch_records, records))
            ],
            base_offset=0,
            codec=codec,
        )
        for first in range(0, records, shape.batch_records)
    ]


async def fill(broker: Broker, name: str, batches: list[bytearray]) -> None:
    """Make a compacted topic, and write to it."""
    new = check_new_topic(broker.node.topics, name, 1, 1, None, {"cleanup.policy": "compact"})
    await create_topics(broker.node.topics, [new])
    log = broker.node.topics.log(name, 0)
    for batch in batches:
        log.append_internal(bytearray(batch))
    broker.node.log_events.changed(log)


def text(number: int) -> bytes:
    """Return a value of words."""
    return b" ".join(random.Random(number).choices(WORDS, k=VALUE_BYTES // 8 + 1))[:VALUE_BYTES]
