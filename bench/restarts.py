"""Cases of run.py that stop a broker and start it again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator

from client import Client, batches_of
from coordinators import cpu_seconds, resident_mb
from figure import Figure
from running_broker import RunningBroker


def partitions(broker: RunningBroker) -> Iterator[Figure]:
    """A topic of a thousand partitions, three messages into each, and a restart."""
    client = Client(broker.port)
    began = time.perf_counter()
    client.create("wide", 1000)
    yield Figure("create 1000 partitions", (time.perf_counter() - began) * 1000, "ms")
    began = time.perf_counter()
    client.produce("wide", batches_of(100, 1) * 3000, 1000)
    yield Figure("3 messages into each", (time.perf_counter() - began) * 1000, "ms")
    yield Figure("RSS", resident_mb(broker.process.pid), "MB")
    began = time.perf_counter()
    broker.stop(signal.SIGTERM)
    yield Figure("SIGTERM to gone", (time.perf_counter() - began) * 1000, "ms")
    broker.start()
    _answered(lambda: list(Client(broker.port).fetch_all("wide", 3, 1000)))
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
    yield Figure("broker CPU for that", cpu_seconds(broker.process.pid), "s")


def _answered(ask: Callable[[], object]) -> None:
    began = time.perf_counter()
    while True:
        try:
            ask()
            return
        except (OSError, RuntimeError):  # the broker still opens its logs
            if time.perf_counter() - began > 60:
                raise
            time.sleep(0.005)
