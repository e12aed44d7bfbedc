"""Explanations from outside: gates of records in topics of any Kafka, and what is visible of them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from diamant.broker.clusters.fetching import Stretch
from diamant.broker.inspection.cluster_explanation import explain
from diamant.broker.inspection.log_from_outside import OutsideLog
from diamant.broker.operation_errors import BadArgument, NotFound
from diamant.cleaner.explain.explanation import BOUNDED, KNOWN
from diamant.json_types import JsonObject
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from tests.broker.clusters.any_cluster import AnyCluster

DAY_MS = 86_400_000
KEY = b"customer-000042"


def now_ms() -> int:
    return round(time.time() * 1000)


def gates(found: JsonObject, partition: int = 0) -> dict[str, str]:
    """Return the gates of all records of a partition, or of the partition, with what is visible of them."""
    one = found["partitions"][partition]
    told = [gate for record in one["records"] for gate in record["gates"]] or one["gates"]
    return {gate["kind"]: gate["visibility"] for gate in told}


def test_active_segment_keeps_an_old_value(cluster: AnyCluster) -> None:
    """The segment that takes appends is known, with its bytes; the change is a command for this cluster."""
    topic = cluster.create("explained-active", max_compaction_lag_ms=str(DAY_MS))
    cluster.produce(topic, [(KEY, b"one"), (b"other", b"two"), (KEY, b"three")], timestamp_ms=now_ms())
    found = explain(cluster.client, topic, key=KEY)
    old, latest = found["partitions"][0]["records"]
    assert (old["status"], old["superseded_by"], old["value_bytes"]) == ("superseded", 2, 3)
    assert [gate["kind"] for gate in old["gates"]] == ["active-segment"]
    assert old["gates"][0]["visibility"] == KNOWN
    assert old["gates"][0]["detail"]["size"] == found["partitions"][0]["bytes"]
    assert old["change"]["command"] == f"compact {topic}"
    assert (latest["status"], latest["goes_ms"]) == ("live", None)
    assert found["visibility"] == BOUNDED


def test_dirty_ratio_is_the_greatest_possible_one(cluster: AnyCluster) -> None:
    """Closed segments are found by where fetches end; the ratio is only bounded, as the checkpoint is not visible."""
    topic = cluster.create("explained-ratio", segment_ms="1000", min_cleanable_dirty_ratio="1.0")
    old_ms = now_ms() - DAY_MS
    for step in range(3):
        cluster.produce(topic, [(KEY, b"value")], timestamp_ms=old_ms + 10_000 * step)
    found = explain(cluster.client, topic, key=KEY)
    assert found["partitions"][0]["segments"] == 3
    first, second, live = found["partitions"][0]["records"]
    assert {gate["kind"]: gate["visibility"] for gate in first["gates"]} == {"dirty-ratio": BOUNDED}
    assert "at most" in first["gates"][0]["text"]
    assert "active-segment" in {gate["kind"] for gate in second["gates"]}
    assert live["status"] == "live"


def test_lag_and_retention_are_known(cluster: AnyCluster) -> None:
    """A minimal lag says until when; a topic that is not compacted keeps by its retention."""
    topic = cluster.create("explained-lag", segment_ms="1000", min_compaction_lag_ms=str(2 * DAY_MS))
    old_ms = now_ms() - DAY_MS
    for step in range(3):
        cluster.produce(topic, [(KEY, b"value")], timestamp_ms=old_ms + 10_000 * step)
    record = explain(cluster.client, topic, key=KEY)["partitions"][0]["records"][0]
    lag = next(gate for gate in record["gates"] if gate["kind"] == "min-compaction-lag")
    assert (lag["visibility"], lag["until_ms"] > now_ms()) == (KNOWN, True)
    kept = cluster.create("explained-kept", cleanup_policy="delete", retention_ms=str(9 * DAY_MS))
    cluster.produce(kept, [(KEY, b"value")], timestamp_ms=now_ms())
    record = explain(cluster.client, kept, key=KEY)["partitions"][0]["records"][0]
    assert {gate["kind"] for gate in record["gates"]} == {"not-compacted", "retention-time"}
    assert record["change"]["command"] is None


def test_partitions_and_offsets_are_explained(cluster: AnyCluster) -> None:
    """Without a key each partition is explained; an offset gives its record and the others of its key; bad places are refused."""
    topic = cluster.create("explained-places", partitions=2)
    cluster.produce(topic, [(KEY, b"one"), (KEY, None)], timestamp_ms=now_ms(), partition=1)
    found = explain(cluster.client, topic)
    assert [one["partition"] for one in found["partitions"]] == [0, 1]
    assert gates(found, 1) == {"active-segment": KNOWN}
    found = explain(cluster.client, topic, partition=1, offset=0)
    assert [one["offset"] for one in found["partitions"][0]["records"]] == [0, 1]
    assert found["partitions"][0]["records"][1]["status"] == "tombstone"
    with pytest.raises(NotFound, match="no partition 7"):
        explain(cluster.client, topic, partition=7)
    with pytest.raises(BadArgument):
        explain(cluster.client, topic, offset=0)
    with pytest.raises(BadArgument):
        explain(cluster.client, topic, key=KEY, offset=0, partition=1)


def batch(base_offset: int, offsets: Sequence[int]) -> bytes:
    """Return a batch with records at some of its offsets."""
    records = [Record(base_offset + offset, 1_000, b"k%d" % offset, b"value") for offset in offsets]
    return build_batch(records, base_offset=base_offset)


def outside(*segments: Sequence[bytes], end: int) -> OutsideLog:
    """Return the log that these segments show. The stretch knows all of them: it is ahead of what is taken."""
    begins = [int.from_bytes(segment[0][:8], "big") for segment in segments]
    log = OutsideLog(Stretch("t", 0, 1, 0, end, log_start=0, segments=begins))
    for segment in segments:
        log.take(memoryview(b"".join(segment)))
    return log


def test_gaps_tell_how_far_a_round_has_come() -> None:
    """Nothing is missing: nothing is known of rounds. What is missing in a segment was cleaned with all of that segment."""
    assert outside([batch(0, [0, 1])], [batch(2, [0])], end=3).cleaned_to == 0
    assert outside([batch(1, [0, 1])], [batch(3, [0])], end=4).cleaned_to == 1
    assert outside([batch(0, [0]), batch(4, [0])], [batch(5, [0])], [batch(6, [0])], end=7).cleaned_to == 5
    assert outside([batch(0, [0])], [batch(4, [0])], [batch(5, [0])], end=6).cleaned_to == 4


def test_damaged_batch_is_a_problem() -> None:
    """A batch whose checksum is wrong is named, and no record of it is taken."""
    data = bytearray(batch(0, [0, 1]))
    data[-1] ^= 1
    log = OutsideLog(Stretch("t", 0, 1, 0, 2, log_start=0), key=b"k0")
    log.stretch.segments.append(0)
    log.take(memoryview(bytes(data)))
    assert (len(log.scan().problems), log.scan().records) == (1, [])
