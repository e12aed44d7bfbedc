"""The metrics of a broker in Prometheus' format, collected for each scrape.

The loop thread takes a `MetricsSnapshot` of plain values (`take`); any thread renders it as text (`render`). Nothing is kept
between scrapes or registered in prometheus_client's global registry, since a process may run several brokers.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    UntypedMetricFamily,
)
from prometheus_client.registry import Collector

from diamant.broker.metrics.authentications import Authentications, authentication_samples, take_authentications
from diamant.broker.metrics.coordinators import GroupFigures, TransactionFigures, take_groups, take_transactions
from diamant.broker.metrics.erasure_deadline import TopicDeadline, take_deadlines
from diamant.broker.metrics.erasure_deadline import samples as deadline_samples
from diamant.broker.metrics.offline import offline_partitions
from diamant.broker.metrics.quotas import QuotaFigure, take_quotas
from diamant.broker.metrics.table import COUNTER, GAUGE, HISTOGRAM, METRICS
from diamant.broker.network.request_metrics import LATENCY_BOUNDS_MS, RequestMetrics
from diamant.broker.node.future_holds import future_holds
from diamant.broker.node.topic_metrics import TopicCounts
from diamant.cleaner.rules.result import REASONS
from diamant.cleaner.service.metrics import CleanerStatus, PartitionStatus
from diamant.kernels import ARE_COMPILED
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire import apis
from diamant.version import __version__

if TYPE_CHECKING:
    from diamant.broker.dispatch.services import Services
    from diamant.broker.erasure.erase.erasures import Erasures
    from diamant.broker.erasure.redact.redactions import Redactions

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

RUNNING, STOPPING = 3, 7
"""Kafka's BrokerState RUNNING and SHUTTING_DOWN."""

MAX_REASON_LENGTH = 200
"""The longest free text in a label."""

LOGS_PER_TURN = 256

FETCH, FETCH_CONSUMER = "Fetch", "FetchConsumer"
CLASSIC = "classic"
CLASSIC_STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty")
"""Kafka's states of classic groups, each with its own metric."""

Sample = tuple[str, tuple[str, ...], float]
"""The name of the metric, the values of its labels (none: the sum over all), the value."""


class LogFigures(NamedTuple):
    """The figures of a partition's log."""

    topic: str
    partition: int
    size: int
    segment_count: int
    log_start_offset: int
    log_end_offset: int


class RequestFigures(NamedTuple):
    """The figures of one API version. `buckets`: responses by latency; the last bucket has no upper bound."""

    api: str
    version: int
    buckets: tuple[int, ...]
    total_ms: float
    errors: tuple[tuple[str, int], ...]


class TrafficFigures(NamedTuple):
    """The numbers of connections, and of bytes received and sent."""

    connections_created: int
    connections_closed: int
    received_bytes: int
    sent_bytes: int


class TopicTraffic(NamedTuple):
    """The traffic of a topic."""

    messages_in: int
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """The figures of all metrics of a broker."""

    is_running: bool
    data_dir: str
    topic_count: int
    partition_count: int
    offline_count: int
    future_hold_count: int
    connection_count: int
    waiting_fetch_count: int
    topics: tuple[tuple[str, TopicTraffic], ...]
    all_topics: TopicTraffic
    no_key_compacted_topic_records: int
    logs: tuple[LogFigures, ...]
    cleaner: CleanerStatus | None
    deadlines: tuple[TopicDeadline, ...]
    erasures: tuple[int, int, int]
    """Done, failed and held."""
    redactions: tuple[int, int, int]
    """Done, failed and held."""
    requests: tuple[RequestFigures, ...]
    partition_errors: tuple[tuple[tuple[str, str], int], ...]
    """The errors of Produce and Fetch, by (API, error)."""
    traffic: TrafficFigures
    groups: GroupFigures | None
    transactions: TransactionFigures | None
    authentications: Authentications
    quotas: tuple[QuotaFigure, ...]
    throttled_connections: int | None
    """None if new connections are not limited."""
    fault_count: int
    faults_fired: tuple[tuple[tuple[str, str], int], ...]


