"""How long compact-and-wait takes on a topic of 10,000 records: a new broker for each shape, several topics after each other.

python bench/compact_on_demand.py [TOPICS]

The records are appended within the broker, and no time is left for a worker process to get ready before the call.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time

from diamant import Broker, BrokerConfig
from diamant.protocol.records import Record, build_batch

RECORDS = 10_000
KEYS = 1_000
SHAPES = ((20, 100), (100, 100), (400, 100), (100, 1))
"""Bytes of a value, records of a batch."""


async def main(topics: int) -> None:
    """Print a line for each shape and mode."""
    for mode in ("prompt", "kafka"):
        for value_bytes, batch_records in SHAPES:
            times_ms, runners = await measure(mode, value_bytes, batch_records, topics)
            print(
                f"{mode:6} {value_bytes:4} bytes, {batch_records:3} a batch: first {times_ms[0]:6.1f} ms, then median "
                f"{statistics.median(times_ms[1:]):6.1f}, worst {max(times_ms[1:]):6.1f} ms   {' '.join(runners)}",
                flush=True,
            )


async def measure(mode: str, value_bytes: int, batch_records: int, topics: int) -> tuple[list[float], list[str]]:
    """The times of the calls, and who did the rounds."""
    times_ms, runners = [], []
    with tempfile.TemporaryDirectory() as directory:
        properties = {"diamant.cleaner.mode": mode, "log.cleaner.enable": "false"}
        config = BrokerConfig(listen="127.0.0.1:0", data_dir=directory, properties=properties)
        async with Broker(config) as broker:
            for index in range(topics):
                name = f"t{index}"
                new = broker.topics.check_new(name, 1, 1, None, {"cleanup.policy": "compact"})
                await broker.topics.create([new])
                log = broker.topics.log(name, 0)
                now_ms = time.time_ns() // 1_000_000
                for first in range(0, RECORDS, batch_records):
                    offsets = range(first, first + batch_records)
                    records = [
                        Record(offset - first, now_ms, b"key-%d" % (offset % KEYS), bytes(value_bytes))
                        for offset in offsets
                    ]
                    log.append_internal(build_batch(records, base_offset=0))
                broker.log_changed(log)
                start_s = time.perf_counter()
                report = await broker.compact(name)
                times_ms.append((time.perf_counter() - start_s) * 1000)
                assert report.removed == {"superseded": RECORDS - KEYS}
                runners += report.partitions[0].runners
    return times_ms, runners


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 6))
