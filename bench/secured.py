"""Measurements of a listener with TLS, and of one with SASL too: `listeners.py` says which."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from client import Client, batches_of
from figure import Figure
from listeners import PLAINTEXT, SASL_SSL, SUITE, connect, context_of, create_user
from processes import RunningBroker, cpu_seconds, resident_mb
from wire import read_all, timed

from diamant.protocol.batches.batch import iter_headers

TOTAL_BYTES = 200_000_000
VALUE_BYTES = 1000
PRODUCE_SHAPES = ((1, 100_000), (4, 100_000), (1, 16_000))
"""Connections, bytes of a batch."""
CONNECTIONS = 2000
CONNECTING_THREADS = 4
MESSAGES = 2000


def secured(broker: RunningBroker, listener: str) -> Iterator[Figure]:
    """Start, connections, throughput and latency of one of the broker's listeners. What is read later warms it up."""
    context = context_of(broker.properties)
    client: Client | None = None
    while client is None:
        with contextlib.suppress(ConnectionError):
            if listener == SASL_SSL:
                create_user(connect(broker.port, PLAINTEXT, context))
            client = connect(broker.port, listener, context)
    assert client.suite == SUITE, client.suite
    client.create("first")
    _until_produced(client, "first")
    yield Figure("spawn to first acknowledged produce", (time.perf_counter() - broker.started_s) * 1000, "ms")
    new = partial(connect, broker.port, listener, context)
    for name in ("read", "single", *map(_topic, PRODUCE_SHAPES)):
        client.create(name)
        _until_produced(client, name)
    yield from _connecting(broker, new)
    batches = batches_of(VALUE_BYTES, int(TOTAL_BYTES * broker.scale) // VALUE_BYTES)
    end = sum(next(iter_headers(batch))[1].record_count for batch in batches)
    client.produce("read", batches)
    read_all(client, "read", end)
    for shape in PRODUCE_SHAPES:
        connections, batch_bytes = shape
        name = f"produce {VALUE_BYTES} B, {connections} conn, {batch_bytes // 1000} kB batches"
        batches = batches_of(VALUE_BYTES, end, batch_bytes)
        size = sum(next(iter_headers(batch))[1].record_count for batch in batches) * VALUE_BYTES
        client.produce(_topic(shape), batches[: len(batches) // 4])
        yield from timed(name, broker, size, _in_threads, new, _topic(shape), batches, connections)
    yield from timed(f"consume {VALUE_BYTES} B", broker, end * VALUE_BYTES, read_all, client, "read", end)
    yield from _one_at_a_time(client, max(10, int(MESSAGES * broker.scale)))
    yield Figure("RSS after it all", resident_mb(broker.pid), "MB")


def _connecting(broker: RunningBroker, new: Callable[[], Client]) -> Iterator[Figure]:
    """Connections with a handshake each, and a login if there is one, up to a first answer; after a fifth as many more."""
    each = max(2, int(CONNECTIONS * broker.scale) // CONNECTING_THREADS)
    _in_parallel([partial(_connect, new, each // 5)] * CONNECTING_THREADS)
    cpu_s, began = cpu_seconds(broker.pid), time.perf_counter()
    _in_parallel([partial(_connect, new, each)] * CONNECTING_THREADS)
    took_s = time.perf_counter() - began
    count = each * CONNECTING_THREADS
    yield Figure("connect and first answer", count / took_s, "per s")
    yield Figure("connect and first answer: broker CPU", (cpu_seconds(broker.pid) - cpu_s) * 1000 / count, "ms")


def _until_produced(client: Client, topic: str) -> None:
    """Produce a message to a new topic: Kafka's leader may not know of it yet."""
    give_up_s = time.perf_counter() + 10
    while True:
        try:
            client.produce(topic, batches_of(100, 1))
            return
        except RuntimeError:
            if time.perf_counter() > give_up_s:
                raise


def _topic(shape: tuple[int, int]) -> str:
    return "produced-{}-{}".format(*shape)


def _one_at_a_time(client: Client, count: int) -> Iterator[Figure]:
    batch = batches_of(100, 1)
    client.produce("single", batch * (count // 5))
    took_ms = []
    for _ in range(count):
        began = time.perf_counter()
        client.produce("single", batch)
        took_ms.append((time.perf_counter() - began) * 1000)
    cuts = statistics.quantiles(took_ms, n=100)
    yield Figure("one message at a time p50", cuts[49], "ms")
    yield Figure("one message at a time p99", cuts[98], "ms")


def _connect(new: Callable[[], Client], count: int) -> None:
    for _ in range(count):
        new().socket.close()


def _in_threads(new: Callable[[], Client], topic: str, batches: Sequence[bytes], connections: int) -> None:
    _in_parallel([partial(new().produce, topic, batches[number::connections]) for number in range(connections)])


def _in_parallel(works: Sequence[Callable[[], None]]) -> None:
    """Run each in a thread of its own; the first error is raised here."""
    with ThreadPoolExecutor(len(works)) as threads:
        for done in [threads.submit(work) for work in works]:
            done.result()