async def take(services: Services) -> MetricsSnapshot:
    """Collect the figures on the loop thread, yielding to other tasks in between."""
    node, server = services.node, services.server
    logs = []
    image_topics = node.topics.image.topics
    offline_count = offline_partitions(node)
    for count, log in enumerate(list(node.directory.logs.values()), start=1):
        logs.append(
            LogFigures(log.topic, log.partition, log.size, len(log.segments), log.log_start_offset, log.log_end_offset)
        )
        if count % LOGS_PER_TURN == 0:
            await asyncio.sleep(0)
    counts = node.topic_metrics
    return MetricsSnapshot(
        is_running=not node.is_stopping,
        data_dir=node.config.data_dir,
        topic_count=len(image_topics),
        partition_count=sum(len(topic.partitions) for topic in image_topics.values()),
        offline_count=offline_count,
        future_hold_count=len(future_holds(node)),
        connection_count=len(server.connections),
        waiting_fetch_count=len(node.purgatory),
        topics=tuple((name, _figures(topic)) for name, topic in sorted(counts.by_topic().items())),
        all_topics=_figures(counts.all_topics()),
        no_key_compacted_topic_records=counts.no_key_compacted_topic_records,
        logs=tuple(sorted(logs)),
        cleaner=services.cleaning.status() if node.config.log_cleaner_enable else None,
        deadlines=tuple(await take_deadlines(node, services.cleaning, services.groups)),
        erasures=_outcomes(services.erasures.made),
        redactions=_outcomes(services.redactions.made),
        requests=_request_figures(server.metrics),
        partition_errors=tuple(
            ((apis.API_NAMES[key], _error_name(code)), count) for (key, code), count in sorted(counts.errors.items())
        ),
        traffic=_traffic(server.metrics),
        groups=await take_groups(services.groups.made, node.topics),
        transactions=take_transactions(services.transactions.made, node.env.clock),
        authentications=take_authentications(node.config.listeners, node.tls, server.sasl),
        quotas=take_quotas(services.quotas.clients.made),
        throttled_connections=None if server.admission is None else server.admission.quotas.throttled,
        fault_count=0 if services.faults.made is None else len(services.faults.made),
        faults_fired=tuple(
            ((effect, apis.API_NAMES[key]), count)
            for (effect, key), count in sorted(services.faults.made.fired.items())
        )
        if services.faults.made is not None
        else (),
    )


def _outcomes(kind: Erasures | Redactions | None) -> tuple[int, int, int]:
    """The numbers done, failed and held."""
    return (0, 0, 0) if kind is None else (kind.table.done, kind.table.failed, kind.table.held)


def _request_figures(counted: RequestMetrics) -> tuple[RequestFigures, ...]:
    return tuple(
        RequestFigures(
            apis.API_NAMES.get(row.api_key, str(row.api_key)),
            row.version,
            tuple(row.buckets),
            row.total_s * 1000,
            tuple((_error_name(code), count) for code, count in sorted(row.errors.items())),
        )
        for row in counted.rows()
    )


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def _traffic(counted: RequestMetrics) -> TrafficFigures:
    return TrafficFigures(
        counted.connections_created,
        counted.connections_closed,
        counted.received_bytes,
        sum(row.sent_bytes for row in counted.rows()),
    )


