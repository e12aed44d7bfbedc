"""The table of the metrics in `/metrics`: each row has a name, a description, and the function that collects the samples.

docs/reference/metrics.md is generated from it (`reference/metrics.py`).

To work with dashboards and alerts for Kafka, metrics have the names that Prometheus' JMX exporter derives from Kafka's MBeans
with its example rules (Strimzi's rules give the same): `kafka_<package>_<type>_<name>` in lower case, `-` as `_`, `…PerSec` as
`…_total`. Kafka's broker has no metrics for the lag of groups, since its clients measure it; these have the names of
kafka_exporter. All other metrics that Kafka lacks begin with `diamant_`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from diamant.broker.groups.coordinator.share_figures import SharePartitionFigures
from diamant.broker.metrics.coordinators import GroupFigures, Lag
from diamant.broker.metrics.erasure_deadline import DAY_MS, TopicDeadline
from diamant.broker.metrics.figures import (
    FETCH,
    FETCH_CONSUMER,
    Figures,
    Labels,
    LogFigures,
    QuotaFigure,
    TopicTraffic,
    offline_partitions,
    printable,
)
from diamant.broker.node.future_holds import future_holds
from diamant.broker.security.identity.authentication_counts import AuthenticationCounts
from diamant.cleaner.rules.result import REASONS
from diamant.cleaner.service.metrics import CleanerStatus, PartitionStatus, RoundStatus
from diamant.kernels import ARE_COMPILED
from diamant.protocol.wire import apis
from diamant.version import __version__

if TYPE_CHECKING:
    from diamant.broker.brokers.table import BrokerState
    from diamant.broker.dispatch.services import Services
    from diamant.broker.erasure.erase.erasures import Erasures
    from diamant.broker.erasure.redact.redactions import Redactions
    from diamant.broker.groups.delivery.share_sessions import ShareSessions
    from diamant.broker.person.people import People

GAUGE, COUNTER, UNTYPED, HISTOGRAM = "gauge", "counter", "untyped", "histogram"

Sample: TypeAlias = tuple[Labels, float]
_Parts: TypeAlias = Callable[[PartitionStatus], Iterable[tuple[str, float]]]
T = TypeVar("T")

MAX_REASON_LENGTH = 200
"""The maximum length of free text in a label."""
RUNNING, STOPPING = 3, 7
"""The values of RUNNING and SHUTTING_DOWN in Kafka's BrokerState."""
QUOTA_LABELS = ("resource", "user", "clientId")
"""The labels in the exporter's rules for quotas. `resource` is Kafka's type: Produce, Fetch, Request or ControllerMutation."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row. A sample has all `labels`, or none if it is the sum of all samples (`has_sum`).

    Exactly one of `samples`, `now` and `latencies` is set.
    """

    name: str
    kind: str
    meaning: str
    unit: str
    samples: Callable[[Figures], Iterable[Sample]] | None = None
    """Returns the samples from the figures that several metrics share. Callable from any thread."""
    now: Callable[[Services], Iterable[Sample]] | None = None
    """Returns the samples directly from the broker, without waiting. Only for the loop thread."""
    latencies: Callable[[Figures], Iterable[tuple[Labels, list[int], float]]] | None = None
    """Returns the samples of a histogram: labels, counts by latency bucket, total in ms. Callable from any thread."""
    mbean: str | None = None
    """Kafka's MBean and attribute; None if the metric is Diamant's own."""
    labels: tuple[str, ...] = ()
    has_sum: bool = False


_PARTITION = ("topic", "partition")


# -- rows of one kind ----------------------------------------------------------------------------------------------------


def _broker(name: str, mbean: str, meaning: str, unit: str, value: Callable[[Services], float]) -> Metric:
    return Metric(name, GAUGE, meaning, unit, now=_value(value), mbean=f"{mbean}:Value")


def _own(name: str, kind: str, meaning: str, unit: str, value: Callable[[Services], float | None]) -> Metric:
    return Metric(f"diamant_{name}", kind, meaning, unit, now=_value(value))


def _cleaner(name: str, mbean: str, meaning: str, unit: str, value: Callable[[CleanerStatus], float]) -> Metric:
    samples = _each(lambda f: f.of_cleaner, value)
    return Metric(f"kafka_log_{name}", GAUGE, meaning, unit, samples, mbean=f"kafka.log:type={mbean}:Value")


