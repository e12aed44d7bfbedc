"""The metrics of `/metrics`: names, values, and the page that documents them."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from diamant.broker.broker import Broker
from diamant.broker.dispatch.services import Services
from diamant.broker.metrics import prometheus as metrics
from diamant.broker.metrics.metric_table import HISTOGRAM, MAX_REASON_LENGTH, METRICS, QUOTA_LABELS, Metric
from diamant.broker.node.topic_metrics import BrokerTopicMetrics
from diamant.cleaner.rules.result import REASONS
from diamant.cleaner.service.metrics import CleanerStatus, PartitionStatus, RoundStatus
from diamant.progress import Reading
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from diamant.protocol.batches.validation import MAX_RECORD_ERRORS
from diamant.storage.log.append_checks import LIGHT_RECORDS
from release.reference.metrics import metrics_page
from tests.broker.wire import DELETE_TOPICS, FETCH, PRODUCE, WireClient, batch_of, fetch_fields, produce_fields

ROOT = Path(__file__).resolve().parents[3]
TOPICS = "kafka_server_brokertopicmetrics_"
OF_SEVERAL_BROKERS = ("diamant_broker_up", "diamant_broker_leaders")
OF_COORDINATORS = (
    "kafka_coordinator_",
    "kafka_consumergroup_",
    "kafka_server_sharepartitionmetrics_",
    "diamant_groups",
    "diamant_consumergroup_",
    "diamant_transaction",
    "diamant_tombstone_consumers_behind",
    "kafka_server_quota_",
    "diamant_throttled_connections_total",
)
"""Shown once there is one; test_request_metrics.py, test_erasure_deadline.py and test_quota_metrics.py have them."""

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]

STATUS = CleanerStatus(
    max_buffer_utilization_percent=12.5,
    cleaner_recopy_percent=40,
    max_clean_time_secs=3,
    max_compaction_delay_secs=7,
    dead_thread_count=1,
    uncleanable_partitions_count=2,
    uncleanable_bytes=3000,
    max_dirty_percent=66,
    time_since_last_run_ms=1234,
    io_bytes_total=987_654_321_012,
    in_progress=(
        RoundStatus(
            "c", 1, "spark", Reading("rewriting", 2_000_000_000, 5_000_000_000, "bytes", left_s=1.5), 7_000_000_000, 0
        ),
    ),
    partitions=(
        PartitionStatus("c", 0),
        PartitionStatus(
            "c",
            1,
            dirty_ratio=0.25,
            compaction_lag_ms=1500,
            overdue_ms=250,
            last_cleaned_ms=1_700_000_000_123,
            records_removed={"superseded": 10, "markers": 1},
            bytes_removed={"superseded": 1000, "markers": 70},
            rounds={"inline": 2, "process": 1},
            uncleanable_reason="CorruptLog: batch at 61",
        ),
    ),
)


def parse(text: bytes) -> Samples:
    """Return the name, labels and value of each sample."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    """Return the value of one sample."""
    return found[name, frozenset(labels.items())]


def with_cleaner(broker: Broker, status: CleanerStatus = STATUS) -> Services:
    """Return the services of a broker whose cleaner reports these figures."""
    services = copy.copy(broker.services)
    says: Any = SimpleNamespace(status=lambda: status, is_loaded=True, service=services.cleaning.service)
    services.cleaning = says
    return services


async def scrape(of: Broker | Services) -> Samples:
    """Return all samples of a broker."""
    return parse(metrics.render(await metrics.take(of if isinstance(of, Services) else of.services)))


def jmx_exporter_name(metric: Metric) -> str:
    """Return the name that the JMX exporter's example rules for Kafka derive from the MBean."""
    assert metric.mbean is not None
    found = re.fullmatch(r"kafka\.([\w.]+):type=([^,]+),name=([^,:]+)[^:]*:(Value|Count|Max)", metric.mbean)
    assert found is not None, metric.mbean
    package, type_, name, attribute = found.groups()
    if attribute == "Count":
        name = f"{name.removesuffix('PerSec')}_total" if name.endswith("PerSec") else f"{name}_count"
    if attribute == "Max":
        name = f"{name}_max"
    if metric.kind == HISTOGRAM:
        name = name.removesuffix("_count")  # it is a sample of the family
    return re.sub(r"[^a-z0-9_]", "_", f"kafka_{package}_{type_}_{name}".lower())


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_names_are_those_of_the_jmx_exporter(metric: Metric) -> None:
    """Kafka's metrics have the exporter's name and the MBean's further keys as labels. Diamant's own have a prefix."""
    if metric.mbean is None:
        assert metric.name.startswith(("diamant_", "kafka_consumergroup_"))  # the latter as kafka_exporter has them
        return
    if ",user=" in metric.mbean:  # the exporter has rules of its own for quotas
        assert metric.name == f"kafka_server_quota_{metric.mbean.rpartition(':')[2].replace('-', '_')}"
        assert metric.labels == QUOTA_LABELS
        return
    if "type=socket-server-metrics" in metric.mbean:
        assert metric.name == f"kafka_server_socket_server_metrics_{metric.mbean.rpartition(':')[2].replace('-', '_')}"
        assert metric.labels == ("listener", "networkProcessor")
        return
    assert metric.name == jmx_exporter_name(metric)
    keys = [key for key in re.findall(r"[,:](\w+)=", metric.mbean) if key not in ("type", "name")]
    assert metric.labels == (("topic",) if metric.has_sum else tuple(keys))


