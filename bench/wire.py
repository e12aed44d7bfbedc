"""Further figures over the wire, by the kinds of the comparison in docs/reference/measurements.md: cases of run.py."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import ParamSpec

from client import METADATA, Client, batches_of
from coordinators import cpu_seconds, resident_mb
from figure import Figure

from diamant.protocol.batches.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD
from diamant.protocol.batches.header import Record
from diamant.protocol.batches.records import build_batch

Arguments = ParamSpec("Arguments")

PRODUCE_SHAPES = ((1, 1, 100_000), (6, 1, 100_000), (6, 4, 100_000), (1, 1, 16_000))
"""Partitions, connections, bytes of a batch."""
TOTAL_BYTES = {1000: 300_000_000, 100: 100_000_000}
"""Of the values of a size."""
CODECS = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
CODEC_BATCHES = 500
WORDS = b"of a customer who moved to another town and has a new address "


def idle(process: subprocess.Popen[bytes]) -> Iterator[Figure]:
    """What a broker takes that nobody uses, and how quickly it ends."""
    time.sleep(2)
    yield Figure("RSS after 2 s idle", resident_mb(process.pid), "MB")
    cpu_s = cpu_seconds(process.pid)
    time.sleep(2)
    yield Figure("CPU while idle", (cpu_seconds(process.pid) - cpu_s) * 500, "ms/s")
    began = time.perf_counter()
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(60)
    yield Figure("SIGTERM to gone", (time.perf_counter() - began) * 1000, "ms")


def raw(port: int, pid: int) -> Iterator[Figure]:
    """Produce in several shapes, and read back, with the broker's processor time."""
    client = Client(port)
    for value_bytes, total_bytes in TOTAL_BYTES.items():
        for partitions, connections, batch_bytes in PRODUCE_SHAPES:
            name = f"{value_bytes} B, {partitions} p, {connections} conn, {batch_bytes // 1000} kB batches"
            topic = name.replace(", ", "-").replace(" ", "")
            client.create(topic, partitions)
            batches = batches_of(value_bytes, total_bytes // value_bytes, batch_bytes)
            client.produce(topic, batches[: len(batches) // 4], partitions)
            yield from timed(
                f"produce {name}", pid, total_bytes, _in_threads, port, topic, batches, partitions, connections
            )
        for partitions in (1, 6):
            topic = f"read-{value_bytes}-{partitions}"
            client.create(topic, partitions)
            batches = batches_of(value_bytes, total_bytes // value_bytes)
            batches = batches[: len(batches) // partitions * partitions]
            client.produce(topic, batches, partitions)
            per_batch = total_bytes // value_bytes // (total_bytes // 100_000)
            end = len(batches) // partitions * per_batch
            yield from timed(
                f"consume {value_bytes} B, {partitions} p",
                pid,
                len(batches) * per_batch * value_bytes,
                _read,
                client,
                topic,
                end,
                partitions,
            )
    yield Figure("RSS after it all", resident_mb(pid), "MB")


def codecs(port: int, pid: int) -> Iterator[Figure]:
    """Produce keyed messages of 178 bytes, a codec each, to a topic that is compacted and to one that is not."""
    client = Client(port)
    values = [WORDS + os.urandom(50).hex().encode() for _ in range(500)]
    records = [Record(n, 0, b"key-%012d" % n, value) for n, value in enumerate(values)]
    client.create("warm")
    client.produce("warm", [bytes(build_batch(records, base_offset=0))] * 2 * CODEC_BATCHES)
    for name, codec in CODECS.items():
        batch = bytes(build_batch(records, base_offset=0, codec=codec))
        size = sum(len(one.key or b"") + len(one.value or b"") for one in records) * CODEC_BATCHES
        for kind, policy in (("plain", "delete"), ("compacted", "compact")):
            client.create(f"{name}-{kind}", cleanup_policy=policy)
            client.produce(f"{name}-{kind}", [batch] * (CODEC_BATCHES // 4))
            yield from timed(
                f"{name}, {kind} topic", pid, size, client.produce, f"{name}-{kind}", [batch] * CODEC_BATCHES
            )


def connections(port: int, pid: int) -> Iterator[Figure]:
    """One message at a time beside connections that are silent."""
    client = Client(port)
    client.create("single")
    batch = batches_of(100, 1)
    client.produce("single", batch * 1000)
    waiting: list[Client] = []
    for count in (0, 200, 1000):
        began, before = time.perf_counter(), len(waiting)
        while len(waiting) < count:
            waiting.append(Client(port))
            waiting[-1].call(METADATA, {"topics": []})
        if count:
            took_ms = (time.perf_counter() - began) * 1000
            yield Figure(f"{count} idle: connect and first answer, each", took_ms / (count - before), "ms")
        took = []
        for _ in range(2000):
            began = time.perf_counter()
            client.produce("single", batch)
            took.append((time.perf_counter() - began) * 1000)
        cuts = statistics.quantiles(took, n=100)
        yield Figure(f"{count} idle: one message at a time p50", cuts[49], "ms")
        yield Figure(f"{count} idle: one message at a time p99", cuts[98], "ms")
        yield Figure(f"{count} idle: RSS", resident_mb(pid), "MB")


def timed(
    name: str,
    pid: int,
    size: int,
    work: Callable[Arguments, object],
    *args: Arguments.args,
    **options: Arguments.kwargs,
) -> Iterator[Figure]:
    """Work through so many bytes, with the broker's processor time."""
    cpu_s, began = cpu_seconds(pid), time.perf_counter()
    work(*args, **options)
    took_s = time.perf_counter() - began
    yield Figure(name, size / 1e6 / took_s, "MB/s")
    yield Figure(f"{name}: broker CPU", (cpu_seconds(pid) - cpu_s) / (size / 1e9), "s/GB")


def _read(client: Client, topic: str, end: int, partitions: int) -> None:
    for _ in client.fetch_all(topic, end, partitions):
        pass


def _in_threads(port: int, topic: str, batches: Sequence[bytes], partitions: int, connections: int) -> None:
    threads = [
        threading.Thread(target=Client(port).produce, args=(topic, batches[number::connections], partitions))
        for number in range(connections)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