def render(snapshot: MetricsSnapshot) -> bytes:
    """Render the text of `CONTENT_TYPE`. Any thread."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SnapshotCollector(snapshot))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


def _figures(counts: TopicCounts) -> TopicTraffic:
    return TopicTraffic(counts.messages_in, counts.bytes_in, counts.bytes_out)


class SnapshotCollector(Collector):
    """A snapshot as prometheus_client's collector: the metric families that have samples, in the table's order."""

    def __init__(self, snapshot: MetricsSnapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        families: dict[str, _Family] = {}
        for name, labels, value in samples(self._snapshot):
            family = families.get(name)
            if family is None:
                family = families[name] = _family(name)
            assert not isinstance(family, HistogramMetricFamily)
            family.add_metric(labels, value)
        families.update(_histograms(self._snapshot))
        return [families[name] for name in METRICS if name in families]


_Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily | UntypedMetricFamily | HistogramMetricFamily


def _histograms(snapshot: MetricsSnapshot) -> dict[str, HistogramMetricFamily]:
    name = "kafka_network_requestmetrics_totaltimems"
    family = HistogramMetricFamily(name, METRICS[name].meaning, labels=METRICS[name].labels)
    bounds = [*map(str, map(float, LATENCY_BOUNDS_MS)), "+Inf"]
    for api, figures in _by_api(snapshot).items():
        sums = [sum(column) for column in zip(*(one.buckets for one in figures), strict=True)]
        cumulated = [*itertools.accumulate(sums)]
        family.add_metric((api,), [*zip(bounds, cumulated, strict=True)], sum(one.total_ms for one in figures))
    return {name: family} if family.samples else {}


def _family(name: str) -> CounterMetricFamily | GaugeMetricFamily | UntypedMetricFamily:
    row = METRICS[name]
    assert row.kind != HISTOGRAM
    if row.kind == COUNTER:
        return CounterMetricFamily(name, row.meaning, labels=row.labels)
    if row.kind == GAUGE:
        return GaugeMetricFamily(name, row.meaning, labels=row.labels)
    return UntypedMetricFamily(name, row.meaning, labels=row.labels)


# -- samples -------------------------------------------------------------------------------------------------------------


def samples(snapshot: MetricsSnapshot) -> Iterator[Sample]:
    """Yield every sample; the names are those of the table."""
    yield from _of_broker(snapshot)
    yield from _of_requests(snapshot)
    yield from _of_topics(snapshot)
    if snapshot.groups is not None:
        yield from _of_groups(snapshot.groups)
    if snapshot.transactions is not None:
        yield from _of_transactions(snapshot.transactions)
    yield from authentication_samples(snapshot.authentications)
    for figure in snapshot.quotas:
        yield figure.metric, (figure.resource, figure.user, figure.client_id), figure.value
    if snapshot.throttled_connections is not None:
        yield "diamant_throttled_connections_total", (), snapshot.throttled_connections
    yield "diamant_faults", (), snapshot.fault_count
    for labels, count in snapshot.faults_fired:
        yield "diamant_faults_fired_total", labels, count
    for log in snapshot.logs:
        labels = (log.topic, str(log.partition))
        yield "kafka_log_log_size", labels, log.size
        yield "kafka_log_log_numlogsegments", labels, log.segment_count
        yield "kafka_log_log_logstartoffset", labels, log.log_start_offset
        yield "kafka_log_log_logendoffset", labels, log.log_end_offset
    yield from deadline_samples(snapshot.deadlines)
    for outcome, count in zip(("done", "failed", "held"), snapshot.erasures, strict=True):
        yield "diamant_erasures_total", (outcome,), count
    for outcome, count in zip(("done", "failed", "held"), snapshot.redactions, strict=True):
        yield "diamant_redactions_total", (outcome,), count
    if snapshot.cleaner is not None:
        yield from _of_cleaner(snapshot.cleaner, _printable(snapshot.data_dir))
        for status in snapshot.cleaner.partitions:
            yield from _of_cleaned_partition(status)


def _of_broker(snapshot: MetricsSnapshot) -> Iterator[Sample]:
    yield "kafka_server_kafkaserver_brokerstate", (), RUNNING if snapshot.is_running else STOPPING
    yield "kafka_server_replicamanager_partitioncount", (), snapshot.partition_count
    yield "kafka_server_replicamanager_leadercount", (), len(snapshot.logs)
    yield "kafka_server_replicamanager_offlinereplicacount", (), snapshot.offline_count
    yield "diamant_future_hold_partitions", (), snapshot.future_hold_count
    yield "kafka_controller_kafkacontroller_activecontrollercount", (), 1
    yield "kafka_controller_kafkacontroller_globaltopiccount", (), snapshot.topic_count
    yield "kafka_controller_kafkacontroller_globalpartitioncount", (), snapshot.partition_count
    yield "kafka_server_delayedoperationpurgatory_purgatorysize", ("Fetch",), snapshot.waiting_fetch_count
    yield "diamant_connections", (), snapshot.connection_count
    yield "diamant_connections_created_total", (), snapshot.traffic.connections_created
    yield "diamant_connections_closed_total", (), snapshot.traffic.connections_closed
    yield "diamant_received_bytes_total", (), snapshot.traffic.received_bytes
    yield "diamant_sent_bytes_total", (), snapshot.traffic.sent_bytes
    yield "diamant_build_info", (__version__,), 1
    yield "diamant_has_kernels", (), int(ARE_COMPILED)


def _by_api(snapshot: MetricsSnapshot) -> dict[str, list[RequestFigures]]:
    """The figures by API. Kafka counts consumers' fetches as FetchConsumer and, together with brokers' fetches, as Fetch."""
    found: dict[str, list[RequestFigures]] = {}
    for figures in snapshot.requests:
        found.setdefault(figures.api, []).append(figures)
    if FETCH in found:
        found[FETCH_CONSUMER] = found[FETCH]
    return found


def _of_requests(snapshot: MetricsSnapshot) -> Iterator[Sample]:
    for api, figures in _by_api(snapshot).items():
        errors: Counter[str] = Counter()
        for one in figures:
            yield "kafka_network_requestmetrics_requests_total", (api, str(one.version)), sum(one.buckets)
            errors.update(dict(one.errors))
        own = FETCH if api == FETCH_CONSUMER else api
        errors.update({error: count for (failed, error), count in snapshot.partition_errors if failed == own})
        for error, count in errors.items():
            yield "kafka_network_requestmetrics_errors_total", (api, error), count


def _of_groups(groups: GroupFigures) -> Iterator[Sample]:
    prefix = "kafka_coordinator_group_groupmetadatamanager_num"
    classic = {state: count for (kind, state), count in groups.states if kind == CLASSIC}
    yield f"{prefix}groups", (), sum(classic.values())
    for state in CLASSIC_STATES:
        yield f"{prefix}groups{state.lower()}", (), classic.get(state, 0)
    yield f"{prefix}offsets", (), groups.offset_count
    for (kind, state), count in groups.states:
        yield "diamant_groups", (kind, state), count
    for lag, group_id, topic, partition, committed_offset in groups.lags:
        labels = (group_id, topic, str(partition))
        yield "kafka_consumergroup_lag", labels, lag
        yield "kafka_consumergroup_current_offset", labels, committed_offset
    yield "diamant_consumergroup_lags_left_out", (), groups.lags_left_out


def _of_transactions(transactions: TransactionFigures) -> Iterator[Sample]:
    for state, count in transactions.states:
        yield "diamant_transactional_ids", (state,), count
    yield "diamant_transactions_open", (), transactions.open_count
    for age_ms, transactional_id in transactions.open:
        yield "diamant_transaction_open_age_seconds", (transactional_id,), age_ms / 1000


def _of_topics(snapshot: MetricsSnapshot) -> Iterator[Sample]:
    for labels, figures in _of_each_topic_and_all(snapshot):
        yield "kafka_server_brokertopicmetrics_messagesin_total", labels, figures.messages_in
        yield "kafka_server_brokertopicmetrics_bytesin_total", labels, figures.bytes_in
        yield "kafka_server_brokertopicmetrics_bytesout_total", labels, figures.bytes_out
    refused = snapshot.no_key_compacted_topic_records
    yield "kafka_server_brokertopicmetrics_nokeycompactedtopicrecords_total", (), refused


def _of_each_topic_and_all(snapshot: MetricsSnapshot) -> Iterator[tuple[tuple[str, ...], TopicTraffic]]:
    yield (), snapshot.all_topics
    for name, figures in snapshot.topics:
        yield (name,), figures


def _of_cleaner(status: CleanerStatus, directory: str) -> Iterator[Sample]:
    cleaner, manager = "kafka_log_logcleaner_", "kafka_log_logcleanermanager_"
    yield f"{cleaner}max_buffer_utilization_percent", (), status.max_buffer_utilization_percent
    yield f"{cleaner}cleaner_recopy_percent", (), status.cleaner_recopy_percent
    yield f"{cleaner}max_clean_time_secs", (), status.max_clean_time_secs
    yield f"{cleaner}max_compaction_delay_secs", (), status.max_compaction_delay_secs
    yield f"{cleaner}deadthreadcount", (), status.dead_thread_count
    yield f"{manager}uncleanable_partitions_count", (directory,), status.uncleanable_partitions_count
    yield f"{manager}uncleanable_bytes", (directory,), status.uncleanable_bytes
    yield f"{manager}max_dirty_percent", (), status.max_dirty_percent
    yield f"{manager}time_since_last_run_ms", (), status.time_since_last_run_ms
    yield "diamant_cleaner_must_clean_partitions", (), status.must_clean_partitions
    yield "diamant_cleaner_must_clean_ratio", (), status.must_clean_ratio
    yield "kafka_utils_throttler_cleaner_io_count", (), status.io_bytes_total
    for one in status.in_progress:
        labels = (one.topic, str(one.partition), one.runner)
        yield "diamant_cleaner_round_log_bytes", labels, one.log_bytes
        yield "diamant_cleaner_round_log_done_bytes", labels, one.log_bytes_done
        yield "diamant_cleaner_round_io_bytes", labels, one.io_bytes
        if one.left_s is not None:
            yield "diamant_cleaner_round_left_seconds", labels, one.left_s


def _of_cleaned_partition(status: PartitionStatus) -> Iterator[Sample]:
    labels = (status.topic, str(status.partition))
    yield "diamant_cleaner_dirty_ratio", labels, status.dirty_ratio
    yield "diamant_cleaner_must_clean_ratio", labels, status.must_clean_ratio
    yield "diamant_cleaner_compaction_lag_seconds", labels, status.compaction_lag_ms / 1000
    yield "diamant_cleaner_overdue_seconds", labels, status.overdue_ms / 1000
    if status.last_cleaned_ms is not None:
        yield "diamant_cleaner_last_cleaned_timestamp_seconds", labels, status.last_cleaned_ms / 1000
    for reason in REASONS:  # all reasons: rate() would miss the first step of a counter that appears with it
        yield "diamant_cleaner_removed_records_total", (*labels, reason), status.records_removed.get(reason, 0)
        yield "diamant_cleaner_removed_bytes_total", (*labels, reason), status.bytes_removed.get(reason, 0)
    for runner, count in status.rounds.items():
        yield "diamant_cleaner_rounds_total", (*labels, runner), count
    if status.trouble is not None:
        reason = _printable(status.trouble)[:MAX_REASON_LENGTH]
        yield "diamant_cleaner_uncleanable_info", (*labels, reason), 1


def _printable(text: str) -> str:
    """Replace bytes that are not text, which a path may hold and a label may not."""
    return text.encode("utf-8", "backslashreplace").decode()