def test_each_row_takes_its_samples_in_one_way() -> None:
    """Samples come from shared figures in any thread, from the broker on its loop, or as latencies of a histogram."""
    ways = {row.name: (row.samples, row.now, row.latencies).count(None) for row in METRICS.values()}
    assert {name for name, missing in ways.items() if missing != 2} == set()


def test_the_page_of_the_docs_is_that_of_the_table() -> None:
    """docs/reference/metrics.md is the output of `make docs`, and has every metric once."""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    assert page == metrics_page()
    assert all(page.count(f"| `{name}` |") == 1 for name in METRICS)


async def test_every_metric_of_the_table_is_shown_and_no_other(wire: WireClient, broker: Broker) -> None:
    """With a topic and a cleaner, every row of the table has samples, with its labels and type, and there are no others."""
    await wire.create("c", cleanup_policy="compact")
    await wire.create("t")
    await wire.produce("t", [b"a"])
    with broker.faults.add("Produce", error="NOT_ENOUGH_REPLICAS", times=1):
        await wire.produce("t", [b"a"])
    text = metrics.render(await metrics.take(with_cleaner(broker)))
    seen = set()
    for family in text_string_to_metric_families(text.decode()):
        if family.name.startswith("process_"):
            continue
        row = METRICS.get(family.name) or METRICS[f"{family.name}_total"]
        seen.add(row.name)
        assert family.type == {"untyped": "unknown"}.get(row.kind, row.kind)
        assert family.documentation == row.meaning
        allowed = [set(row.labels)] + ([set()] if row.has_sum else [])
        if row.kind == HISTOGRAM:
            allowed.append({*row.labels, "le"})
        assert all(sample.name.startswith(row.name) and set(sample.labels) in allowed for sample in family.samples)
    assert seen == {name for name in METRICS if not name.startswith((*OF_COORDINATORS, *OF_SEVERAL_BROKERS))}


