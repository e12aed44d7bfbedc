"""How long compact-and-wait takes on a topic of 10,000 records: a new broker for each shape, several topics after each other.

python bench/compact_on_demand.py [TOPICS]

The records are appended within the broker, and no time is left for a worker process to get ready before the call.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
import time
from typing import NamedTuple

from diamant import Broker, BrokerConfig
from diamant.broker.topics.creation import create_topics
from diamant.broker.topics.creation_checks import check_new_topic
from diamant.protocol.batches.compression import CODEC_NAMES
from diamant.protocol.batches.header import Header, Record
from diamant.protocol.batches.records import build_batch

RECORDS = 10_000
KEYS = 1_000
WORDS = [bytes(random.Random(number).choices(b"abcdefghijklmnopqrstuvwxyz", k=7)) for number in range(500)]
HEADERS = (Header("trace-id", b"0123456789abcdef"), Header("source", b"shop"))


class Shape(NamedTuple):
    """How the records are written."""

    value_bytes: int
    batch_records: int
    codec: str = "none"
    has_headers: bool = False
    is_mixed: bool = False
    """Keys are written in any order, so that some of a batch stays; else one after the other, and a batch stays or goes."""

    def __str__(self) -> str:
        more = ", headers" * self.has_headers + ", mixed" * self.is_mixed
        return f"{self.value_bytes} bytes, {self.batch_records} a batch, {self.codec}{more}"


SHAPES = (
    Shape(20, 100),
    Shape(100, 100),
    Shape(400, 100),
    *(Shape(100, 1, codec) for codec in CODEC_NAMES),
    Shape(100, 1, has_headers=True),
    *(Shape(100, 2, codec) for codec in CODEC_NAMES),
    *(Shape(100, 10, codec) for codec in CODEC_NAMES),
    *(Shape(100, 10, codec, is_mixed=True) for codec in CODEC_NAMES),
    *(Shape(100, 100, codec, is_mixed=True) for codec in CODEC_NAMES),
)


async def main(topics: int) -> None:
    """Print a line for each shape and mode."""
    for mode in ("prompt", "kafka"):
        for shape in SHAPES:
            times_ms, cpu_ms, runners = await measure(mode, shape, topics)
            print(
                f"{mode:6} {shape!s:41} first {times_ms[0]:6.1f} ms, then median {statistics.median(times_ms[1:]):6.1f}, "
                f"worst {max(times_ms[1:]):6.1f} ms; processor time {statistics.median(cpu_ms[1:]):6.1f} ms   "
                f"{' '.join(sorted(set(runners)))}",
                flush=True,
            )


async def measure(mode: str, shape: Shape, topics: int) -> tuple[list[float], list[float], list[str]]:
    """The times of the calls, the processor time of this process for each, and who did the rounds."""
    times_ms: list[float] = []
    cpu_ms: list[float] = []
    runners: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        properties = {"diamant.cleaner.mode": mode, "log.cleaner.enable": "false"}
        config = BrokerConfig(listen="127.0.0.1:0", data_dir=directory, properties=properties)
        async with Broker(config) as broker:
            for index in range(topics):
                name = f"t{index}"
                await fill(broker, name, shape)
                start_s, start_cpu_s = time.perf_counter(), time.process_time()
                report = await broker.compact(name)
                times_ms.append((time.perf_counter() - start_s) * 1000)
                cpu_ms.append((time.process_time() - start_cpu_s) * 1000)
                assert report.removed == {"superseded": RECORDS - KEYS}
                runners += report.partitions[0].runners
    return times_ms, cpu_ms, runners


async def fill(broker: Broker, name: str, shape: Shape) -> None:
    """Make a topic, and write to it."""
    new = check_new_topic(broker.node.topics, name, 1, 1, None, {"cleanup.policy": "compact"})
    await create_topics(broker.node.topics, [new])
    log = broker.node.topics.log(name, 0)
    now_ms = time.time_ns() // 1_000_000
    headers, codec = HEADERS if shape.has_headers else (), CODEC_NAMES.index(shape.codec)
    keys = [offset % KEYS for offset in range(RECORDS)]
    if shape.is_mixed:
        random.Random(1).shuffle(keys)
    for first in range(0, RECORDS, shape.batch_records):
        records = [
            Record(offset - first, now_ms, b"key-%d" % keys[offset], text(offset, shape.value_bytes), headers)
            for offset in range(first, first + shape.batch_records)
        ]
        log.append_internal(build_batch(records, base_offset=0, codec=codec))
    broker.node.log_events.changed(log)


def text(number: int, size: int) -> bytes:
    """Return so many bytes of words."""
    return b" ".join(random.Random(number).choices(WORDS, k=size // 8 + 1))[:size]


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 6))
