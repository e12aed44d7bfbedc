"""`diamant audit` on any Kafka: what may keep values for too long."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diamant.broker.cli import main
from diamant.broker.client.kafka_client import LedPartition, LedTopic
from diamant.broker.client.kafka_group import KafkaGroup
from diamant.broker.inspection.audit_rules import replica_findings, stranded_text, topic_findings
from diamant.broker.inspection.cluster_audit import audit
from diamant.json_types import JsonObject
from diamant.protocol.murmur2 import default_partitions
from tests.broker.clusters.any_cluster import OLD_MS, AnyCluster

DAY_MS = 86_400_000
FOR_EVER = str((1 << 63) - 1)
CREATE_PARTITIONS = 37


def kinds(deadline_ms: int = 30 * DAY_MS, **configs: str) -> set[str]:
    known = {"cleanup.policy": "compact", **{name.replace("_", "."): value for name, value in configs.items()}}
    return {one.kind for one in topic_findings("t", known, deadline_ms)}


def test_deadlines_of_compacted_topics_are_found() -> None:
    """Without a maximal lag a value may stay for ever; a minimal lag, or a maximal one beyond the deadline, keeps it as well."""
    assert kinds(max_compaction_lag_ms=FOR_EVER) == {"no-compaction-deadline"}
    assert kinds(max_compaction_lag_ms=str(31 * DAY_MS)) == {"no-compaction-deadline"}
    assert kinds(max_compaction_lag_ms=FOR_EVER, min_cleanable_dirty_ratio="1.0") == {
        "no-compaction-deadline",
        "ratio-one",
    }
    assert kinds(max_compaction_lag_ms=str(DAY_MS), min_cleanable_dirty_ratio="1") == set()
    assert kinds(max_compaction_lag_ms=str(DAY_MS), min_compaction_lag_ms=str(40 * DAY_MS)) == {"min-compaction-lag"}


def test_retention_within_the_deadline_removes_everything_in_time() -> None:
    """A policy with delete is judged by its retention, also beside compact; -1 means never."""
    assert kinds(cleanup_policy="delete", retention_ms=str(7 * DAY_MS)) == set()
    assert kinds(cleanup_policy="delete", retention_ms="-1") == {"retention-beyond-deadline"}
    assert kinds(cleanup_policy="compact,delete", retention_ms=str(DAY_MS), max_compaction_lag_ms=FOR_EVER) == set()
    assert kinds(cleanup_policy="compact,delete", retention_ms="-1") == {"no-compaction-deadline"}
    assert kinds(cleanup_policy="delete", retention_ms="1", remote_storage_enable="true") == {"remote-storage"}


def test_replicas_out_of_sync_are_named() -> None:
    """A replica behind, or a partition without a leader, is a finding with the brokers."""
    partitions = (
        LedPartition(0, 1, (1, 2, 3), (1, 3), 0),
        LedPartition(1, -1, (2,), (2,), 0),
        LedPartition(2, 1, (1,), (1,), 0),
    )
    behind, without = replica_findings(LedTopic("t", False, partitions))
    assert (behind.kind, behind.partition, "broker 2" in behind.text) == ("out-of-sync", 0, True)
    assert (without.kind, without.partition) == ("no-leader", 1)


def test_keys_are_stranded_only_if_fewer_partitions_explain_them() -> None:
    """Keys that an earlier number of partitions put here are stranded; keys that no partitioner put here are not judged."""
    keys = {f"customer-{number}".encode() for number in range(200)}
    mine = {key for key in keys if default_partitions(key, 3)[0] == 2}
    assert "added to 3" in stranded_text(2, mine, 5)
    assert stranded_text(2, mine, 3) == ""
    assert stranded_text(2, keys, 5) == ""
    assert stranded_text(0, set(), 5) == ""


@pytest.fixture(scope="module")
def audited(cluster: AnyCluster) -> AnyCluster:
    """A cluster with one topic that has every fault a topic can have from outside, and one without any."""
    keys = [f"customer-{number}".encode() for number in range(40)]
    cluster.create("faulty", segment_ms="60000", delete_retention_ms="1000", max_compaction_lag_ms=FOR_EVER)
    cluster.produce("faulty", [(key, b"value") for key in keys], timestamp_ms=OLD_MS)
    added = {
        "topics": [{"name": "faulty", "count": 3, "assignments": None}],
        "timeout_ms": 30_000,
        "validate_only": False,
    }
    assert not cluster.client.controller().ask(CREATE_PARTITIONS, added)["results"][0]["error_code"]
    cluster.client.led("faulty", range(3))
    KafkaGroup(cluster.client, "late-readers").commit({("faulty", 0): 5})
    cluster.create("sound", max_compaction_lag_ms=str(DAY_MS))
    cluster.produce("sound", [(b"customer-1", b"value")], timestamp_ms=round(time.time() * 1000))
    return cluster


def run(cluster: AnyCluster, *words: str) -> Result:
    return CliRunner().invoke(main, ["audit", "-b", cluster.bootstrap, *words])


def test_faults_are_found_from_outside(audited: AnyCluster) -> None:
    """The report names each fault once, says what is known and what is bounded, and offers a configuration; exit code 3."""
    done = run(audited, "--json")
    found = json.loads(done.stdout)
    told = {(one["topic"], one["partition"], one["kind"]): one for one in found["findings"]}
    assert set(told) == {
        ("faulty", None, "no-compaction-deadline"),
        ("faulty", 0, "idle-active-segment"),
        ("faulty", 0, "unread-tombstones"),
        ("faulty", 0, "stranded-keys"),
    }
    assert told["faulty", None, "no-compaction-deadline"]["configs"] == {"max.compaction.lag.ms": str(30 * DAY_MS)}
    assert told["faulty", 0, "stranded-keys"]["visibility"] == "bounded"
    assert "late-readers" in told["faulty", 0, "unread-tombstones"]["text"]
    assert (done.exit_code, found["topics"], found["not_visible"]) == (3, 2, [])


def test_the_progress_of_an_audit_is_shown(audited: AnyCluster) -> None:
    """Partitions by the thousand take a while: each stage is told, and how much of the samples is read."""
    seen: list[JsonObject] = []
    assert audit(audited.client, ["faulty"], DAY_MS, seen.append).topics == 1
    assert seen[0]["stage"] == "looking at the cluster"
    assert {"looking at groups", "sampling keys"} <= {one["stage"] for one in seen}
    assert {one["unit"] for one in seen if one["stage"] == "sampling keys"} <= {"", "offsets"}


def test_sound_topic_has_no_finding_and_a_missing_one_is_an_error(audited: AnyCluster) -> None:
    """The exit code is 0 without a finding; an unknown topic is a usage error."""
    done = run(audited, "sound")
    assert (done.exit_code, done.output) == (0, "0 findings in 1 topic with 1 partition, deadline 30d\n")
    assert run(audited, "nope").exit_code == 2
    assert run(audited, "sound", "--deadline", "1h").exit_code == 3


@pytest.mark.parametrize(("columns", "width"), [("", 100), ("200", 100), ("60", 60)])
def test_each_finding_is_a_block_of_readable_width(
    audited: AnyCluster, monkeypatch: pytest.MonkeyPatch, columns: str, width: int
) -> None:
    """As wide as the terminal, 100 columns at most, also where there is none."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    lines = run(audited).output.splitlines()
    assert "faulty-0: stranded-keys (bounded)" in lines
    assert f"  set max.compaction.lag.ms={30 * DAY_MS}" in lines
    assert width - 20 < max(map(len, lines)) <= width


def test_the_page_shows_the_findings(audited: AnyCluster, tmp_path: Path) -> None:
    """With --html, a page has a row for each."""
    page = tmp_path / "audit.html"
    run(audited, "--html", str(page))
    assert page.read_text().count("<tr>") == 1 + 4