def _directory(name: str, mbean: str, meaning: str, unit: str, value: Callable[[CleanerStatus], float]) -> Metric:
    row = _cleaner(f"logcleanermanager_{name}", f"LogCleanerManager,name={mbean},logDirectory=…", meaning, unit, value)
    of_directory = _each(lambda f: [((f.directory,), cleaner) for _, cleaner in f.of_cleaner], value)
    return replace(row, samples=of_directory, labels=("logDirectory",))


def _cleaned(name: str, meaning: str, unit: str, value: Callable[[PartitionStatus], float | None]) -> Metric:
    samples = _each(lambda f: f.cleaned, value)
    return Metric(f"diamant_cleaner_{name}", GAUGE, meaning, unit, samples, labels=_PARTITION)


def _cleaned_by(label: str, name: str, meaning: str, unit: str, each: _Parts, kind: str = COUNTER) -> Metric:
    def samples(figures: Figures) -> Iterator[Sample]:
        for labels, status in figures.cleaned:
            for part, value in each(status):
                yield (*labels, part), value

    return Metric(f"diamant_cleaner_{name}", kind, meaning, unit, samples, labels=(*_PARTITION, label))


def _round(name: str, meaning: str, unit: str, value: Callable[[RoundStatus], float | None]) -> Metric:
    samples = _each(lambda f: f.rounds, value)
    return Metric(f"diamant_cleaner_round_{name}", GAUGE, meaning, unit, samples, labels=(*_PARTITION, "runner"))


def _deadline(name: str, meaning: str, unit: str, value: Callable[[TopicDeadline], float]) -> Metric:
    samples = _each(lambda f: [((deadline.topic,), deadline) for deadline in f.deadlines], value)
    return Metric(f"diamant_{name}", GAUGE, meaning, unit, samples, labels=("topic",))


def _jobs(name: str, meaning: str, kind: Callable[[Services], Erasures | Redactions | People | None]) -> Metric:
    def now(services: Services) -> Iterator[Sample]:
        made = kind(services)
        for outcome in ("done", "failed", "held"):
            yield (outcome,), 0 if made is None else getattr(made.table, outcome)

    return Metric(f"diamant_{name}_total", COUNTER, meaning, name, now=now, labels=("outcome",))


def _topic(name: str, mbean: str, meaning: str, unit: str, value: Callable[[TopicTraffic], float]) -> Metric:
    mbean = f"kafka.server:type=BrokerTopicMetrics,name={mbean}:Count"
    name = f"kafka_server_brokertopicmetrics_{name}_total"
    samples = _each(lambda f: f.topics.items(), value)
    return Metric(name, COUNTER, meaning, unit, samples, mbean=mbean, labels=("topic",), has_sum=True)


def _log(name: str, mbean: str, meaning: str, unit: str, value: Callable[[LogFigures], float]) -> Metric:
    mbean = f"kafka.log:type=Log,name={mbean},topic=…,partition=…:Value"
    samples = _each(lambda f: f.labelled_logs, value)
    return Metric(f"kafka_log_log_{name}", GAUGE, meaning, unit, samples, mbean=mbean, labels=_PARTITION)


def _groups(name: str, mbean: str, meaning: str, unit: str, value: Callable[[GroupFigures], float]) -> Metric:
    mbean = f"kafka.coordinator.group:type=GroupMetadataManager,name={mbean}:Value"
    name = f"kafka_coordinator_group_groupmetadatamanager_{name}"
    return Metric(name, GAUGE, meaning, unit, _each(lambda f: f.of_groups, value), mbean=mbean)


def _share(name: str, mbean: str, meaning: str, unit: str, value: Callable[[SharePartitionFigures], float]) -> Metric:
    samples = _each(lambda f: [((one.group, one.topic, str(one.partition)), one) for one in f.share_partitions], value)
    mbean, _, attribute = mbean.partition(":")
    mbean = f"kafka.server:type=SharePartitionMetrics,name={mbean},group=…,topic=…,partition=…:{attribute or 'Value'}"
    kind = COUNTER if attribute == "Count" else GAUGE
    name = f"kafka_server_sharepartitionmetrics_{name}"
    return Metric(name, kind, meaning, unit, samples, mbean=mbean, labels=("group", *_PARTITION))


def _share_sessions(name: str, mbean: str, meaning: str, unit: str, value: Callable[[ShareSessions], int]) -> Metric:
    def now(services: Services) -> Iterator[Sample]:
        made = services.groups.made
        yield (), 0 if made is None else value(made.share.delivery.sessions)

    mbean = f"kafka.server:type=ShareSessionCache,name={mbean}:Value"
    return Metric(f"kafka_server_sharesessioncache_{name}", GAUGE, meaning, unit, now=now, mbean=mbean)