async def test_gauges_of_the_cleaner_are_shown_unchanged(broker: Broker) -> None:
    """Gauges are shown unchanged. Each partition has all reasons, with times in seconds."""
    found = await scrape(with_cleaner(broker))
    directory = broker.config.data_dir
    assert value(found, "kafka_log_logcleaner_max_buffer_utilization_percent") == 12.5
    assert value(found, "kafka_log_logcleaner_cleaner_recopy_percent") == 40
    assert value(found, "kafka_log_logcleaner_max_clean_time_secs") == 3
    assert value(found, "kafka_log_logcleaner_max_compaction_delay_secs") == 7
    assert value(found, "kafka_log_logcleaner_deadthreadcount") == 1
    assert value(found, "kafka_log_logcleanermanager_uncleanable_partitions_count", logDirectory=directory) == 2
    assert value(found, "kafka_log_logcleanermanager_uncleanable_bytes", logDirectory=directory) == 3000
    assert value(found, "kafka_log_logcleanermanager_max_dirty_percent") == 66
    assert value(found, "kafka_log_logcleanermanager_time_since_last_run_ms") == 1234
    assert value(found, "kafka_utils_throttler_cleaner_io_count") == 987_654_321_012
    one = {"topic": "c", "partition": "1"}
    assert value(found, "diamant_cleaner_dirty_ratio", **one) == 0.25
    assert value(found, "diamant_cleaner_compaction_lag_seconds", **one) == 1.5
    assert value(found, "diamant_cleaner_overdue_seconds", **one) == 0.25
    assert value(found, "diamant_cleaner_last_cleaned_timestamp_seconds", **one) == 1_700_000_000.123
    for reason in REASONS:
        records = value(found, "diamant_cleaner_removed_records_total", reason=reason, **one)
        size = value(found, "diamant_cleaner_removed_bytes_total", reason=reason, **one)
        assert (records, size) == {"superseded": (10, 1000), "markers": (1, 70)}.get(reason, (0, 0))
    assert value(found, "diamant_cleaner_rounds_total", runner="process", **one) == 1
    assert value(found, "diamant_cleaner_round_log_bytes", runner="spark", **one) == 5_000_000_000
    assert value(found, "diamant_cleaner_round_io_bytes", runner="spark", **one) == 7_000_000_000
    assert value(found, "diamant_cleaner_round_log_done_bytes", runner="spark", **one) == 2_000_000_000
    assert value(found, "diamant_cleaner_round_left_seconds", runner="spark", **one) == 1.5
    assert value(found, "diamant_cleaner_uncleanable_info", reason="CorruptLog: batch at 61", **one) == 1


async def test_a_partition_that_was_never_cleaned_has_no_time_and_no_reason(broker: Broker) -> None:
    """Missing values are left out rather than shown as zero."""
    found = await scrape(with_cleaner(broker))
    never = frozenset({"topic": "c", "partition": "0"}.items())
    names = {name for name, labels in found if never <= labels}
    assert "diamant_cleaner_dirty_ratio" in names
    assert not names & {"diamant_cleaner_last_cleaned_timestamp_seconds", "diamant_cleaner_uncleanable_info"}


async def test_without_a_cleaner_there_are_no_metrics_of_it(tmp_path: Path) -> None:
    """`log.cleaner.enable=false` leaves them out, as in Kafka, and keeps the others."""
    async with Broker(data_dir=tmp_path, log_cleaner_enable=False) as broker:
        names = {name for name, _ in await scrape(broker)}
    assert not [name for name in names if "cleaner" in name]
    assert "kafka_server_kafkaserver_brokerstate" in names


async def test_a_round_of_the_cleaner_is_shown(wire: WireClient, broker: Broker) -> None:
    """After the broker's own cleaner has removed superseded records, the metrics have their number, the runner and the time."""
    await wire.create("c", cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    for number in range(3):
        records = [Record(offset, 0, b"k%d" % offset, b"v%d" % number) for offset in range(4)]
        await wire.call(PRODUCE, 9, produce_fields("c", 0, bytes(build_batch(records, base_offset=0))))
    broker.node.directory.logs["c", 0].roll()
    await (await broker.services.cleaning.service()).settled()
    found = await scrape(broker)
    one = {"topic": "c", "partition": "0"}
    assert value(found, "diamant_cleaner_removed_records_total", reason="superseded", **one) == 8
    assert value(found, "diamant_cleaner_removed_bytes_total", reason="superseded", **one) > 0
    assert value(found, "diamant_cleaner_rounds_total", runner="inline", **one) == 1
    assert value(found, "diamant_cleaner_last_cleaned_timestamp_seconds", **one) > 1_700_000_000
    assert value(found, "kafka_utils_throttler_cleaner_io_count") > 0


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ('a "quoted"\nreason \\ with more', 'a "quoted"\nreason \\ with more'),
        ("/data/\udcff/0.log", "/data/\\udcff/0.log"),
        ("x" * 1000, "x" * MAX_REASON_LENGTH),
        ("", ""),
    ],
)
async def test_any_reason_makes_a_label(broker: Broker, reason: str, shown: str) -> None:
    """Free text is escaped, made printable and cut."""
    status = CleanerStatus(partitions=(PartitionStatus("c", 0, uncleanable_reason=reason),))
    found = await scrape(with_cleaner(broker, status))
    assert value(found, "diamant_cleaner_uncleanable_info", topic="c", partition="0", reason=shown) == 1


