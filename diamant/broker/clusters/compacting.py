"""Compacts a topic of any Kafka cluster: lowers configurations, closes active segments without writing a record, and waits for
each replica.

No API tells whether a replica is clean. So the leader is searched backwards for two witnesses: the youngest superseded record,
and the record that was superseded last. A replica that returns neither has been cleaned.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diamant.broker.acl import Operation
from diamant.broker.client.kafka_client import EARLIEST, LATEST, KafkaClient, LedPartition
from diamant.broker.client.kafka_connection import ConnectionFailed
from diamant.broker.clusters import lowered_configs
from diamant.broker.clusters.cluster_look import check_cleanable, look, now_ms
from diamant.broker.clusters.cluster_waiting import CleanerWait
from diamant.broker.clusters.fetching import Stretch, read_stretches
from diamant.broker.clusters.lowered_configs import LoweringRun
from diamant.broker.clusters.register import ClusterWork, Register
from diamant.broker.clusters.rolling import Replica, Roller
from diamant.broker.clusters.work_progress import TimeIsUp, WorkProgress
from diamant.broker.operation_errors import NotFound
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import iter_records

if TYPE_CHECKING:
    from diamant.json_types import JsonObject

NEEDED = (Operation.READ, Operation.WRITE, Operation.ALTER_CONFIGS)
DESCRIBE_LOG_DIRS = 35
FIRST_WINDOW, MAX_WINDOW = 4_000, 1_000_000
"""The number of offsets searched backwards from the end: in the first step, and before the search gives up."""


def search_windows(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the begin and end offsets of growing windows from `end` back to `start`, or over the last `MAX_WINDOW` offsets."""
    start, window = max(start, end - MAX_WINDOW), FIRST_WINDOW
    while end > start:
        begin = max(start, end - window)
        yield begin, end
        end, window = begin, window * 4


@dataclass(slots=True)
class _Compacted:
    """A partition, and the records whose absence shows that its replicas are clean."""

    led: LedPartition
    start: int
    end: int
    witnesses: tuple[int, ...] = ()
    sizes_before: dict[int, int] = field(default_factory=dict)


