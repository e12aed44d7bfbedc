"""Measurements of any broker that is stopped and started again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

from client import FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH, Client, batches_of, commit_of, error_codes, frame_of
from figure import Figure
from processes import RunningBroker, cpu_seconds, resident_mb

GROUPS, COMMITTED_PARTITIONS, COMMITS = 300, 10, 100
"""Groups, partitions in each commit, commits of each group."""


def partitions(broker: RunningBroker) -> Iterator[Figure]:
    """A topic of a thousand partitions, three messages into each, and a restart."""
    count = max(1, int(1000 * broker.scale))
    client = Client(broker.port)
    began = time.perf_counter()
    client.create("wide", count)
    yield Figure(f"create {count} partitions", (time.perf_counter() - began) * 1000, "ms")
    began = time.perf_counter()
    client.produce("wide", batches_of(100, 1) * 3 * count, count)
    yield Figure("3 messages into each", (time.perf_counter() - began) * 1000, "ms")
    yield Figure("RSS", resident_mb(broker.pid), "MB")
    began = time.perf_counter()
    broker.stop(signal.SIGTERM)
    yield Figure("SIGTERM to gone", (time.perf_counter() - began) * 1000, "ms")
    broker.start()
    _answered(lambda: list(Client(broker.port).fetch_all("wide", 3, count)))
    yield Figure("restart until all answer", (time.perf_counter() - broker.started_s) * 1000, "ms")


def recovery(broker: RunningBroker) -> Iterator[Figure]:
    """SIGKILL, then a start, until the next message is acknowledged."""
    client = Client(broker.port)
    client.create("long")
    total_bytes = int(2_000_000_000 * broker.scale)
    client.produce("long", batches_of(1000, total_bytes // 1000))
    broker.stop(signal.SIGKILL)
    broker.start()
    _answered(lambda: Client(broker.port).produce("long", batches_of(1000, 1)))
    name = f"SIGKILL with a log of {total_bytes / 1e9:g} GB: restart until it answers"
    yield Figure(name, time.perf_counter() - broker.started_s, "s")
    yield Figure("broker CPU for that", cpu_seconds(broker.pid), "s")


def committed(broker: RunningBroker) -> Iterator[Figure]:
    """A start with many committed offsets, until those of all groups can be fetched."""
    client = Client(broker.port)
    client.create("read", COMMITTED_PARTITIONS)
    groups = [f"group-{number}" for number in range(max(1, int(GROUPS * broker.scale)))]
    _answered(lambda: _ask(client, FIND_COORDINATOR, {"key": groups[0], "key_type": 0}))
    for group in groups:
        fields = commit_of(group, "read", COMMITTED_PARTITIONS)
        _answered(lambda fields=fields: _ask(client, OFFSET_COMMIT, fields))
        client.socket.sendall(frame_of(OFFSET_COMMIT, fields) * (COMMITS - 1))
        for _ in range(COMMITS - 1):
            client.read(int.from_bytes(client.read(4), "big"))
    broker.stop(signal.SIGTERM)
    broker.start()
    client, rows = Client(broker.port), [{"name": "read", "partition_indexes": list(range(COMMITTED_PARTITIONS))}]
    for group in groups:
        _answered(lambda group=group: _ask(client, OFFSET_FETCH, {"group_id": group, "topics": rows}))
    name = f"{len(groups) * COMMITTED_PARTITIONS * COMMITS:,} commits: restart until all can be fetched"
    yield Figure(name, time.perf_counter() - broker.started_s, "s")
    yield Figure("broker CPU for that", cpu_seconds(broker.pid), "s")


def _ask(client: Client, api_key: int, fields: dict[str, Any]) -> None:
    if codes := error_codes(client.call(api_key, fields)) - {0}:
        raise RuntimeError(f"API {api_key}: errors {codes}")


def _answered(ask: Callable[[], object]) -> None:
    """Ask again until there is an answer without an error: a broker that has just started opens its logs still."""
    began = time.perf_counter()
    while True:
        try:
            ask()
            return
        except (OSError, RuntimeError):
            if time.perf_counter() - began > 60:
                raise
            time.sleep(0.005)
