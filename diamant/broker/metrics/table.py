"""The table of metrics that `/metrics` shows; docs/reference/metrics.md is made of it (`reference/metrics.py`).

Names are those that Prometheus' JMX exporter makes of Kafka's MBeans with its example rules for Kafka (and Strimzi with its own),
so that dashboards and alerts for Kafka find them: `kafka_<package>_<type>_<name>` in small letters, `-` as `_`, `…PerSec` as
`…_total`. The lag of groups, which Kafka's clients measure and not its broker, has the names of kafka_exporter. What else Kafka
does not measure begins with `diamant_`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

GAUGE, COUNTER, UNTYPED, HISTOGRAM = "gauge", "counter", "untyped", "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row. A sample has all of `labels`, or none of them where it is the sum over all (`has_sum`)."""

    name: str
    kind: str
    meaning: str
    unit: str
    mbean: str | None = None
    """Kafka's, with its attribute; None if it is Diamant's own."""
    labels: tuple[str, ...] = ()
    has_sum: bool = False


_PARTITION = ("topic", "partition")
_DIRECTORY = ("logDirectory",)
_VALUE = ":Value"


def _gauge(name: str, mbean: str, meaning: str, unit: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(name, GAUGE, meaning, unit, mbean + _VALUE, labels)


def _per_topic(name: str, mbean_name: str, meaning: str, unit: str) -> Metric:
    mbean = f"kafka.server:type=BrokerTopicMetrics,name={mbean_name}:Count"
    return Metric(f"kafka_server_brokertopicmetrics_{name}_total", COUNTER, meaning, unit, mbean, ("topic",), True)


def _own(
    name: str, kind: str, meaning: str, unit: str, labels: tuple[str, ...] = (), *, per_partition: bool = True
) -> Metric:
    return Metric(f"diamant_{name}", kind, meaning, unit, labels=(*_PARTITION, *labels) if per_partition else labels)


def _groups(name: str, mbean_name: str, meaning: str) -> Metric:
    mbean = f"kafka.coordinator.group:type=GroupMetadataManager,name={mbean_name}"
    return _gauge(
        f"kafka_coordinator_group_groupmetadatamanager_{name}",
        mbean,
        meaning,
        "groups" if "Groups" in mbean_name else "offsets",
    )


def _quota(attribute: str, meaning: str, unit: str) -> Metric:
    name = f"kafka_server_quota_{attribute.replace('-', '_')}"
    return Metric(name, GAUGE, meaning, unit, f"kafka.server:type=*,user=*,client-id=*:{attribute}", QUOTA_LABELS)


QUOTA_LABELS = ("resource", "user", "clientId")
"""As the exporter's rules for quotas have them; `resource` is Kafka's type: Produce, Fetch, Request, ControllerMutation."""


def _of_listener(kind: str, attribute: str, meaning: str, unit: str) -> Metric:
    name = f"kafka_server_socket_server_metrics_{attribute.replace('-', '_')}"
    mbean = f"kafka.server:type=socket-server-metrics,listener=*,networkProcessor=*:{attribute}"
    return Metric(name, kind, meaning, unit, mbean, ("listener", "networkProcessor"))


_AUTHENTICATIONS = (
    _of_listener(
        COUNTER, "successful-authentication-total", "Connections that SASL, or TLS alone, has let in.", "connections"
    ),
    _of_listener(
        COUNTER,
        "failed-authentication-total",
        "Connections that failed in SASL or in the TLS handshake.",
        "connections",
    ),
    _of_listener(
        COUNTER, "successful-reauthentication-total", "Sessions that were renewed in time.", "re-authentications"
    ),
    _of_listener(
        COUNTER, "failed-reauthentication-total", "Connections closed as that has failed.", "re-authentications"
    ),
    _of_listener(
        GAUGE, "expired-connections-killed-count", "Connections closed as it was not tried in time.", "connections"
    ),
)

_QUOTAS = (
    _quota("byte-rate", "Bytes that clients with a limit on bytes produce and fetch.", "bytes/s"),
    _quota("request-time", "Time of the broker's thread that clients with a `request_percentage` take.", "percent"),
    _quota(
        "tokens",
        "Partitions that clients with a `controller_mutation_rate` may change now; negative: a debt.",
        "partitions",
    ),
    _quota("throttle-time", "Average wait of clients that exceeded their limit, in the last minute.", "ms"),
    Metric(
        "diamant_throttled_connections_total",
        COUNTER,
        "Connections that were held up or refused for the rate at which they came.",
        "connections",
    ),
)

_ROWS = (
    # The cleaner, as Kafka measures it
    _gauge(
        "kafka_log_logcleaner_max_buffer_utilization_percent",
        "kafka.log:type=LogCleaner,name=max-buffer-utilization-percent",
        "How full the offset map was at the end of a thread's last round; the greatest of all threads.",
        "percent",
    ),
    _gauge(
        "kafka_log_logcleaner_cleaner_recopy_percent",
        "kafka.log:type=LogCleaner,name=cleaner-recopy-percent",
        "Bytes written by bytes read in the last rounds of all threads.",
        "percent",
    ),
    _gauge(
        "kafka_log_logcleaner_max_clean_time_secs",
        "kafka.log:type=LogCleaner,name=max-clean-time-secs",
        "How long a thread's last round took; the longest of all threads.",
        "seconds",
    ),
    _gauge(
        "kafka_log_logcleaner_max_compaction_delay_secs",
        "kafka.log:type=LogCleaner,name=max-compaction-delay-secs",
        "By how much max.compaction.lag.ms was exceeded when a log was last picked.",
        "seconds",
    ),
    _gauge(
        "kafka_log_logcleaner_deadthreadcount",
        "kafka.log:type=LogCleaner,name=DeadThreadCount",
        "Cleaner threads that ended by an error.",
        "threads",
    ),
    _gauge(
        "kafka_log_logcleanermanager_uncleanable_partitions_count",
        "kafka.log:type=LogCleanerManager,name=uncleanable-partitions-count,logDirectory=…",
        "Partitions that the cleaner leaves alone after an error, or a damaged segment of which.",
        "partitions",
        _DIRECTORY,
    ),
    _gauge(
        "kafka_log_logcleanermanager_uncleanable_bytes",
        "kafka.log:type=LogCleanerManager,name=uncleanable-bytes,logDirectory=…",
        "Bytes that could be cleaned in those partitions, or bytes of those segments.",
        "bytes",
        _DIRECTORY,
    ),
    _gauge(
        "kafka_log_logcleanermanager_max_dirty_percent",
        "kafka.log:type=LogCleanerManager,name=max-dirty-percent",
        "The highest dirty ratio of all partitions at the last scan.",
        "percent",
    ),
    _gauge(
        "kafka_log_logcleanermanager_time_since_last_run_ms",
        "kafka.log:type=LogCleanerManager,name=time-since-last-run-ms",
        "Time since the cleaner last looked for something to clean.",
        "milliseconds",
    ),
    Metric(
        "kafka_utils_throttler_cleaner_io_count",
        UNTYPED,
        "Bytes that the cleaner has read and written.",
        "bytes",
        "kafka.utils:type=Throttler,name=cleaner-io:Count",
    ),
    # The cleaner, per partition
    _own("cleaner_dirty_ratio", GAUGE, "Bytes to be cleaned by all bytes that may be, at the last scan.", "0 to 1"),
    _own(
        "cleaner_must_clean_partitions",
        GAUGE,
        "Partitions in which something closed has outlived max.compaction.lag.ms, even if it is held back.",
        "partitions",
        per_partition=False,
    ),
    Metric(
        "diamant_cleaner_must_clean_ratio",
        GAUGE,
        "Bytes to be cleaned that have outlived max.compaction.lag.ms by all bytes that may be; without labels: of all "
        "partitions.",
        "0 to 1",
        labels=_PARTITION,
        has_sum=True,
    ),
    _own("cleaner_compaction_lag_seconds", GAUGE, "Age of the oldest record that no round has been over.", "seconds"),
    _own(
        "cleaner_overdue_seconds",
        GAUGE,
        "Since when the oldest of what is due is due: max.compaction.lag.ms, a delete horizon. 0: nothing is.",
        "seconds",
    ),
    _own(
        "cleaner_last_cleaned_timestamp_seconds",
        GAUGE,
        "When the last round ended, before the broker's start, too; missing if none is known.",
        "seconds since 1970",
    ),
    _own(
        "cleaner_removed_records_total",
        COUNTER,
        "Records removed, by reason; transaction markers have one.",
        "records",
        ("reason",),
    ),
    _own("cleaner_removed_bytes_total", COUNTER, "Their bytes before compression, by reason.", "bytes", ("reason",)),
    _own("cleaner_rounds_total", COUNTER, "Finished rounds, by the runner that did them.", "rounds", ("runner",)),
    _own("cleaner_round_log_bytes", GAUGE, "Log that the round in progress covers, by runner.", "bytes", ("runner",)),
    _own(
        "cleaner_round_log_done_bytes",
        GAUGE,
        "How much of that log is done; `deriv()` of it is how fast the round goes.",
        "bytes",
        ("runner",),
    ),
    _own(
        "cleaner_round_left_seconds",
        GAUGE,
        "How long the round in progress will still take, at its rate so far; missing in its first second.",
        "seconds",
        ("runner",),
    ),
    _own(
        "cleaner_round_io_bytes", GAUGE, "Bytes that the round in progress has read and written.", "bytes", ("runner",)
    ),
    _own(
        "cleaner_uncleanable_info",
        GAUGE,
        "1 while the cleaner leaves the partition alone, or a damaged segment of it; the label says why, with file and position.",
        "1",
        ("reason",),
    ),
    # What should be gone
    _own(
        "oldest_superseded_age_seconds",
        GAUGE,
        "Age of the oldest superseded value, at most: since when the oldest record is there that no round has been over. Near "
        "the deadline this is looked up, and is 0 if nothing is superseded.",
        "seconds",
        ("topic",),
        per_partition=False,
    ),
    _own(
        "oldest_tombstone_age_seconds",
        GAUGE,
        "Age of the oldest tombstone in the clean part, since the round that first kept it; 0: none is known.",
        "seconds",
        ("topic",),
        per_partition=False,
    ),
    _own(
        "erasure_deadline_days_left",
        GAUGE,
        "Until the older of these two reaches diamant.erasure.deadline.ms; negative: it has.",
        "days",
        ("topic",),
        per_partition=False,
    ),
    _own(
        "erasure_deadline_not_told",
        GAUGE,
        "Partitions near the deadline of which it takes too much to tell whether anything is superseded; they count as in time.",
        "partitions",
        ("topic",),
        per_partition=False,
    ),
    _own(
        "tombstone_consumers_behind",
        GAUGE,
        "Groups whose committed offset has not passed the last segment that has a tombstone; missing if none is known, NaN "
        "while not all groups are loaded.",
        "groups",
    ),
    _own(
        "erasures_total",
        COUNTER,
        "Erasures that ended since the start: `done` with the certificate for `key-gone` or `nothing-matched`, or `failed`: "
        "without one, or cancelled; `held`: attempts that certified nothing and are retried.",
        "erasures",
        ("outcome",),
        per_partition=False,
    ),
    _own(
        "redactions_total",
        COUNTER,
        "Redactions that ended since the start: `done` with a certificate, or `failed`: without one, or cancelled; `held`: "
        "attempts that certified nothing and are retried.",
        "redactions",
        ("outcome",),
        per_partition=False,
    ),
    # Topics
    _per_topic("messagesin", "MessagesInPerSec", "Messages that producers wrote.", "messages"),
    _per_topic("bytesin", "BytesInPerSec", "Bytes of their batches, as stored.", "bytes"),
    _per_topic("bytesout", "BytesOutPerSec", "Bytes of batches sent to consumers.", "bytes"),
    Metric(
        "kafka_server_brokertopicmetrics_nokeycompactedtopicrecords_total",
        COUNTER,
        "Records without a key that producers sent to compacted topics; all were refused.",
        "records",
        "kafka.server:type=BrokerTopicMetrics,name=NoKeyCompactedTopicRecordsPerSec:Count",
    ),
    # Logs
    _gauge(
        "kafka_log_log_size",
        "kafka.log:type=Log,name=Size,topic=…,partition=…",
        "Bytes of all segments.",
        "bytes",
        _PARTITION,
    ),
    _gauge(
        "kafka_log_log_numlogsegments",
        "kafka.log:type=Log,name=NumLogSegments,topic=…,partition=…",
        "Segments.",
        "segments",
        _PARTITION,
    ),
    _gauge(
        "kafka_log_log_logstartoffset",
        "kafka.log:type=Log,name=LogStartOffset,topic=…,partition=…",
        "First offset that can be read.",
        "offset",
        _PARTITION,
    ),
    _gauge(
        "kafka_log_log_logendoffset",
        "kafka.log:type=Log,name=LogEndOffset,topic=…,partition=…",
        "Offset of the next message.",
        "offset",
        _PARTITION,
    ),
    # Requests
    Metric(
        "kafka_network_requestmetrics_requests_total",
        COUNTER,
        "Requests that were answered, or carried out without an answer.",
        "requests",
        "kafka.network:type=RequestMetrics,name=RequestsPerSec,request=…,version=…:Count",
        ("request", "version"),
    ),
    Metric(
        "kafka_network_requestmetrics_totaltimems",
        HISTOGRAM,
        "From the request, once it is received and it is its turn, to the last byte of the answer.",
        "milliseconds",
        "kafka.network:type=RequestMetrics,name=TotalTimeMs,request=…:Count",
        ("request",),
    ),
    Metric(
        "kafka_network_requestmetrics_errors_total",
        COUNTER,
        "Error codes other than NONE in answers, each partition's (topic's, group's) for itself.",
        "errors",
        "kafka.network:type=RequestMetrics,name=ErrorsPerSec,request=…,error=…:Count",
        ("request", "error"),
    ),
    # Groups
    _groups("numgroups", "NumGroups", "Classic groups, and groups without members."),
    _groups("numgroupspreparingrebalance", "NumGroupsPreparingRebalance", "Those that wait for members to join."),
    _groups("numgroupscompletingrebalance", "NumGroupsCompletingRebalance", "Those that wait for their assignment."),
    _groups("numgroupsstable", "NumGroupsStable", "Those that have it."),
    _groups("numgroupsdead", "NumGroupsDead", "Those that are being removed."),
    _groups("numgroupsempty", "NumGroupsEmpty", "Those without members."),
    _groups("numoffsets", "NumOffsets", "Committed offsets of all groups."),
    _own("groups", GAUGE, "Groups by type and state.", "groups", ("type", "state"), per_partition=False),
    Metric(
        "kafka_consumergroup_lag",
        GAUGE,
        "Offsets from what the group has committed to the end of the partition.",
        "offsets",
        labels=("consumergroup", *_PARTITION),
    ),
    Metric(
        "kafka_consumergroup_current_offset",
        GAUGE,
        "What the group has committed for the partition.",
        "offset",
        labels=("consumergroup", *_PARTITION),
    ),
    _own(
        "consumergroup_lags_left_out",
        GAUGE,
        "Partitions of groups that are not shown by the two above, because 10,000 with greater lags are.",
        "partitions",
        per_partition=False,
    ),
    # Transactions
    _own("transactional_ids", GAUGE, "Transactional ids by state.", "ids", ("state",), per_partition=False),
    _own(
        "transactions_open", GAUGE, "Transactions that are in progress or ending.", "transactions", per_partition=False
    ),
    _own(
        "transaction_open_age_seconds",
        GAUGE,
        "Since when each of them is open; of the 1,000 oldest.",
        "seconds",
        ("transactional_id",),
        per_partition=False,
    ),
    # Faults
    _own("faults", GAUGE, "Faults that are installed.", "faults", per_partition=False),
    _own(
        "faults_fired_total",
        COUNTER,
        "Requests that were hit by a fault.",
        "requests",
        ("effect", "request"),
        per_partition=False,
    ),
    # The broker
    _gauge(
        "kafka_server_kafkaserver_brokerstate",
        "kafka.server:type=KafkaServer,name=BrokerState",
        "3: running; 7: stopping.",
        "state",
    ),
    _gauge(
        "kafka_server_replicamanager_partitioncount",
        "kafka.server:type=ReplicaManager,name=PartitionCount",
        "Partitions of this broker.",
        "partitions",
    ),
    _gauge(
        "kafka_server_replicamanager_leadercount",
        "kafka.server:type=ReplicaManager,name=LeaderCount",
        "Partitions that this broker leads: all that could be opened.",
        "partitions",
    ),
    _gauge(
        "kafka_server_replicamanager_offlinereplicacount",
        "kafka.server:type=ReplicaManager,name=OfflineReplicaCount",
        "Partitions that could not be opened, or whose disk has failed.",
        "partitions",
    ),
    _gauge(
        "kafka_controller_kafkacontroller_activecontrollercount",
        "kafka.controller:type=KafkaController,name=ActiveControllerCount",
        "1: this node is the controller, as it is the only one.",
        "controllers",
    ),
    _gauge(
        "kafka_controller_kafkacontroller_globaltopiccount",
        "kafka.controller:type=KafkaController,name=GlobalTopicCount",
        "Topics.",
        "topics",
    ),
    _gauge(
        "kafka_controller_kafkacontroller_globalpartitioncount",
        "kafka.controller:type=KafkaController,name=GlobalPartitionCount",
        "Partitions of all topics.",
        "partitions",
    ),
    _gauge(
        "kafka_server_delayedoperationpurgatory_purgatorysize",
        "kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize,delayedOperation=Fetch",
        "Fetches that wait for data.",
        "requests",
        ("delayedOperation",),
    ),
    _own("connections", GAUGE, "Connections of Kafka clients.", "connections", per_partition=False),
    _own("connections_created_total", COUNTER, "Those that were accepted.", "connections", per_partition=False),
    _own("connections_closed_total", COUNTER, "Those that have ended.", "connections", per_partition=False),
    _own("received_bytes_total", COUNTER, "Bytes received from Kafka clients.", "bytes", per_partition=False),
    _own("sent_bytes_total", COUNTER, "Bytes of answers sent to Kafka clients.", "bytes", per_partition=False),
    _own("build_info", GAUGE, "1; the label is the version.", "1", ("version",), per_partition=False),
)

METRICS: Mapping[str, Metric] = {metric.name: metric for metric in (*_ROWS, *_AUTHENTICATIONS, *_QUOTAS)}
"""By name, in the order in which they are shown."""