class CompactionRun(LoweringRun):
    """One compaction of a topic, or of one of its partitions."""

    def __init__(
        self,
        client: KafkaClient,
        register: Register,
        work: ClusterWork,
        progress: WorkProgress,
        *,
        partition: int | None,
        force: bool,
    ) -> None:
        super().__init__(client, register, work)
        self._progress = progress
        self._partition = partition
        self._force = force
        self._parts: list[_Compacted] = []
        self._problems: dict[str, str] = {}
        self._wait: CleanerWait | None = None

    def run(self) -> JsonObject:
        """Compact, put the configurations back, and return a report. Raises OperationError, KafkaRefusal, ConnectionFailed."""
        began_ms, began_s = now_ms(), time.monotonic()
        self._progress.stage("looking at the cluster")
        (name,) = self._work.topics
        self._cluster = look(self._client, [name], NEEDED)
        self._topic = self._cluster.topics[name]
        self._work.cluster_id = self._cluster.cluster_id
        check_cleanable([self._topic])
        wanted = [one for one in self._topic.partitions if self._partition in (None, one.number)]
        if not wanted:
            raise NotFound(
                f"topic {name!r} has no partition {self._partition}: expected 0 to {len(self._topic.partitions) - 1}"
            )
        lowering = lowered_configs.lowering(self._client, [self._topic])
        if not self._force:
            lowering[name].pop("min.compaction.lag.ms", None)
        self._look_for_witnesses(wanted)
        try:
            if any(part.witnesses for part in self._parts):
                self._lower([self._topic], lowering)
                self._clean()
        except TimeIsUp:
            if self._wait is not None:
                self._problems.update(self._wait.held())
            for one in self._replicas():
                self._problems.setdefault(str(one), "not clean when the time was up")
        finally:
            self._put_back()
        return self._report(began_ms, (time.monotonic() - began_s) * 1000)

    def _replicas(self) -> list[Replica]:
        return [
            Replica(self._topic.name, part.led.number, broker)
            for part in self._parts
            if part.witnesses
            for broker in part.led.replicas
        ]

    def _clean(self) -> None:
        changes = self._work.changes.get(self._topic.name, {})
        roller = Roller(
            self._client, self._cluster, None, {self._topic.name: lowered_configs.delays(self._topic, changes)}
        )
        for part in self._parts:
            roller.close_after((self._topic.name, part.led.number), part.end - 1)
        youngest = {part.led.number: max(part.witnesses) for part in self._parts if part.witnesses}
        targets = {one: youngest[one.partition] for one in self._replicas()}
        wait = self._wait = CleanerWait(self._client, self._cluster, self._progress, dict(targets), roller)
        self._problems = wait.until_clean(lambda: self._put_back(lowered_configs.ROLLING))
        oldest = {part.led.number: min(part.witnesses) for part in self._parts if part.witnesses}
        wait.targets = {one: oldest[one.partition] for one in targets if one not in wait.problems}
        self._problems = wait.until_clean(lambda: None)

    def _look_for_witnesses(self, wanted: Iterable[LedPartition]) -> None:
        self._progress.stage("looking for superseded records")
        numbers = [one.number for one in wanted]
        starts = self._client.offsets(self._topic.name, numbers, EARLIEST)
        ends = self._client.offsets(self._topic.name, numbers, LATEST)
        sizes = log_sizes(self._client, self._topic.name, numbers)
        for led in wanted:
            part = _Compacted(led, starts[led.number], ends[led.number])
            part.sizes_before = {broker: size for (number, broker), size in sizes.items() if number == led.number}
            part.witnesses = self._witnesses(part)
            self._parts.append(part)

    def _witnesses(self, part: _Compacted) -> tuple[int, ...]:
        """Return the witnesses' offsets, or an empty tuple if the last `MAX_WINDOW` offsets contain no superseded record."""
        latest: dict[bytes, int] = {}
        for begin, end in search_windows(part.start, part.end):
            self._progress.check()
            pairs = []
            for offset, key in reversed(self._keys(part, begin, end)):
                if key in latest:
                    pairs.append((offset, latest[key]))
                latest.setdefault(key, offset)
            if pairs:
                by_superseding = max(pairs, key=lambda pair: pair[1])
                return tuple(sorted({max(pairs)[0], by_superseding[0]}))
        return ()

    def _keys(self, part: _Compacted, begin: int, end: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []

        def take(_: Stretch, data: memoryview) -> None:
            for at, header in iter_headers(bytes(data)):
                if not header.is_control:
                    found.extend(
                        (one.offset, one.key)
                        for one in iter_records(bytes(data[at : at + header.size]), 0)
                        if one.key is not None and begin <= one.offset < end
                    )

        stretch = Stretch(self._topic.name, part.led.number, part.led.leader, begin, end)
        read_stretches(self._client, [stretch], take, self._progress.check)
        if stretch.problem:
            raise ConnectionFailed(f"{stretch.name} cannot be read: {stretch.problem}")
        return found

    def _report(self, began_ms: int, duration_ms: float) -> JsonObject:
        """Return a report with the same fields as a Diamant broker's; those that cannot be known from outside are None."""
        sizes = log_sizes(self._client, self._topic.name, [part.led.number for part in self._parts])
        partitions = []
        for part in self._parts:
            names = [str(Replica(self._topic.name, part.led.number, broker)) for broker in part.led.replicas]
            problems = {name: self._problems[name] for name in names if name in self._problems}
            leader = part.led.number, part.led.leader
            unknown = dict.fromkeys(
                ("first_dirty_offset", "rounds", "segments_before", "segments_after", "records_before", "records_after",
                 "markers_before", "markers_after", "kept", "horizon_ms")
            )  # fmt: skip
            partitions.append(
                {
                    **unknown,
                    "partition": part.led.number,
                    "cleaned_to_offset": part.end if not problems else None,
                    "runners": [],
                    "bytes_before": part.sizes_before.get(part.led.leader),
                    "bytes_after": sizes.get(leader),
                    "removed": {},
                    "replicas": list(part.led.replicas),
                    "missing": problems,
                    "is_clean": not problems,
                }
            )
        is_clean = not self._problems
        held = next((f"{name}: {reason}" for name, reason in self._problems.items()), None)
        return {
            "topic": self._topic.name,
            "until": "clean",
            "force": self._force,
            "is_clean": is_clean,
            "is_reached": is_clean,
            "horizon_ms": None,
            "started_ms": began_ms,
            "ended_ms": now_ms(),
            "duration_ms": round(duration_ms, 1),
            "removed": {},
            "max_counted_bytes": 0,
            "held_text": held,
            "missing": dict(self._problems),
            "left": self.left,
            "work_id": self._work.id,
            "not_put_back": dict(self.not_put_back),
            "partitions": partitions,
        }


def log_sizes(client: KafkaClient, topic: str, numbers: Iterable[int]) -> dict[tuple[int, int], int]:
    """Return the sizes of the replicas that the caller may see, by partition and broker, for progress and reports only."""
    found: dict[tuple[int, int], int] = {}
    fields = {"topics": [{"topic": topic, "partitions": list(numbers)}]}
    for broker in client.broker_ids():
        try:
            answer = client.broker(broker).ask(DESCRIBE_LOG_DIRS, fields)
        except ConnectionFailed:
            client.forget(broker)
            continue
        for directory in answer["results"]:
            for one in (partition for seen in directory["topics"] for partition in seen["partitions"]):
                if not one["is_future_key"]:
                    found[one["partition_index"], broker] = one["partition_size"]
    return found
