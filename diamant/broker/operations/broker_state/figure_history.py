"""Figures of the broker and its largest topics over the last 24 hours, in memory. Sampling begins with the first use.

A sample is taken every `INTERVAL_S` in real time. It holds the rates since the previous sample, which are computed from
counters, and the 99th percentiles of the latencies since then. The history is lost when the process ends or the broker is reset
to a snapshot.

Memory: 8 bytes per sample and series; after a day this is 350 kB for the broker and 138 kB for each of `MAX_TOPICS` topics.
The cleaner keeps the finished rounds (`metrics.MAX_FINISHED`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import resource
import time
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from diamant.broker.network.request_metrics import LATENCY_BOUNDS_MS
from diamant.broker.network.server import Server
from diamant.broker.node.cleaner import NodeCleaner
from diamant.broker.node.node import Node
from diamant.broker.operation_errors import NotFound
from diamant.cleaner.rules.result import REASONS
from diamant.storage.env.clocks import SystemClock

if TYPE_CHECKING:
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.operations.broker_state.running_requests import HistoryRequest
    from diamant.cleaner.service.metrics import FinishedRound
    from diamant.progress import Progress

logger = logging.getLogger(__name__)

INTERVAL_S = 30.0
KEPT = 2_880
MAX_TOPICS = 100
LOGS_PER_TURN = 500
PRODUCE, FETCH = 0, 1
TOPIC_SERIES = (
    "bytes",
    "bytes_in_per_s",
    "bytes_out_per_s",
    "dirty_ratio",
    "superseded_ratio",
    "records_removed_per_s",
)
MAX_ROUNDS = 100
"""The maximum number of finished rounds in one answer."""
BROKER_SERIES = (
    *TOPIC_SERIES, "records_in_per_s", "produce_p99_ms", "fetch_p99_ms", "memory_bytes",
    *(f"removed_{reason.replace('-', '_')}_per_s" for reason in REASONS),
)  # fmt: skip

_real_clock = SystemClock()


class Rings:
    """The last `KEPT` values of some series; NaN for unknown values."""

    def __init__(self, names: Sequence[str]) -> None:
        self._values = {name: array("d") for name in names}
        self._first = -1
        """The number of the first sample; -1 before there is one."""

    def __len__(self) -> int:
        """Return how many samples are kept."""
        return len(next(iter(self._values.values())))

    def put(self, at: int, values: Mapping[str, float]) -> None:
        """Store the values of sample `at`, the one after the last; a series without a value becomes unknown there."""
        if self._first < 0:
            self._first = at
        slot = (at - self._first) % KEPT
        for name, ring in self._values.items():
            ring[slot : slot + 1] = array("d", [values.get(name, math.nan)])

    def take(self, samples: range) -> dict[str, list[float | None]]:
        """Return the values of these samples for JSON: None for unknown values."""
        return {name: [self._value(ring, at) for at in samples] for name, ring in self._values.items()}

    def _value(self, ring: array[float], at: int) -> float | None:
        value = ring[(at - self._first) % KEPT] if at >= self._first else math.nan
        return None if math.isnan(value) else round(value, 4)


class FigureHistory:
    """The history of one broker. Belongs to the loop thread."""

    def __init__(
        self, node: Node, server: Server, cleaning: NodeCleaner, superseded: Callable[[str | None], float | None]
    ) -> None:
        """`superseded(topic)` returns the share of superseded records, over all topics if `topic` is None; None if unknown."""
        self._superseded = superseded
        self._node = node
        self._server = server
        self._cleaning = cleaning
        self._times_ms = array("q", [0]) * KEPT
        self._count = 0
        """The number of samples taken."""
        self._broker = Rings(BROKER_SERIES)
        self._topics: dict[str, Rings] = {}
        self._before: _Counters | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to take samples."""
        if self._task is None:
            self._task = self._node.loop.create_task(self._run())

    async def stop(self) -> None:
        """Stop taking samples."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        while True:
            try:
                await self.sample()
            except OSError as error:
                logger.warning("could not sample the broker's figures: %s", error)
            await asyncio.sleep(INTERVAL_S)

    async def sample(self) -> None:
        """Take a sample."""
        now = _Counters(self._node, self._server, self._cleaning)
        sizes: Counter[str] = Counter()
        for count, log in enumerate([*self._node.directory.logs.values()], 1):
            sizes[log.topic] += log.size
            if count % LOGS_PER_TURN == 0:
                await asyncio.sleep(0)
        # All that may fail comes first: each series has a value of each counted sample.
        values = {
            "bytes": sizes.total(),
            "superseded_ratio": self._superseded_ratio(None),
            **now.of_broker(self._before),
        }
        before, self._before = self._before, now
        at, self._count = self._count, self._count + 1
        self._times_ms[at % KEPT] = _real_clock.now_ms()
        self._broker.put(at, values)
        for name in [name for name in self._topics if name not in self._node.topics.by_name]:
            del self._topics[name]
        for name, _ in sizes.most_common(MAX_TOPICS):
            if name not in self._topics and len(self._topics) < MAX_TOPICS:
                self._topics[name] = Rings(TOPIC_SERIES)
        for name, rings in self._topics.items():
            values = now.of_topic(name, before)
            rings.put(at, {"bytes": sizes[name], "superseded_ratio": self._superseded_ratio(name), **values})

    def _superseded_ratio(self, topic: str | None) -> float:
        found = self._superseded(topic)
        return math.nan if found is None else found

    def means(self, samples: int) -> dict[str, float]:
        """Return the mean of each series over the broker's last samples, ignoring unknown values."""
        taken = self._broker.take(range(max(0, self._count - min(samples, KEPT)), self._count))
        known = {name: [value for value in values if value is not None] for name, values in taken.items()}
        return {name: sum(values) / len(values) for name, values in known.items() if values}

    def topics(self) -> list[str]:
        """Return the topics that have a history."""
        return sorted(self._topics)

    def to_fields(self, topic: str | None, since_ms: int) -> Mapping[str, Any] | None:
        """Return the series since a time, as JSON fields; None if the topic has no history."""
        rings = self._broker if topic is None else self._topics.get(topic)
        if rings is None:
            return None
        samples = range(max(0, self._count - KEPT), self._count)
        times = [self._times_ms[at % KEPT] for at in samples]
        samples = samples[bisect_left(times, since_ms) :]
        return {
            "topic": topic,
            "interval_ms": int(INTERVAL_S * 1000),
            "times_ms": times[len(times) - len(samples) :],
            "series": rings.take(samples),
            "rounds": [asdict(one) for one in self.rounds(topic)],
        }

    def rounds(self, topic: str | None) -> list[FinishedRound]:
        """Return the last finished rounds of the broker or of one topic, oldest first."""
        found = [one for one in self._cleaning.status().finished if topic in (None, one.topic)]
        return found[-MAX_ROUNDS:]


