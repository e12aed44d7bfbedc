"""An audit of a Kafka cluster, from outside: what may keep values for longer than a deadline, and what hides deletions.

Read-only. Needs DESCRIBE and DESCRIBE_CONFIGS on the topics, READ for transactions and samples of keys, DESCRIBE on groups and
brokers. The report lists whatever the caller has no permission to see. Sends a few requests per broker, one per topic and group,
and one per partition for its sample of keys.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from typing import TYPE_CHECKING

from diamant.broker.client.kafka_client import EARLIEST, LATEST, KafkaClient, KafkaRefusal, LedTopic, error_name
from diamant.broker.client.kafka_connection import ConnectionFailed, Fields
from diamant.broker.client.kafka_group import KafkaGroup, list_groups
from diamant.broker.clusters.cluster_look import BROKER_RESOURCE, DESCRIBE_CONFIGS, TOPIC_RESOURCE
from diamant.broker.clusters.fetching import Stretch, read_stretches
from diamant.broker.clusters.work_progress import WorkProgress
from diamant.broker.inspection.audit_rules import (
    AuditFinding,
    number,
    replica_findings,
    stranded_text,
    topic_findings,
)
from diamant.broker.inspection.transactions import ListedTransaction, listed_transactions
from diamant.cleaner.explain.explanation import BOUNDED, KNOWN
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.wire.apis import LIST_OFFSETS
from diamant.words import counted, moment

if TYPE_CHECKING:
    from diamant.json_types import OnProgress

DESCRIBE_PRODUCERS = 61
MAX_TIMESTAMP = -3
"""The timestamp for which ListOffsets returns the record with the greatest timestamp (KIP-734)."""
TOPICS_AT_ONCE = 500
SAMPLE_BYTES = 32 * 1024
"""The number of bytes to read from the start of each partition for a sample of its keys."""

Place = tuple[str, int]


@dataclass(slots=True)
class AuditReport:
    """The findings, and descriptions of what the caller was not allowed to see."""

    now_ms: int
    deadline_ms: int
    topics: int = 0
    partitions: int = 0
    findings: list[AuditFinding] = field(default_factory=list)
    not_visible: list[str] = field(default_factory=list)

    def to_fields(self) -> dict[str, object]:
        """Return the report as fields for JSON."""
        return asdict(self)


def audit(
    client: KafkaClient, names: Sequence[str], deadline_ms: int, on_progress: OnProgress | None = None
) -> AuditReport:
    """Audit the topics `names`, or all except internal topics if it is empty.

    Raises KafkaRefusal if a topic does not exist, and ConnectionFailed if the cluster does not answer.
    """
    return _Audit(client, deadline_ms, WorkProgress(inf, on_progress)).run(names)


class _Audit:
    def __init__(self, client: KafkaClient, deadline_ms: int, progress: WorkProgress) -> None:
        self._client = client
        self._progress = progress
        self._report = AuditReport(time.time_ns() // 1_000_000, deadline_ms)
        self._leaders: dict[int, list[Place]] = {}

    def run(self, names: Sequence[str]) -> AuditReport:
        report = self._report
        self._progress.stage("looking at the cluster")
        topics = [one for one in self._client.topics(names or None) if names or not one.is_internal]
        report.topics, report.partitions = len(topics), sum(len(topic.partitions) for topic in topics)
        configs = self._configs([topic.name for topic in topics])
        compacted = [topic for topic in topics if "compact" in configs.get(topic.name, {}).get("cleanup.policy", "")]
        for topic in topics:
            if topic.name in configs:
                report.findings += topic_findings(topic.name, configs[topic.name], report.deadline_ms)
            report.findings += replica_findings(topic)
            for one in topic.partitions:
                if one.leader >= 0:
                    self._leaders.setdefault(one.leader, []).append((topic.name, one.number))
        if compacted:
            self._brokers()
            self._progress.stage("looking at transactions and offsets")
            self._transactions({topic.name for topic in compacted})
            starts, ends = self._offsets(compacted, EARLIEST), self._offsets(compacted, LATEST)
            self._idle(compacted, configs, starts, ends)
            self._progress.stage("looking at groups")
            self._groups(compacted, configs, ends)
            counts = {topic.name: len(topic.partitions) for topic in compacted}
            self._stranded({name: count for name, count in counts.items() if count > 1}, starts, ends)
        report.findings.sort(key=lambda one: (one.topic, -1 if one.partition is None else one.partition, one.kind))
        return report

    def _configs(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        found = {}
        for at in range(0, len(names), TOPICS_AT_ONCE):
            asked = [
                {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configuration_keys": None}
                for name in names[at : at + TOPICS_AT_ONCE]
            ]
            for one in self._client.ask_any(DESCRIBE_CONFIGS, {"resources": asked})["results"]:
                if one["error_code"]:
                    self._hidden(f"configurations of topic {one['resource_name']}", one["error_code"])
                else:
                    found[one["resource_name"]] = {each["name"]: each["value"] or "" for each in one["configs"]}
        return found

    def _brokers(self) -> None:
        for broker in self._client.broker_ids():
            asked = {
                "resource_type": BROKER_RESOURCE,
                "resource_name": str(broker),
                "configuration_keys": ["log.cleaner.enable"],
            }
            (one,) = self._client.broker(broker).ask(DESCRIBE_CONFIGS, {"resources": [asked]})["results"]
            if one["error_code"]:
                self._hidden(f"configurations of broker {broker}", one["error_code"])
            elif any(each["value"] == "false" for each in one["configs"]):
                self._find("cleaner-disabled", "", f"broker {broker} compacts nothing: log.cleaner.enable=false")

    def _transactions(self, topics: set[str]) -> None:
        listed, hidden = listed_transactions(self._client, self._client.broker_ids())
        self._report.not_visible += hidden
        for leader, places in self._by_leader(topics):
            fields = {
                "topics": [{"name": name, "partition_indexes": numbers} for name, numbers in _by_topic(places).items()]
            }
            for topic in self._client.broker(leader).ask(DESCRIBE_PRODUCERS, fields)["topics"]:
                for one in topic["partitions"]:
                    if one["error_code"]:
                        self._hidden(f"producers of {topic['name']}-{one['partition_index']}", one["error_code"])
                    for producer in one["active_producers"]:
                        self._open(topic["name"], one["partition_index"], producer, listed)

    def _open(self, topic: str, partition: int, producer: Fields, listed: Mapping[int, ListedTransaction]) -> None:
        first = producer["current_txn_start_offset"]
        if first < 0:
            return
        found = listed.get(producer["producer_id"])
        whose = f"of producer {producer['producer_id']}, which no coordinator lists,"
        whose = whose if found is None else repr(found.transactional_id)
        last = moment(producer["last_timestamp"])
        text = f"transaction {whose} is open since offset {first:,}, its last record is of {last}: it holds up all that follows"
        self._find("open-transaction", topic, text, partition)

    def _idle(
        self,
        topics: Iterable[LedTopic],
        configs: Mapping[str, Mapping[str, str]],
        starts: Mapping[Place, tuple[int, int]],
        ends: Mapping[Place, tuple[int, int]],
    ) -> None:
        """Find partitions whose active segment should have been closed by now, but is not, because nothing is appended."""
        for place, (_, newest_ms) in self._offsets(topics, MAX_TIMESTAMP).items():
            known = configs[place[0]]
            limit_ms = min(number(known, "segment.ms"), number(known, "max.compaction.lag.ms"))
            is_empty = starts.get(place, (0, 0))[0] >= ends.get(place, (0, 0))[0]
            if newest_ms >= 0 and not is_empty and newest_ms + limit_ms < self._report.now_ms:
                text = f"due since {moment(newest_ms + limit_ms)}, but closed only by the next append, and not compacted before"
                self._find("idle-active-segment", place[0], text, place[1], visibility=BOUNDED)

    def _groups(
        self,
        topics: Iterable[LedTopic],
        configs: Mapping[str, Mapping[str, str]],
        ends: Mapping[Place, tuple[int, int]],
    ) -> None:
        now_ms = self._report.now_ms
        kept_ms = {topic.name: number(configs[topic.name], "delete.retention.ms") for topic in topics}
        young = self._offsets(topics, lambda topic: max(0, now_ms - kept_ms[topic]))
        try:
            names = [group.name for group in list_groups(self._client)]
        except KafkaRefusal as error:
            self._report.not_visible.append(str(error))
            return
        for name in names:
            self._progress.check()
            try:
                committed = KafkaGroup(self._client, name).committed()
            except KafkaRefusal as error:
                self._report.not_visible.append(str(error))
                continue
            for place, offset in committed.items():
                end = ends.get(place, (-1, -1))[0]
                first_young = young.get(place, (-1, -1))[0]
                if place[0] in kept_ms and offset < (end if first_young < 0 else first_young):
                    text = f"group {name!r} is at {offset:,} of {end:,}, behind by more than delete.retention.ms"
                    text += ": it may miss deletions"
                    self._find("unread-tombstones", place[0], text, place[1], visibility=BOUNDED)

    def _stranded(
        self,
        counts: Mapping[str, int],
        starts: Mapping[Place, tuple[int, int]],
        ends: Mapping[Place, tuple[int, int]],
    ) -> None:
        """Find keys that producers now write to other partitions, from a sample of each partition's first records.

        `counts`: the number of partitions by topic.
        """

        def take(one: Stretch, data: memoryview) -> None:
            keys = {
                record.key
                for position, header in iter_headers(data)
                if not header.is_control
                for record in iter_records(data, position)
                if record.key is not None
            }
            if text := stranded_text(one.partition, keys, counts[one.topic]):
                self._find("stranded-keys", one.topic, text, one.partition, visibility=BOUNDED)

        samples = [
            Stretch(
                *place,
                leader,
                starts[place][0],
                ends[place][0],
                fetch_bytes=SAMPLE_BYTES,
                patience_s=0.0,
                is_sample=True,
            )
            for leader, places in self._by_leader({*counts})
            for place in places
            if place in starts and place in ends
        ]
        self._progress.reading("sampling keys", samples)
        read_stretches(self._client, samples, take, self._progress.check)
        self._report.not_visible += [f"records of {one.name}: {one.problem}" for one in samples if one.problem]

    # -- requests --------------------------------------------------------------------------------------------------------

    def _offsets(
        self, topics: Iterable[LedTopic], timestamp: int | Callable[[str], int]
    ) -> dict[Place, tuple[int, int]]:
        """Return the offset and timestamp from ListOffsets for each partition whose leader answers without an error."""
        found: dict[Place, tuple[int, int]] = {}
        for leader, places in self._by_leader({topic.name for topic in topics}):
            asked = [
                {
                    "name": name,
                    "partitions": [
                        {"partition_index": one, "timestamp": timestamp(name) if callable(timestamp) else timestamp}
                        for one in numbers
                    ],
                }
                for name, numbers in _by_topic(places).items()
            ]
            fields = {"replica_id": -1, "isolation_level": 0, "topics": asked}
            for topic in self._client.broker(leader).ask(LIST_OFFSETS, fields, most=7)["topics"]:
                for one in topic["partitions"]:
                    if one["error_code"]:
                        self._hidden(f"offsets of {topic['name']}-{one['partition_index']}", one["error_code"])
                    else:
                        found[topic["name"], one["partition_index"]] = one["offset"], one["timestamp"]
        return found

    def _by_leader(self, topics: set[str]) -> Iterator[tuple[int, list[Place]]]:
        for leader, places in self._leaders.items():
            own = [place for place in places if place[0] in topics]
            if not own:
                continue
            try:
                self._client.broker(leader)
            except ConnectionFailed as error:
                self._report.not_visible.append(f"{counted(len(own), 'partition')} of broker {leader}: {error}")
                continue
            yield leader, own

    def _find(self, kind: str, topic: str, text: str, partition: int | None = None, *, visibility: str = KNOWN) -> None:
        self._report.findings.append(AuditFinding(kind, topic, text, partition, visibility))

    def _hidden(self, what: str, code: int) -> None:
        told = f"{what}: {error_name(code)}"
        if told not in self._report.not_visible:
            self._report.not_visible.append(told)


def _by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, partition in places:
        found.setdefault(topic, []).append(partition)
    return found