async def test_logs_and_broker(wire: WireClient, broker: Broker) -> None:
    """Sizes, segments and offsets of each partition are those of its log."""
    await wire.create("t", 2)
    await wire.produce("t", [b"a", b"b"], partition=1)
    found = await scrape(broker)
    log = broker.node.directory.logs["t", 1]
    one = {"topic": "t", "partition": "1"}
    assert value(found, "kafka_log_log_size", **one) == log.size > 0
    assert value(found, "kafka_log_log_numlogsegments", **one) == 1
    assert value(found, "kafka_log_log_logstartoffset", **one) == 0
    assert value(found, "kafka_log_log_logendoffset", **one) == 2
    assert value(found, "kafka_log_log_logendoffset", topic="t", partition="0") == 0
    assert value(found, "kafka_server_replicamanager_partitioncount") == 2
    assert value(found, "kafka_server_replicamanager_leadercount") == 2
    assert value(found, "kafka_server_replicamanager_offlinereplicacount") == 0
    assert value(found, "kafka_controller_kafkacontroller_globaltopiccount") == 1
    assert value(found, "kafka_server_kafkaserver_brokerstate") == 3
    assert value(found, "diamant_connections") == 1


async def test_a_log_that_cannot_be_written_counts_as_offline(wire: WireClient, broker: Broker) -> None:
    """After its disk has failed."""
    await wire.create("t", 2)
    broker.node.directory.logs["t", 1].fail(OSError(5, "Input/output error"))
    assert value(await scrape(broker), "kafka_server_replicamanager_offlinereplicacount") == 1


# -- topics --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fetch_version", [12, 13])
async def test_messages_and_bytes_are_counted_by_topic_and_in_total(
    wire: WireClient, broker: Broker, fetch_version: int
) -> None:
    """Messages and bytes are counted per topic and in total, for requests by name and by topic id."""
    created = await wire.create("t", 2)
    await wire.create("other")
    for partition in (0, 1):
        await wire.produce("t", [b"a", b"b", b"c"], partition=partition)
    await wire.produce("other", [b"d"])
    size = broker.node.directory.logs["t", 0].size
    fields = fetch_fields("t", 0)
    fields["topics"][0]["topic_id"] = created.topic_id
    answer = await wire.call(FETCH, fetch_version, fields)
    assert len(bytes(answer.responses[0].partitions[0].records)) == size
    found = await scrape(broker)
    assert value(found, f"{TOPICS}messagesin_total", topic="t") == 6
    assert value(found, f"{TOPICS}messagesin_total") == 7
    assert value(found, f"{TOPICS}bytesin_total", topic="t") == 2 * size
    assert value(found, f"{TOPICS}bytesin_total") == 2 * size + broker.node.directory.logs["other", 0].size
    assert value(found, f"{TOPICS}bytesout_total", topic="t") == size
    assert value(found, f"{TOPICS}bytesout_total", topic="other") == 0
    assert value(found, f"{TOPICS}bytesout_total") == size