async def history(histories: Lazy[FigureHistory], request: HistoryRequest, _: Progress) -> Mapping[str, Any]:
    """Return the series of the broker, or of a topic. Raises NotFound."""
    known = histories()
    found = known.to_fields(request.topic, request.since_ms)
    if found is None:
        raise NotFound(
            "this topic has no history: only the largest topics have one, and it begins with the first use of the history"
        )
    return {**found, "topics": known.topics()}


class _Counters:
    """A snapshot of the cumulative counters."""

    def __init__(self, node: Node, server: Server, cleaning: NodeCleaner) -> None:
        self.at_s = time.monotonic()
        self.total = node.topic_metrics.all_topics()
        self.by_topic = node.topic_metrics.by_topic()
        self.traffic = {name: (one.bytes_in, one.bytes_out) for name, one in self.by_topic.items()}
        self.buckets = {PRODUCE: [0] * (len(LATENCY_BOUNDS_MS) + 1), FETCH: [0] * (len(LATENCY_BOUNDS_MS) + 1)}
        for row in server.metrics.rows():
            if row.api_key in self.buckets:
                self.buckets[row.api_key] = [
                    sum(pair) for pair in zip(self.buckets[row.api_key], row.buckets, strict=True)
                ]
        self.removed: Counter[str] = Counter()
        self.removed_of: Counter[str] = Counter()
        self.dirty: dict[str, float] = {}
        for one in cleaning.status().partitions:
            self.removed.update(one.records_removed)
            self.removed_of[one.topic] += sum(one.records_removed.values())
            self.dirty[one.topic] = max(self.dirty.get(one.topic, 0.0), one.dirty_ratio)

    def of_broker(self, before: _Counters | None) -> dict[str, float]:
        """Return the current values and, unless `before` is None, the rates since then."""
        found: dict[str, float] = {
            "memory_bytes": _memory_bytes(),
            "dirty_ratio": max(self.dirty.values(), default=0.0),
        }
        if before is None:
            return found
        seconds = max(0.001, self.at_s - before.at_s)
        for name in ("bytes_in", "bytes_out"):
            found[f"{name}_per_s"] = (getattr(self.total, name) - getattr(before.total, name)) / seconds
        found["records_in_per_s"] = (self.total.messages_in - before.total.messages_in) / seconds
        found["records_removed_per_s"] = (self.removed.total() - before.removed.total()) / seconds
        for reason in REASONS:
            name = f"removed_{reason.replace('-', '_')}_per_s"
            found[name] = (self.removed[reason] - before.removed[reason]) / seconds
        for key, name in ((PRODUCE, "produce_p99_ms"), (FETCH, "fetch_p99_ms")):
            found[name] = _p99_ms(before.buckets[key], self.buckets[key])
        return found

    def of_topic(self, name: str, before: _Counters | None) -> dict[str, float]:
        """Return the same as `of_broker`, but for one topic."""
        found = {"dirty_ratio": self.dirty.get(name, math.nan)}
        if before is None:
            return found
        seconds = max(0.001, self.at_s - before.at_s)
        received, sent = self.traffic.get(name, (0, 0))
        received_before, sent_before = before.traffic.get(name, (0, 0))
        found["bytes_in_per_s"] = max(0, received - received_before) / seconds
        found["bytes_out_per_s"] = max(0, sent - sent_before) / seconds
        found["records_removed_per_s"] = max(0, self.removed_of[name] - before.removed_of[name]) / seconds
        return found


def _p99_ms(before: Sequence[int], now: Sequence[int]) -> float:
    """Return the upper bound of the bucket that holds the 99th percentile since `before`; NaN if there were no requests."""
    counts = [after - earlier for earlier, after in zip(before, now, strict=True)]
    total = sum(counts)
    seen = 0
    for count, bound in zip(counts, (*LATENCY_BOUNDS_MS, LATENCY_BOUNDS_MS[-1]), strict=True):
        seen += count
        if total and seen >= 0.99 * total:
            return float(bound)
    return math.nan


def _memory_bytes() -> int:
    """Return the resident memory of the process; on systems that report only its peak (macOS), the peak."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