def _acknowledged(services: Services) -> Iterator[Sample]:
    made = services.groups.made
    for kind in ("Accept", "Release", "Reject", "Renew"):
        counts = {} if made is None else {one.name: n for one, n in made.share.delivery.acknowledged.items()}
        yield (kind,), counts.get(kind.upper(), 0)


def _lag(name: str, meaning: str, unit: str, value: Callable[[Lag], float]) -> Metric:
    samples = _each(lambda f: f.lags, value)
    return Metric(f"kafka_consumergroup_{name}", GAUGE, meaning, unit, samples, labels=("consumergroup", *_PARTITION))


def _listener(
    kind: str, attribute: str, meaning: str, unit: str, value: Callable[[AuthenticationCounts], float]
) -> Metric:
    mbean = f"kafka.server:type=socket-server-metrics,listener=*,networkProcessor=*:{attribute}"
    name = f"kafka_server_socket_server_metrics_{attribute.replace('-', '_')}"
    samples = _each(lambda f: f.authentications, value)
    return Metric(name, kind, meaning, unit, samples, mbean=mbean, labels=("listener", "networkProcessor"))


def _quota(attribute: str, meaning: str, unit: str, value: Callable[[QuotaFigure], float | None]) -> Metric:
    mbean = f"kafka.server:type=*,user=*,client-id=*:{attribute}"
    name = f"kafka_server_quota_{attribute.replace('-', '_')}"
    samples = _each(lambda f: ((figure.labels, figure) for figure in f.quotas), value)
    return Metric(name, GAUGE, meaning, unit, samples, mbean=mbean, labels=QUOTA_LABELS)


# -- samples -------------------------------------------------------------------------------------------------------------


def _each(
    items: Callable[[Figures], Iterable[tuple[Labels, T]]], value: Callable[[T], float | None]
) -> Callable[[Figures], Iterator[Sample]]:
    """Return a function that yields a sample for each item that has a value."""

    def samples(figures: Figures) -> Iterator[Sample]:
        for labels, item in items(figures):
            found = value(item)
            if found is not None:
                yield labels, found

    return samples


def _value(value: Callable[[Services], float | None]) -> Callable[[Services], list[Sample]]:
    """Return a function that returns a sample without labels, if there is a value."""

    def now(services: Services) -> list[Sample]:
        found = value(services)
        return [] if found is None else [((), found)]

    return now


def _must_clean_ratio(figures: Figures) -> Iterator[Sample]:
    yield from ((labels, cleaner.must_clean_ratio) for labels, cleaner in figures.of_cleaner)
    yield from ((labels, status.must_clean_ratio) for labels, status in figures.cleaned)


def _trouble(status: PartitionStatus) -> Iterable[tuple[str, int]]:
    return () if status.trouble is None else [(printable(status.trouble)[:MAX_REASON_LENGTH], 1)]


def _by_reason(counts: Mapping[str, int]) -> Iterable[tuple[str, int]]:
    """Return the counts of all reasons, even if 0: rate() misses the first increment of a counter that did not exist before."""
    return [(reason, counts.get(reason, 0)) for reason in REASONS]


def _consumers_behind(figures: Figures) -> Iterator[Sample]:
    for deadline in figures.deadlines:
        for partition, count in deadline.consumers_behind:
            yield (deadline.topic, str(partition)), math.nan if count is None else count


def _request_counts(figures: Figures) -> Iterator[Sample]:
    for api, versions in figures.requests.items():
        for version in versions:
            yield (api, str(version.version)), sum(version.buckets)


def _latencies(figures: Figures) -> Iterator[tuple[Labels, list[int], float]]:
    for api, versions in figures.requests.items():
        counts = [sum(column) for column in zip(*(version.buckets for version in versions), strict=True)]
        yield (api,), counts, sum(version.total_ms for version in versions)


def _request_errors(figures: Figures) -> Iterator[Sample]:
    for api, versions in figures.requests.items():
        errors: Counter[str] = Counter()
        for version in versions:
            errors.update(dict(version.errors))
        own = FETCH if api == FETCH_CONSUMER else api
        errors.update({error: count for (failed, error), count in figures.partition_errors if failed == own})
        for error, count in errors.items():
            yield (api, error), count


