"""An erasure on any Kafka cluster: the values go from each replica, everything else stays, the configurations are as before."""

from __future__ import annotations

from diamant.broker.clusters.operations import erase
from diamant.broker.clusters.outcome import ErasureOutcome
from diamant.broker.clusters.register import Register
from tests.broker.clusters.any_cluster import OLD_MS, AnyCluster, open_works

TIMEOUT_S = 120.0


def test_values_go_and_all_else_stays(cluster: AnyCluster, register: Register) -> None:
    """No value of the key is left, the latest of each other key is, configurations are as before, and no work is open."""
    name = cluster.create("values-go", partitions=2, segment_ms="600000")
    for partition in range(2):
        pairs = [
            (b"customer-%d" % (number % 5), b"value-%d of customer %d" % (number, number % 5)) for number in range(50)
        ]
        cluster.produce(name, pairs, partition=partition)
    cluster.produce(name, [(b"other", b"about customer-4 in passing")])
    before = cluster.configs(name)
    found = erase(cluster.client, b"customer-4", [name], reason="asked", timeout_s=TIMEOUT_S, register=register)
    outcome = ErasureOutcome.from_fields(found["outcome"])
    assert (found["state"], found["missing"], found["left"]) == ("unreadable", {}, [])
    assert cluster.configs(name) == before
    assert open_works(register) == []
    assert [(part.values, part.tombstone_offset) for part in outcome.partitions] == [(10, 51), (10, 50)]
    assert all(read.is_clean and read.planted and len(read.segments) > 1 for read in outcome.reads)
    for partition in range(2):
        last = {record.key: record.value for record in cluster.held(name, partition)}
        expected = {b"customer-%d" % number: b"value-%d of customer %d" % (45 + number, number) for number in range(4)}
        other = {} if partition else {b"other": b"about customer-4 in passing"}
        assert last == {**expected, **other, b"customer-4": None}
        assert not any(record.value for record in cluster.held(name, partition) if record.key == b"customer-4")


def test_a_key_that_is_nowhere_changes_nothing(cluster: AnyCluster, register: Register) -> None:
    """Nothing is written or lowered, and the state says so."""
    name = cluster.create("nowhere")
    cluster.produce(name, [(b"a", b"1")], timestamp_ms=OLD_MS)
    before = cluster.held(name)
    found = erase(cluster.client, b"b", [name], reason="asked", timeout_s=TIMEOUT_S, register=register)
    assert (found["state"], cluster.held(name)) == ("nothing-matched", before)
