"""An erasure on any Kafka cluster: the values go from each replica, everything else stays, the configurations are as before."""

from __future__ import annotations

from pathlib import Path

import pytest

from diamant.broker.clusters.operations import erase, resume
from diamant.broker.clusters.outcome import ErasureOutcome
from diamant.broker.clusters.register import ClusterWork, Register
from diamant.broker.operation_errors import BadArgument
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
    claims = [one["below_offset"] for one in found["certificate"]["claims"]]
    assert claims == [part.below_offset for part in outcome.partitions] == [52, 51]
    assert all(read.is_clean and read.planted and len(read.segments) > 1 for read in outcome.reads)
    for partition in range(2):
        last = {record.key: record.value for record in cluster.held(name, partition)}
        expected = {b"customer-%d" % number: b"value-%d of customer %d" % (45 + number, number) for number in range(4)}
        other = {} if partition else {b"other": b"about customer-4 in passing"}
        assert last == {**expected, **other, b"customer-4": None}
        assert not any(record.value for record in cluster.held(name, partition) if record.key == b"customer-4")


class _CountedSaves(Register):
    """A register that counts its writes."""

    saves = 0

    def save(self, work: ClusterWork) -> None:
        self.saves += 1
        super().save(work)


def test_many_topics_are_saved_once_each(cluster: AnyCluster, tmp_path: Path) -> None:
    """The register's file lists all replicas, so writing it for each step in each topic would take hours for thousands."""
    names = [cluster.create(f"many-{number}") for number in range(12)]
    for name in names:
        cluster.produce(name, [(b"k", b"1")], timestamp_ms=OLD_MS)
    before, counted = [cluster.configs(name) for name in names], _CountedSaves(tmp_path)
    found = erase(cluster.client, b"k", names, reason="asked", timeout_s=TIMEOUT_S, register=counted)
    assert (found["state"], found["missing"]) == ("unreadable", {})
    assert counted.saves < 2 * len(names)
    assert [cluster.configs(name) for name in names] == before


@pytest.mark.parametrize("is_dry_run", [False, True])
@pytest.mark.parametrize("text", ["customer-42", "CUSTOMER-42 asked", "Alice Smith of 12 High Street, by letter"])
@pytest.mark.parametrize("place", ["reason", "reference"])
def test_texts_with_the_key_or_a_value_are_refused(
    cluster: AnyCluster, register: Register, text: str, place: str, is_dry_run: bool
) -> None:
    """The certificate would keep them. Nothing is written or lowered, and no work is left."""
    name = cluster.create(f"texts-{place}-{len(text)}-{is_dry_run}")
    cluster.produce(name, [(b"customer-42", b"Alice Smith of 12 High Street")], timestamp_ms=OLD_MS)
    before, records = cluster.configs(name), cluster.held(name)
    texts = {"reason": "asked", place: text}
    with pytest.raises(BadArgument, match="reason and reference must not contain the data to be removed"):
        erase(
            cluster.client, b"customer-42", [name], **texts, timeout_s=TIMEOUT_S, register=register, dry_run=is_dry_run
        )
    assert (cluster.configs(name), cluster.held(name)) == (before, records)
    assert not [*register.directory.glob("erasures/*")]


def test_reasons_are_limited_as_on_a_diamant(cluster: AnyCluster, register: Register) -> None:
    """Without a reason, or with one of several lines, not even the signing key is made."""
    for reason in (" ", "two\nlines", "x" * 1001):
        with pytest.raises(BadArgument, match="reason"):
            erase(cluster.client, b"k", ["any"], reason=reason, timeout_s=TIMEOUT_S, register=register)
    assert not [*register.directory.iterdir()]


def test_a_resumed_erasure_needs_its_signing_key(cluster: AnyCluster, register: Register) -> None:
    """Another key could not compare its digests, so none is made."""
    name = cluster.create("lost-key")
    cluster.produce(name, [(b"a", b"1")], timestamp_ms=OLD_MS)
    found = erase(cluster.client, b"a", [name], reason="asked", timeout_s=TIMEOUT_S, register=register)
    secret = register.directory / "signing-key.secret"
    secret.unlink()
    with pytest.raises(BadArgument, match=r"signing-key\.secret is missing"):
        resume(cluster.client, found["id"], timeout_s=TIMEOUT_S, register=register)
    assert not secret.exists()


def test_a_key_that_is_nowhere_changes_nothing(cluster: AnyCluster, register: Register) -> None:
    """Nothing is written or lowered, and the state says so."""
    name = cluster.create("nowhere")
    cluster.produce(name, [(b"a", b"1")], timestamp_ms=OLD_MS)
    before = cluster.held(name)
    found = erase(cluster.client, b"b", [name], reason="asked", timeout_s=TIMEOUT_S, register=register)
    assert (found["state"], cluster.held(name)) == ("nothing-matched", before)