def _faults_fired(services: Services) -> Iterator[Sample]:
    made = services.faults.made
    for (effect, key), count in sorted(made.fired.items()) if made is not None else ():
        yield (effect, apis.API_NAMES[key]), count


def _brokers(services: Services) -> Sequence[BrokerState]:
    brokers = services.node.topics.brokers
    return () if brokers is None else brokers.states()


def _partition_count(services: Services) -> int:
    return sum(len(topic.partitions) for topic in services.node.topics.image.topics.values())


# -- the rows ------------------------------------------------------------------------------------------------------------

_ROWS = (
    # The cleaner, as Kafka measures it
    _cleaner(
        "logcleaner_max_buffer_utilization_percent",
        "LogCleaner,name=max-buffer-utilization-percent",
        "Highest utilization of a thread's offset map at the end of its last round.",
        "percent",
        lambda c: c.max_buffer_utilization_percent,
    ),
    _cleaner(
        "logcleaner_cleaner_recopy_percent",
        "LogCleaner,name=cleaner-recopy-percent",
        "Bytes written divided by bytes read, in the last rounds of all threads.",
        "percent",
        lambda c: c.cleaner_recopy_percent,
    ),
    _cleaner(
        "logcleaner_max_clean_time_secs",
        "LogCleaner,name=max-clean-time-secs",
        "Longest duration of a thread's last round.",
        "seconds",
        lambda c: c.max_clean_time_secs,
    ),
    _cleaner(
        "logcleaner_max_compaction_delay_secs",
        "LogCleaner,name=max-compaction-delay-secs",
        "Time by which max.compaction.lag.ms was exceeded when a log was last picked.",
        "seconds",
        lambda c: c.max_compaction_delay_secs,
    ),
    _cleaner(
        "logcleaner_deadthreadcount",
        "LogCleaner,name=DeadThreadCount",
        "Cleaner threads that ended with an error.",
        "threads",
        lambda c: c.dead_thread_count,
    ),
    _directory(
        "uncleanable_partitions_count",
        "uncleanable-partitions-count",
        "Partitions that the cleaner skips after an error, and partitions with a damaged segment that it skips.",
        "partitions",
        lambda c: c.uncleanable_partitions_count,
    ),
    _directory(
        "uncleanable_bytes",
        "uncleanable-bytes",
        "Cleanable bytes in partitions that the cleaner skips, and bytes of damaged segments that it skips.",
        "bytes",
        lambda c: c.uncleanable_bytes,
    ),
    _cleaner(
        "logcleanermanager_max_dirty_percent",
        "LogCleanerManager,name=max-dirty-percent",
        "The highest dirty ratio of all partitions at the last scan.",
        "percent",
        lambda c: c.max_dirty_percent,
    ),
    _cleaner(
        "logcleanermanager_time_since_last_run_ms",
        "LogCleanerManager,name=time-since-last-run-ms",
        "Time since the cleaner last searched for partitions to clean.",
        "milliseconds",
        lambda c: c.time_since_last_run_ms,
    ),
    Metric(
        "kafka_utils_throttler_cleaner_io_count",
        UNTYPED,
        "Bytes read and written by the cleaner.",
        "bytes",
        _each(lambda f: f.of_cleaner, lambda c: c.io_bytes_total),
        mbean="kafka.utils:type=Throttler,name=cleaner-io:Count",
    ),
    # The cleaner, per partition
    _cleaned(
        "dirty_ratio",
        "Dirty bytes divided by all cleanable bytes, at the last scan.",
        "0 to 1",
        lambda p: p.dirty_ratio,
    ),
    Metric(
        "diamant_cleaner_must_clean_partitions",
        GAUGE,
        "Partitions with closed segments past max.compaction.lag.ms, including those blocked by open transactions.",
        "partitions",
        _each(lambda f: f.of_cleaner, lambda c: c.must_clean_partitions),
    ),
    Metric(
        "diamant_cleaner_must_clean_ratio",
        GAUGE,
        "Dirty bytes past max.compaction.lag.ms divided by all cleanable bytes; without labels: for all partitions together.",
        "0 to 1",
        _must_clean_ratio,
        labels=_PARTITION,
        has_sum=True,
    ),
    _cleaned(
        "compaction_lag_seconds",
        "Age of the oldest record that no round has cleaned.",
        "seconds",
        lambda p: p.compaction_lag_ms / 1000,
    ),
    _cleaned(
        "overdue_seconds",
        "Time since the earliest due time that was missed (max.compaction.lag.ms or a delete horizon); 0 if none was missed.",
        "seconds",
        lambda p: p.overdue_ms / 1000,
    ),
    _cleaned(
        "last_cleaned_timestamp_seconds",
        "End of the last round, even if that was before the broker's start; missing if none is known.",
        "seconds since 1970",
        lambda p: None if p.last_cleaned_ms is None else p.last_cleaned_ms / 1000,
    ),
    _cleaned_by(
        "reason",
        "removed_records_total",
        "Records removed, by reason. Transaction markers have their own reason.",
        "records",
        lambda p: _by_reason(p.records_removed),
    ),
    _cleaned_by(
        "reason",
        "removed_bytes_total",
        "Uncompressed size of removed records.",
        "bytes",
        lambda p: _by_reason(p.bytes_removed),
    ),
    _cleaned_by("runner", "rounds_total", "Finished rounds, by runner.", "rounds", lambda p: p.rounds.items()),
    _round("log_bytes", "Size of the log in the round in progress.", "bytes", lambda r: r.progress.total),
    _round(
        "log_done_bytes",
        "Bytes of the log that the round in progress has processed; its `deriv()` is the speed of the round.",
        "bytes",
        lambda r: r.progress.done,
    ),
    _round(
        "left_seconds",
        "Estimated remaining time of the round in progress, at its speed so far; missing during its first second.",
        "seconds",
        lambda r: r.progress.left_s,
    ),
    _round("io_bytes", "Bytes read and written by the round in progress.", "bytes", lambda r: r.io_bytes),
    _own(
        "future_hold_partitions",
        GAUGE,
        "Partitions whose oldest segment is kept longer than `retention.ms` because of a timestamp in the future.",
        "partitions",
        lambda s: len(future_holds(s.node)),
    ),
    _cleaned_by(
        "reason",
        "uncleanable_info",
        "1 while the cleaner skips the partition, or a damaged segment of it; the label states the reason, file and position.",
        "1",
        _trouble,
        GAUGE,
    ),
    # Superseded values, tombstones and erasures
    _deadline(
        "oldest_superseded_age_seconds",
        "Upper bound of the age of the oldest superseded value: the age of the oldest record that no round has cleaned. Near the "
        "deadline, the broker checks for superseded values; 0 if it finds none.",
        "seconds",
        lambda d: (d.superseded_age_ms or 0) / 1000,
    ),
    _deadline(
        "oldest_tombstone_age_seconds",
        "Age of the oldest tombstone in the clean part, since the round that first kept it; 0 if none is known.",
        "seconds",
        lambda d: (d.tombstone_age_ms or 0) / 1000,
    ),
    _deadline(
        "erasure_deadline_days_left",
        "Time until the oldest superseded value or tombstone reaches diamant.erasure.deadline.ms; negative if it has.",
        "days",
        lambda d: d.left_ms / DAY_MS,
    ),
    _deadline(
        "erasure_deadline_not_told",
        "Partitions near the deadline that are too large to check for superseded values; they do not count as late.",
        "partitions",
        lambda d: len(d.not_told),
    ),
    Metric(
        "diamant_tombstone_consumers_behind",
        GAUGE,
        "Groups whose committed offset has not passed the last segment with a tombstone; missing if none is known, NaN until all "
        "groups are loaded.",
        "groups",
        _consumers_behind,
        labels=_PARTITION,
    ),
    _jobs(
        "erasures",
        "Erasures since the start, by outcome. `done`: with a certificate of `key-gone` or `nothing-matched`; `failed`: without "
        "a certificate, or cancelled; `held`: attempts without a certificate that are retried.",
        lambda s: s.erasures.made,
    ),
    _jobs(
        "redactions",
        "Redactions since the start, by outcome. `done`: with a certificate; `failed`: without a certificate, or cancelled; "
        "`held`: attempts without a certificate that are retried.",
        lambda s: s.redactions.made,
    ),
    _jobs(
        "person_requests",
        "Requests of persons since the start, by outcome. `done`: with a last paper; `failed`: without one, or cancelled; "
        "`held`: attempts after which the request continues later.",
        lambda s: s.people.made,
    ),
    _own(
        "person_requests_open",
        GAUGE,
        "Requests of persons that are received or in progress.",
        "requests",
        lambda s: 0 if s.people.made is None else s.people.made.register.open_count,
    ),
    _own(
        "person_requests_days_left",
        GAUGE,
        "Time until the first open request of a person is due; negative if it is overdue, NaN if none is open.",
        "days",
        lambda s: math.nan if s.people.made is None else s.people.made.days_left(),
    ),
    # Topics
    _topic("messagesin", "MessagesInPerSec", "Messages written by producers.", "messages", lambda t: t.messages_in),
    _topic(
        "bytesin", "BytesInPerSec", "Bytes of batches written by producers, as stored.", "bytes", lambda t: t.bytes_in
    ),
    _topic("bytesout", "BytesOutPerSec", "Bytes of batches sent to consumers.", "bytes", lambda t: t.bytes_out),
    Metric(
        "kafka_server_brokertopicmetrics_nokeycompactedtopicrecords_total",
        COUNTER,
        "Records refused because they had no key and their topic is compacted.",
        "records",
        now=_value(lambda s: s.node.topic_metrics.no_key_compacted_topic_records),
        mbean="kafka.server:type=BrokerTopicMetrics,name=NoKeyCompactedTopicRecordsPerSec:Count",
    ),
    # Logs
    _log("size", "Size", "Size of all segments.", "bytes", lambda log: log.size),
    _log("numlogsegments", "NumLogSegments", "Segments.", "segments", lambda log: log.segment_count),
    _log("logstartoffset", "LogStartOffset", "First readable offset.", "offset", lambda log: log.log_start_offset),
    _log("logendoffset", "LogEndOffset", "Offset of the next message.", "offset", lambda log: log.log_end_offset),
    # Requests
    Metric(
        "kafka_network_requestmetrics_requests_total",
        COUNTER,
        "Requests completed, with or without a response.",
        "requests",
        _request_counts,
        mbean="kafka.network:type=RequestMetrics,name=RequestsPerSec,request=…,version=…:Count",
        labels=("request", "version"),
    ),
    Metric(
        "kafka_network_requestmetrics_totaltimems",
        HISTOGRAM,
        "Time from the start of a request's handling to the last byte of its response, without its time in the queue.",
        "milliseconds",
        latencies=_latencies,
        mbean="kafka.network:type=RequestMetrics,name=TotalTimeMs,request=…:Count",
        labels=("request",),
    ),
    Metric(
        "kafka_network_requestmetrics_errors_total",
        COUNTER,
        "Error codes other than NONE in responses, counted once per partition, topic or group.",
        "errors",
        _request_errors,
        mbean="kafka.network:type=RequestMetrics,name=ErrorsPerSec,request=…,error=…:Count",
        labels=("request", "error"),
    ),
    # Groups
    _groups("numgroups", "NumGroups", "Classic groups, and groups without members.", "groups", lambda g: g.classic()),
    _groups(
        "numgroupspreparingrebalance",
        "NumGroupsPreparingRebalance",
        "Groups that are waiting for members to join.",
        "groups",
        lambda g: g.classic("PreparingRebalance"),
    ),
    _groups(
        "numgroupscompletingrebalance",
        "NumGroupsCompletingRebalance",
        "Groups that are waiting for their assignment.",
        "groups",
        lambda g: g.classic("CompletingRebalance"),
    ),
    _groups(
        "numgroupsstable",
        "NumGroupsStable",
        "Classic groups with an assignment.",
        "groups",
        lambda g: g.classic("Stable"),
    ),
    _groups("numgroupsdead", "NumGroupsDead", "Classic groups being removed.", "groups", lambda g: g.classic("Dead")),
    _groups("numgroupsempty", "NumGroupsEmpty", "Groups without members.", "groups", lambda g: g.classic("Empty")),
    _groups("numoffsets", "NumOffsets", "Committed offsets of all groups.", "offsets", lambda g: g.offset_count),
    _share(
        "inflightmessagecount",
        "InFlightMessageCount",
        "Records in flight in a share partition: from its start offset to the last record that was acquired.",
        "records",
        lambda one: one.in_flight,
    ),
    _share(
        "inflightbatchcount",
        "InFlightBatchCount",
        "Batches in flight in a share partition.",
        "batches",
        lambda one: one.batches,
    ),
    _share(
        "inflightbatchmessagecount_max",
        "InFlightBatchMessageCount:Max",
        "Records in the largest batch in flight in a share partition.",
        "records",
        lambda one: one.largest_batch,
    ),
    _share(
        "acquisitionlocktimeout_total",
        "AcquisitionLockTimeoutPerSec:Count",
        "Records of a share partition whose acquisition locks timed out before they were acknowledged.",
        "records",
        lambda one: one.lock_timeouts,
    ),
    Metric(
        "kafka_server_sharegroupmetrics_recordacknowledgements_total",
        COUNTER,
        "Records that members of share groups have acknowledged.",
        "records",
        now=_acknowledged,
        mbean="kafka.server:type=ShareGroupMetrics,name=RecordAcknowledgementsPerSec,ackType=…:Count",
        labels=("ackType",),
    ),
    _share_sessions(
        "sharesessionscount",
        "ShareSessionsCount",
        "Share sessions.",
        "sessions",
        lambda sessions: len(sessions.by_key),
    ),
    _share_sessions(
        "sharepartitionscount",
        "SharePartitionsCount",
        "Partitions of all share sessions.",
        "partitions",
        lambda sessions: sum(len(one.places) for one in sessions.by_key.values()),
    ),
    Metric(
        "diamant_groups",
        GAUGE,
        "Groups by type and state.",
        "groups",
        lambda f: () if f.groups is None else f.groups.states,
        labels=("type", "state"),
    ),
    _lag(
        "lag", "Offsets from the group's committed offset to the end of the partition.", "offsets", lambda lag: lag.lag
    ),
    _lag(
        "current_offset", "Committed offset of the group for the partition.", "offset", lambda lag: lag.committed_offset
    ),
    Metric(
        "diamant_consumergroup_lags_left_out",
        GAUGE,
        "Partitions of groups that the lag and current_offset metrics leave out, because 10,000 others have greater lags.",
        "partitions",
        _each(lambda f: f.of_groups, lambda g: g.lags_left_out),
    ),
    Metric(
        "diamant_consumergroup_uncommitted_partitions",
        GAUGE,
        "Partitions without a committed offset that members of the group own, so that their lag is unknown; missing if none.",
        "partitions",
        lambda f: () if f.groups is None else (((name,), count) for name, count in f.groups.uncommitted),
        labels=("consumergroup",),
    ),
    # Transactions
    Metric(
        "diamant_transactional_ids",
        GAUGE,
        "Transactional ids by state.",
        "ids",
        lambda f: () if f.transactions is None else (((state,), count) for state, count in f.transactions.states),
        labels=("state",),
    ),
    Metric(
        "diamant_transactions_open",
        GAUGE,
        "Transactions in progress or ending.",
        "transactions",
        lambda f: () if f.transactions is None else [((), f.transactions.open_count)],
    ),
    Metric(
        "diamant_transaction_open_age_seconds",
        GAUGE,
        "Age of each open transaction, for the 1,000 oldest.",
        "seconds",
        lambda f: () if f.transactions is None else (((name,), age / 1000) for age, name in f.transactions.open),
        labels=("transactional_id",),
    ),
    # Faults
    _own("faults", GAUGE, "Installed faults.", "faults", lambda s: 0 if s.faults.made is None else len(s.faults.made)),
    Metric(
        "diamant_faults_fired_total",
        COUNTER,
        "Requests affected by a fault.",
        "requests",
        now=_faults_fired,
        labels=("effect", "request"),
    ),
    # The broker
    _broker(
        "kafka_server_kafkaserver_brokerstate",
        "kafka.server:type=KafkaServer,name=BrokerState",
        "3: running; 7: stopping.",
        "state",
        lambda s: STOPPING if s.node.is_stopping else RUNNING,
    ),
    _broker(
        "kafka_server_replicamanager_partitioncount",
        "kafka.server:type=ReplicaManager,name=PartitionCount",
        "Partitions of this broker.",
        "partitions",
        _partition_count,
    ),
    _broker(
        "kafka_server_replicamanager_leadercount",
        "kafka.server:type=ReplicaManager,name=LeaderCount",
        "Partitions led by this broker: all those that could be opened.",
        "partitions",
        lambda s: len(s.node.directory.logs),
    ),
    Metric(
        "diamant_broker_up",
        GAUGE,
        "1 if this broker of the process is up, 0 if it is down. Only with several brokers (`diamant.brokers`).",
        "",
        now=lambda s: [((str(one.broker_id),), int(one.is_up)) for one in _brokers(s)],
        labels=("broker",),
    ),
    Metric(
        "diamant_broker_leaders",
        GAUGE,
        "Partitions that this broker of the process leads. Only with several brokers (`diamant.brokers`).",
        "partitions",
        now=lambda s: [((str(one.broker_id),), one.leads) for one in _brokers(s)],
        labels=("broker",),
    ),
    _broker(
        "kafka_server_replicamanager_offlinereplicacount",
        "kafka.server:type=ReplicaManager,name=OfflineReplicaCount",
        "Partitions that could not be opened, or whose disk failed.",
        "partitions",
        lambda s: offline_partitions(s.node),
    ),
    _broker(
        "kafka_controller_kafkacontroller_activecontrollercount",
        "kafka.controller:type=KafkaController,name=ActiveControllerCount",
        "Always 1: this node is the only controller.",
        "controllers",
        lambda _: 1,
    ),
    _broker(
        "kafka_controller_kafkacontroller_globaltopiccount",
        "kafka.controller:type=KafkaController,name=GlobalTopicCount",
        "Topics.",
        "topics",
        lambda s: len(s.node.topics.image.topics),
    ),
    _broker(
        "kafka_controller_kafkacontroller_globalpartitioncount",
        "kafka.controller:type=KafkaController,name=GlobalPartitionCount",
        "Partitions of all topics.",
        "partitions",
        _partition_count,
    ),
    Metric(
        "kafka_server_delayedoperationpurgatory_purgatorysize",
        GAUGE,
        "Fetches waiting for data.",
        "requests",
        now=lambda s: [((FETCH,), len(s.node.purgatory))],
        mbean="kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize,delayedOperation=Fetch:Value",
        labels=("delayedOperation",),
    ),
    _own("connections", GAUGE, "Connections of Kafka clients.", "connections", lambda s: len(s.server.connections)),
    _own(
        "connections_created_total",
        COUNTER,
        "Connections accepted.",
        "connections",
        lambda s: s.server.metrics.connections_created,
    ),
    _own(
        "connections_closed_total",
        COUNTER,
        "Connections closed.",
        "connections",
        lambda s: s.server.metrics.connections_closed,
    ),
    _own(
        "received_bytes_total",
        COUNTER,
        "Bytes received from Kafka clients.",
        "bytes",
        lambda s: s.server.metrics.received_bytes,
    ),
    _own(
        "sent_bytes_total",
        COUNTER,
        "Bytes of responses sent to Kafka clients.",
        "bytes",
        lambda s: s.server.metrics.sent_bytes,
    ),
    Metric(
        "diamant_build_info",
        GAUGE,
        "Always 1; the label is the version.",
        "1",
        lambda _: [((__version__,), 1)],
        labels=("version",),
    ),
    Metric(
        "diamant_has_kernels",
        GAUGE,
        "1, or 0 in a broker that was built without kernels, which cleans 6 to 18 times slower.",
        "1",
        lambda _: [((), int(ARE_COMPILED))],
    ),
    # Authentication
    _listener(
        COUNTER,
        "successful-authentication-total",
        "Connections authenticated by SASL, or by TLS alone.",
        "connections",
        lambda counts: counts.successful,
    ),
    _listener(
        COUNTER,
        "failed-authentication-total",
        "Connections that failed authentication by SASL, or the TLS handshake.",
        "connections",
        lambda counts: counts.failed,
    ),
    _listener(
        COUNTER,
        "successful-reauthentication-total",
        "Successful re-authentications.",
        "re-authentications",
        lambda counts: counts.successful_again,
    ),
    _listener(
        COUNTER,
        "failed-reauthentication-total",
        "Connections closed after a failed re-authentication.",
        "re-authentications",
        lambda counts: counts.failed_again,
    ),
    _listener(
        GAUGE,
        "expired-connections-killed-count",
        "Connections closed because they did not re-authenticate in time.",
        "connections",
        lambda counts: counts.expired,
    ),
    # Quotas
    _quota(
        "byte-rate",
        "Rate at which clients with a byte quota produce or fetch.",
        "bytes/s",
        lambda q: q.byte_rate,
    ),
    _quota(
        "request-time",
        "Share of the broker thread's time used by clients with a `request_percentage`.",
        "percent",
        lambda q: q.request_time,
    ),
    _quota(
        "tokens",
        "Tokens of clients with a `controller_mutation_rate`: partitions that they may change now; negative if they have a debt.",
        "partitions",
        lambda q: q.tokens,
    ),
    _quota(
        "throttle-time",
        "Average throttle time of clients that exceeded their quota, in the last minute.",
        "ms",
        lambda q: q.throttle_time_ms,
    ),
    _own(
        "throttled_connections_total",
        COUNTER,
        "Connections delayed or refused because of a limit on their rate.",
        "connections",
        lambda s: None if s.server.admission is None else s.server.admission.quotas.throttled,
    ),
)

METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _ROWS}
"""The rows of the table by name, in the order in which `/metrics` shows them."""
