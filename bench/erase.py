"""How long it takes to erase one key of a large topic, stage by stage, and how fast the certifying scan reads.

python bench/erase.py --gb 10 --directory /var/tmp
python bench/erase.py --gb 1 --codec zstd --directory /var/tmp

A broker in this process gets one compacted topic of one partition: values of 100 B to 1 KB, every key once, batches of 16 KB,
segments of 1 GiB, cleaned twice so that each segment has its filter of keys. Then, once the files are deleted that these cleans
have replaced, some of its keys are erased one by one. (What waits to be deleted, for `file.delete.delay.ms`, has no filters, and
an erase reads it: `--at-once` shows what that takes.) `--directory` needs three times the room of what is written; everything in
it is removed in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable

import crc32c
from figure import Figure

from diamant import Broker, BrokerConfig
from diamant.broker.operations.progress import Progress
from diamant.broker.topics.creation import create_topics
from diamant.broker.topics.creation_checks import check_new_topic
from diamant.protocol.batches.compression import CODEC_NAMES
from diamant.protocol.batches.header import Record
from diamant.protocol.batches.records import build_batch
from diamant.storage.names import DELETED_SUFFIX

TOPIC = "users"
DIGITS = 10
PLACE = b"#" * DIGITS
TEMPLATES = 64
BATCH_BYTES = 16 * 1024
SEGMENT_BYTES = 1 << 30
WORDS = [bytes(random.Random(number).choices(b"abcdefghijklmnopqrstuvwxyz ", k=9)) for number in range(2000)]


class Template:
    """A batch with room for numbers in its keys and values."""

    def __init__(self, rng: random.Random, now_ms: int) -> None:
        size = 0
        records: list[Record] = []
        while size < BATCH_BYTES:
            text = b'{"customer": "%s", "about": "%s"}' % (PLACE, b" ".join(rng.choices(WORDS, k=rng.randrange(6, 98))))
            records.append(Record(len(records), now_ms, b"customer-" + PLACE, text))
            size += len(text) + 30
        self.batch = build_batch(records)
        self.count = len(records)
        self.places, at = [], 0
        while (at := self.batch.find(PLACE, at)) >= 0:
            self.places.append(at)
            at += DIGITS

    def with_numbers(self, first: int) -> bytearray:
        """Return the batch with keys from `first` on."""
        batch = bytearray(self.batch)
        for index in range(self.count):
            digits = b"%0*d" % (DIGITS, first + index)
            for at in self.places[2 * index : 2 * index + 2]:
                batch[at : at + DIGITS] = digits
        batch[17:21] = crc32c.crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
        return batch


def key_of(number: int) -> bytes:
    """Return the key with a number."""
    return b"customer-%0*d" % (DIGITS, number)


async def fill(broker: Broker, size: int, codec: int) -> int:
    """Append batches until the log has `size` bytes; return the number of keys."""
    rng, now_ms = random.Random(1), time.time_ns() // 1_000_000
    templates = [Template(rng, now_ms) for _ in range(TEMPLATES)]
    log = broker.node.topics.log(TOPIC, 0)
    count = written = 0
    while written < size:
        template = templates[rng.randrange(TEMPLATES)]
        batch = template.with_numbers(count)
        if codec:
            batch = _packed(batch, codec)
        log.append_internal(batch)
        count += template.count
        written += len(batch)
        if count % 5000 < template.count:
            await asyncio.sleep(0)
    broker.node.log_events.changed(log)
    return count


def _packed(batch: bytearray, codec: int) -> bytearray:
    from diamant.protocol.batches.records import iter_records

    return build_batch([record for record in iter_records(batch)], codec=codec)


class Stages(Progress):
    """When each stage began."""

    def __init__(self) -> None:
        super().__init__()
        self.began: list[tuple[str, float]] = []

    def begin(
        self,
        stage: str,
        total: int | None = None,
        unit: str = "",
        *,
        measure: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        self.began.append((stage, time.perf_counter()))
        super().begin(stage, total, unit, measure=measure)

    def seconds(self, end_s: float) -> list[tuple[str, float]]:
        """Return each stage's time."""
        ends = [began for _, began in self.began[1:]] + [end_s]
        return [(stage, end - began) for (stage, began), end in zip(self.began, ends, strict=True)]