async def test_a_waiting_fetch_counts_once(wire: WireClient, broker: Broker) -> None:
    """Bytes that it reads repeatedly while it waits count once."""
    await wire.create("t")
    await wire.produce("t", [b"first"])
    waiting = wire.send(FETCH, 12, fetch_fields("t", 0, max_wait_ms=5000, min_bytes=2 * 69))
    async with WireClient(broker.bootstrap_servers) as other:
        while not len(broker.node.purgatory):
            await other.call(FETCH, 12, fetch_fields("t", 1))
        await other.produce("t", [b"again"])
    await wire.receive(FETCH, 12, waiting)
    found = await scrape(broker)
    assert value(found, f"{TOPICS}bytesout_total", topic="t") == broker.node.directory.logs["t", 0].size


async def test_a_deleted_topic_stays_in_the_sums(wire: WireClient, broker: Broker) -> None:
    """Its own samples end; the sum over all topics does not decrease."""
    await wire.create("t")
    await wire.produce("t", [b"a", b"b"])
    await wire.call(DELETE_TOPICS, 5, {"topic_names": ["t"], "timeout_ms": 1000})
    found = await scrape(broker)
    assert (f"{TOPICS}messagesin_total", frozenset({("topic", "t")})) not in found
    assert value(found, f"{TOPICS}messagesin_total") == 2
    await wire.create("t")
    await wire.produce("t", [b"c"])
    found = await scrape(broker)
    assert value(found, f"{TOPICS}messagesin_total", topic="t") == 1
    assert value(found, f"{TOPICS}messagesin_total") == 3


async def test_refused_records_without_a_key_are_counted(wire: WireClient, broker: Broker) -> None:
    """Each record without a key sent to a compacted topic counts. No record of its batch is stored."""
    await wire.create("c", cleanup_policy="compact")
    records = [Record(offset, 0, b"k" if offset == 1 else None, b"v") for offset in range(3)]
    batch = bytes(build_batch(records, base_offset=0))
    await wire.call(PRODUCE, 9, produce_fields("c", 0, batch))
    await wire.call(PRODUCE, 9, produce_fields("c", 0, batch[:-1]))
    await wire.call(PRODUCE, 9, produce_fields("c", 0, batch_of([b"d"], timestamp=1 << 60)))
    found = await scrape(broker)
    assert value(found, f"{TOPICS}nokeycompactedtopicrecords_total") == 3
    assert value(found, f"{TOPICS}messagesin_total") == 0


async def test_heavy_batches_count_like_others(wire: WireClient, broker: Broker) -> None:
    """Batches checked by a thread are counted, and so are refused ones."""
    count = LIGHT_RECORDS + 1
    broker.node.directory.validation.is_slow = True
    await wire.create("t")
    await wire.create("c", cleanup_policy="compact")
    await wire.produce("t", [b"a"] * count)
    await wire.produce("c", [b"a"] * count)
    found = await scrape(broker)
    assert value(found, f"{TOPICS}messagesin_total") == count
    assert value(found, f"{TOPICS}nokeycompactedtopicrecords_total") == MAX_RECORD_ERRORS  # the rest are not told of


def test_deleted_topics_take_no_room() -> None:
    """Memory does not grow with the number of deleted topics, and the sums remain correct."""
    existing: set[str] = set()
    counted = BrokerTopicMetrics(existing.__contains__)
    for number in range(1000):
        existing.clear()
        existing.add(f"topic-{number}")
        counted.topic(f"topic-{number}").messages_in += 2
        assert len(counted._by_topic) <= 128
    assert counted.by_topic().keys() == {"topic-999"}
    assert counted.all_topics().messages_in == 2000


# -- registries ----------------------------------------------------------------------------------------------------------


async def test_the_global_registry_is_left_alone(broker: Broker) -> None:
    """The broker's metrics do not mix with those of a program."""
    before = [family.name for family in REGISTRY.collect()]
    await scrape(with_cleaner(broker))
    assert [family.name for family in REGISTRY.collect()] == before
    assert not [name for name in before if name.startswith(("kafka_", "diamant_"))]


async def test_the_process_is_shown_too(broker: Broker) -> None:
    """Memory, CPU time and open files are shown, as by every Prometheus client."""
    found = await scrape(broker)
    assert value(found, "process_resident_memory_bytes") > 1 << 20
    assert value(found, "process_cpu_seconds_total") > 0
