"""Measurements of any broker over the wire, with prebuilt batches."""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import ParamSpec

from client import METADATA, Client, batches_of
from figure import Figure
from processes import RunningBroker, cpu_seconds, resident_mb

from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD
from diamant.protocol.batches.header import Record

Arguments = ParamSpec("Arguments")

PRODUCE_SHAPES = ((1, 1, 100_000), (6, 1, 100_000), (6, 4, 100_000), (1, 1, 16_000))
"""Partitions, connections, bytes of a batch."""
TOTAL_BYTES = {1000: 300_000_000, 100: 100_000_000}
"""Of the values of a size."""
CODECS = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
CODEC_BATCHES = 500
WORDS = b"of a customer who moved to another town and has a new address "
IDLE_S = 2.0
_NUMBERS = itertools.count()
"""Of topics. The `id` of a client would not do: another may get its memory."""


def start(broker: RunningBroker) -> Iterator[Figure]:
    """A start until the first acknowledged batch, what the broker takes that nobody uses, and how quickly it ends."""
    client = Client(broker.port)
    client.create("first")
    client.produce("first", batches_of(100, 1))
    yield Figure("spawn to first acknowledged produce", (time.perf_counter() - broker.started_s) * 1000, "ms")
    idle_s = IDLE_S * min(1, broker.scale)
    time.sleep(idle_s)
    yield Figure(f"RSS after {idle_s:g} s idle", resident_mb(broker.pid), "MB")
    cpu_s = cpu_seconds(broker.pid)
    time.sleep(idle_s)
    yield Figure("CPU while idle", (cpu_seconds(broker.pid) - cpu_s) * 1000 / idle_s, "ms/s")
    began = time.perf_counter()
    broker.stop(signal.SIGTERM)
    yield Figure("SIGTERM to gone", (time.perf_counter() - began) * 1000, "ms")


def raw(broker: RunningBroker) -> Iterator[Figure]:
    """Produce in several shapes, and read back, with the broker's processor time."""
    client = Client(broker.port)
    for value_bytes, whole in TOTAL_BYTES.items():
        count = int(whole * broker.scale) // value_bytes
        for partitions, connections, batch_bytes in PRODUCE_SHAPES:
            name = f"{value_bytes} B, {partitions} p, {connections} conn, {batch_bytes // 1000} kB batches"
            topic = name.replace(", ", "-").replace(" ", "")
            client.create(topic, partitions)
            batches = batches_of(value_bytes, count, batch_bytes)
            client.produce(topic, batches[: len(batches) // 4], partitions)
            name, size = f"produce {name}", count * value_bytes
            yield from timed(name, broker, size, _in_threads, broker.port, topic, batches, partitions, connections)
        for partitions in (1, 6):
            topic = f"read-{value_bytes}-{partitions}"
            client.create(topic, partitions)
            batches = batches_of(value_bytes, count)
            each = max(1, len(batches) // partitions)
            client.produce(topic, (batches * partitions)[: each * partitions], partitions)
            end = each * next(iter_headers(batches[0]))[1].record_count
            size = end * partitions * value_bytes
            name = f"consume {value_bytes} B, {partitions} p"
            yield from timed(name, broker, size, read_all, client, topic, end, partitions)
    yield Figure("RSS after it all", resident_mb(broker.pid), "MB")


def codecs(broker: RunningBroker) -> Iterator[Figure]:
    """Produce keyed messages of 178 bytes, a codec each, to a topic that is compacted and to one that is not."""
    client = Client(broker.port)
    values = [WORDS + os.urandom(50).hex().encode() for _ in range(500)]
    records = [Record(n, 0, b"key-%012d" % n, value) for n, value in enumerate(values)]
    count = max(4, int(CODEC_BATCHES * broker.scale))
    size = sum(len(one.key or b"") + len(one.value or b"") for one in records) * count
    client.create("warm")
    client.produce("warm", [bytes(build_batch(records, base_offset=0))] * 2 * count)
    for name, codec in CODECS.items():
        batch = bytes(build_batch(records, base_offset=0, codec=codec))
        for kind, policy in (("plain", "delete"), ("compacted", "compact")):
            topic = f"{name}-{kind}"
            client.create(topic, cleanup_policy=policy)
            client.produce(topic, [batch] * (count // 4))
            yield from timed(f"{name}, {kind} topic", broker, size, client.produce, topic, [batch] * count)


def latency(broker: RunningBroker) -> Iterator[Figure]:
    """One message at a time."""
    took_ms = _one_at_a_time(Client(broker.port), broker.scale, 5000)
    cuts = statistics.quantiles(took_ms, n=1000)
    for name, at in (("p50", 499), ("p99", 989), ("p999", 998)):
        yield Figure(f"one message at a time {name}", cuts[at], "ms")


def connections(broker: RunningBroker) -> Iterator[Figure]:
    """One message at a time beside connections that are silent."""
    waiting: list[Client] = []
    for count in sorted({int(whole * min(1, broker.scale)) for whole in (0, 200, 1000)}):
        began, before = time.perf_counter(), len(waiting)
        while len(waiting) < count:
            waiting.append(Client(broker.port))
            waiting[-1].call(METADATA, {"topics": []})
        if count:
            took_ms = (time.perf_counter() - began) * 1000
            yield Figure(f"{count} idle: connect and first answer, each", took_ms / (count - before), "ms")
        cuts = statistics.quantiles(_one_at_a_time(Client(broker.port), broker.scale, 2000), n=100)
        yield Figure(f"{count} idle: one message at a time p50", cuts[49], "ms")
        yield Figure(f"{count} idle: one message at a time p99", cuts[98], "ms")
        yield Figure(f"{count} idle: RSS", resident_mb(broker.pid), "MB")


def timed(
    name: str,
    broker: RunningBroker,
    size: int,
    work: Callable[Arguments, object],
    *args: Arguments.args,
    **options: Arguments.kwargs,
) -> Iterator[Figure]:
    """Work through so many bytes, with the broker's processor time."""
    cpu_s, began = cpu_seconds(broker.pid), time.perf_counter()
    work(*args, **options)
    took_s = time.perf_counter() - began
    yield Figure(name, size / 1e6 / took_s, "MB/s")
    yield Figure(f"{name}: broker CPU", (cpu_seconds(broker.pid) - cpu_s) / (size / 1e9), "s/GB")


def read_all(client: Client, topic: str, end: int, partitions: int = 1) -> None:
    """Read record sets up to offset `end` of each partition, and drop them."""
    for _ in client.fetch_all(topic, end, partitions):
        pass


def _one_at_a_time(client: Client, scale: float, whole: int) -> list[float]:
    """How many milliseconds each of some messages takes, after a fifth as many more."""
    topic, batch, count = f"single-{next(_NUMBERS)}", batches_of(100, 1), max(10, int(whole * scale))
    client.create(topic)
    client.produce(topic, batch * (count // 5))
    took_ms = []
    for _ in range(count):
        began = time.perf_counter()
        client.produce(topic, batch)
        took_ms.append((time.perf_counter() - began) * 1000)
    return took_ms


def _in_threads(port: int, topic: str, batches: Sequence[bytes], partitions: int, connections: int) -> None:
    threads = [
        threading.Thread(target=Client(port).produce, args=(topic, batches[number::connections], partitions))
        for number in range(connections)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
