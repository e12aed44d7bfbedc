"""The cleaner of any broker over the wire, for messages of two sizes: ten for each key in closed segments."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path

from client import INCREMENTAL_ALTER_CONFIGS, Client, batches_of
from figure import Figure
from processes import RunningBroker, cpu_seconds, resident_mb

from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record

KEYS = {100: 300_000, 1000: 50_000}
"""By the bytes of a value."""
PER_KEY = 10
SEGMENT_BYTES = 16 << 20
FILLERS = 20
"""Messages of 900 kB at the end, more than a segment of them: what is before them lies in closed segments."""
LIMIT_S = 300
IDLE_S = 2.0


def compaction(broker: RunningBroker) -> Iterator[Figure]:
    """From the last acknowledgement, or from switching compaction on, until nothing superseded is left in closed segments."""
    client, pid = Client(broker.port), broker.pid
    for value_bytes, whole in KEYS.items():
        keys = max(1, int(whole * broker.scale))
        batches, end = _batches(value_bytes, keys), keys * PER_KEY + FILLERS

        name, topic = f"{value_bytes} B, compact while produced", f"produced-{value_bytes}"
        _create(client, topic, "compact")
        cpu_s = cpu_seconds(pid)
        client.produce(topic, batches)
        began = time.perf_counter()
        yield Figure(f"{name}: last ack to clean", _clean_at(broker.port, topic, keys, end) - began, "s")
        yield Figure(f"{name}: broker CPU in all", cpu_seconds(pid) - cpu_s, "s")

        name, topic = f"{value_bytes} B, backlog", f"backlog-{value_bytes}"
        _create(client, topic, "delete")
        client.produce(topic, batches)
        cpu_s, began = cpu_seconds(pid), time.perf_counter()
        _switch_on(client, topic)
        yield Figure(f"{name}: switched on to clean", _clean_at(broker.port, topic, keys, end) - began, "s")
        yield Figure(f"{name}: broker CPU", cpu_seconds(pid) - cpu_s, "s")

        topic = f"probed-{value_bytes}"
        _create(client, topic, "delete")
        client.produce(topic, batches)
        clean_bytes = sum(map(len, batches[:-FILLERS])) // PER_KEY + sum(map(len, batches[-FILLERS:]))
        yield from _with_probe(broker, value_bytes, topic, clean_bytes)
        _clean_at(broker.port, topic, keys, end)
    yield Figure("RSS after it all", resident_mb(pid), "MB")


def _with_probe(broker: RunningBroker, value_bytes: int, topic: str, clean_bytes: int) -> Iterator[Figure]:
    """One message at a time into another topic, for a while, and then until a backlog is clean.

    The broker is left alone in the meantime: to read the topic again and again, to see whether it is clean, is what the
    probe would wait for.
    """
    port, probe = broker.port, f"probe-{value_bytes}"
    client = Client(port)
    client.create(probe)
    with ProcessPoolExecutor(1) as pool:
        idle = _produce_until(client, probe, value_bytes, pool.submit(time.sleep, IDLE_S * min(1, broker.scale)))
        began = time.perf_counter()
        _switch_on(client, topic)
        clean = pool.submit(_small_at, broker.data / f"{topic}-0", clean_bytes * 1.02)
        cleaning = _produce_until(client, probe, value_bytes, clean)
    yield Figure(f"{value_bytes} B, backlog with probe: switched on to clean", clean.result() - began, "s")
    for when, (p50, p99) in (("idle", idle), ("cleaning", cleaning)):
        yield Figure(f"{value_bytes} B, produce latency, {when} p50", p50, "ms")
        yield Figure(f"{value_bytes} B, produce latency, {when} p99", p99, "ms")
    yield Figure(f"{value_bytes} B, produce latency p99, cleaning / idle", cleaning[1] / idle[1], "x")


def _produce_until(client: Client, topic: str, value_bytes: int, done: Future[object]) -> tuple[float, float]:
    batch, took_ms = batches_of(value_bytes, 1), [0.0]
    while not done.done() or len(took_ms) < 100:
        began = time.perf_counter()
        client.produce(topic, batch)
        took_ms.append((time.perf_counter() - began) * 1000)
    cuts = statistics.quantiles(took_ms[1:], n=100)
    return cuts[49], cuts[98]


def _clean_at(port: int, topic: str, keys: int, end: int) -> float:
    """Wait until the topic has each key once, and return the time (`perf_counter`, the same in all processes)."""
    client, began = Client(port), time.perf_counter()
    while True:
        live = 0
        for chunk in client.fetch_all(topic, end):
            live += sum(header.record_count for _, header in iter_headers(chunk))
            if live > keys + FILLERS:
                break
        else:
            return time.perf_counter()
        if time.perf_counter() - began > LIMIT_S:
            raise RuntimeError(f"{topic}: after {LIMIT_S} s there are more records than its {keys:,} keys")
        time.sleep(0.01)


def _small_at(directory: Path, most_bytes: float) -> float:
    """Wait until a partition's segments have no more bytes than that, and return the time."""
    began = time.perf_counter()
    while True:
        size = 0
        for path in directory.glob("*.log"):
            with suppress(FileNotFoundError):
                size += path.stat().st_size
        if size <= most_bytes:
            return time.perf_counter()
        if time.perf_counter() - began > LIMIT_S:
            raise RuntimeError(f"{directory}: after {LIMIT_S} s there are {size:,} bytes, more than {most_bytes:,.0f}")
        time.sleep(0.05)


def _batches(value_bytes: int, keys: int) -> list[bytes]:
    now_ms, per_batch = time.time_ns() // 1_000_000, 100_000 // value_bytes
    once = [
        bytes(
            build_batch(
                [
                    Record(key - first, now_ms, b"key-%d" % key, os.urandom(value_bytes))
                    for key in range(first, min(first + per_batch, keys))
                ],
                base_offset=0,
            )
        )
        for first in range(0, keys, per_batch)
    ]
    fillers = [Record(0, now_ms, b"filler-%d" % number, bytes(900_000)) for number in range(FILLERS)]
    return once * PER_KEY + [bytes(build_batch([filler], base_offset=0)) for filler in fillers]


def _create(client: Client, topic: str, policy: str) -> None:
    settings = {"cleanup_policy": policy, "segment_bytes": str(SEGMENT_BYTES), "min_cleanable_dirty_ratio": "0.01"}
    client.create(topic, **settings)


def _switch_on(client: Client, topic: str) -> None:
    change = {"name": "cleanup.policy", "config_operation": 0, "value": "compact"}
    resource = {"resource_type": 2, "resource_name": topic, "configs": [change]}
    client.call(INCREMENTAL_ALTER_CONFIGS, {"resources": [resource], "validate_only": False})