async def measure(directory: str, size: int, codec: int, keys: int, *, is_at_once: bool) -> list[list[Figure]]:
    """Make the topic, erase keys of it one by one, and return what each took."""
    properties = {
        "diamant.cleaner.mode": "prompt",
        "diamant.certificate.key.file": f"{directory}/keys/certificate.key",
        "log.cleaner.enable": "false",
    }
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=f"{directory}/data", properties=properties)
    async with Broker(config) as broker:
        options = {"cleanup.policy": "compact", "segment.bytes": str(SEGMENT_BYTES)}
        await create_topics(broker.node.topics, [check_new_topic(broker.node.topics, TOPIC, 1, 1, None, options)])
        start_s = time.perf_counter()
        count = await fill(broker, size, codec)
        print(f"{count:,} records written in {time.perf_counter() - start_s:.0f} s", file=sys.stderr, flush=True)
        start_s = time.perf_counter()
        await broker.compact(TOPIC, timeout_ms=3_600_000)
        # Filters are made by rounds in which most of the log is clean already.
        log = broker.node.topics.log(TOPIC, 0)
        log.append_internal(build_batch([Record(0, time.time_ns() // 1_000_000, b"one more", b"value")]))
        broker.node.log_events.changed(log)
        await broker.compact(TOPIC, timeout_ms=3_600_000)
        cleaned_s = time.perf_counter() - start_s
        stored = sum(segment.size for segment in log.segments)
        while not is_at_once and waiting_bytes(log.path):  # noqa: ASYNC110  (nobody tells of a file that is gone)
            await asyncio.sleep(1)
        found = [
            [
                Figure("records", count, ""),
                Figure("stored", stored / 1e9, "GB"),
                Figure("waiting to be deleted", waiting_bytes(log.path) / 1e9, "GB"),
                Figure("first two cleans", cleaned_s, "s"),
            ]
        ]
        for index in range(keys):
            found.append(await erase_one(broker, key_of(count * (index + 1) // (keys + 1))))
    return found


def waiting_bytes(directory: str) -> int:
    """Return how much there is of files that wait to be deleted."""
    with os.scandir(directory) as entries:
        return sum(entry.stat().st_size for entry in entries if entry.name.endswith(DELETED_SUFFIX))


async def erase_one(broker: Broker, key: bytes) -> list[Figure]:
    """Erase a key, and return what it took."""
    stages = Stages()
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    erasure = await broker.erase(key, [TOPIC], reason="benchmark", progress=stages)
    end_s, end_cpu_s = time.perf_counter(), time.process_time()
    assert erasure.state == "values-gone", erasure.certificate["not_certified"]
    coverage = erasure.certificate["coverage"]
    assert erasure.certificate["found"][0]["values"] == 1
    figures = [
        *(Figure(stage, seconds, "s") for stage, seconds in stages.seconds(end_s)),
        Figure("until the scan", stages.began[-1][1] - start_s, "s"),
        Figure("scan alone", coverage["duration_ms"] / 1000, "s"),
        Figure(f"scan, {coverage['engine']}", coverage["bytes"] / coverage["duration_ms"] / 1e6, "GB/s"),
        Figure("whole call", end_s - start_s, "s"),
        Figure("processor time of this process", end_cpu_s - start_cpu_s, "s"),
        Figure("peak resident memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MiB"),
    ]
    if coverage["decompressed_bytes"]:
        rate = coverage["decompressed_bytes"] / coverage["duration_ms"] / 1e6
        figures.append(Figure("scan, of decompressed records", rate, "GB/s"))
    return figures


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=10.0, help="how much to write, as it lies on the disk")
    parser.add_argument("--keys", type=int, default=3, help="how many keys are erased, one after another")
    parser.add_argument("--codec", default="none", choices=CODEC_NAMES)
    parser.add_argument("--directory", default=tempfile.gettempdir())
    parser.add_argument("--at-once", action="store_true", help="erase while what the cleans replaced is there still")
    options = parser.parse_args()
    os.makedirs(options.directory, exist_ok=True)
    free = os.statvfs(options.directory)
    if free.f_bavail * free.f_frsize < options.gb * 3e9 + 4e9:
        sys.exit(f"{options.directory}: there is not enough room for {options.gb} GB")
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        codec = list(CODEC_NAMES).index(options.codec)
        measuring = measure(directory, int(options.gb * 1e9), codec, options.keys, is_at_once=options.at_once)
        for figures in asyncio.run(measuring):
            for figure in figures:
                print(f"{figure.name:32} {figure.value:12,.2f} {figure.unit}")
            print()


if __name__ == "__main__":
    main()
