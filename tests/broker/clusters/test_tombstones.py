"""The tombstones of an erasure on any Kafka cluster: they go after their horizon, or at once if all groups have read them."""

from __future__ import annotations

import pytest

from diamant.broker.client.kafka_group import KafkaGroup
from diamant.broker.clusters.operations import erase, resume
from diamant.broker.clusters.register import Register
from diamant.broker.clusters.work_progress import TimeIsUp
from diamant.json_types import JsonObject
from tests.broker.clusters.any_cluster import OLD_MS, AnyCluster
from tests.broker.clusters.open_transaction import OpenTransaction

TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def with_transactions(cluster: AnyCluster) -> AnyCluster:
    """A cluster that has a transaction topic, so that segments are closed without a further tombstone."""
    with OpenTransaction(cluster.client, cluster.create("makes-the-transaction-topic")):
        pass
    return cluster


def filled(cluster: AnyCluster, name: str, *, delete_retention_ms: str = "86400000") -> str:
    """Return a topic with two values of the key."""
    cluster.create(name, delete_retention_ms=delete_retention_ms)
    cluster.produce(name, [(b"k", b"1"), (b"other", b"2"), (b"k", b"3")], timestamp_ms=OLD_MS)
    return name


def test_tombstones_go_at_once(with_transactions: AnyCluster, register: Register) -> None:
    """Nothing of the key is left, and the configurations are as before."""
    cluster = with_transactions
    name = filled(cluster, "at-once")
    before = cluster.configs(name)
    found = erase(
        cluster.client, b"k", [name], reason="asked", tombstones_now=True, timeout_s=TIMEOUT_S, register=register
    )
    assert (found["state"], found["missing"], found["left"]) == ("key-unreadable", {}, [])
    assert [record.key for record in cluster.held(name)] == [b"other"]
    assert (cluster.configs(name), register.all()) == (before, [])


def test_a_group_that_is_behind_keeps_them(with_transactions: AnyCluster, register: Register) -> None:
    """Without consent only the values are removed; the group that is behind is listed."""
    cluster = with_transactions
    name = filled(cluster, "behind")
    KafkaGroup(cluster.client, "slow").commit({(name, 0): 1})
    found = erase(
        cluster.client, b"k", [name], reason="asked", tombstones_now=True, timeout_s=TIMEOUT_S, register=register
    )
    assert (found["is_now_refused"], found["groups_behind"]) == (True, {f"{name}-0": ["slow"]})
    assert (found["state"], found["missing"]) == ("unreadable", {})
    assert [(record.key, record.value) for record in cluster.held(name)] == [(b"other", b"2"), (b"k", None)]


def test_a_resumed_run_removes_them_after_their_horizon(with_transactions: AnyCluster, register: Register) -> None:
    """The register keeps an erasure whose values are gone until its tombstones are, too."""
    cluster = with_transactions
    name = filled(cluster, "horizon", delete_retention_ms="1")

    def end(progress: JsonObject) -> None:
        if progress["stage"] == "waiting for the cleaner to remove the tombstones":
            raise TimeIsUp

    found = erase(cluster.client, b"k", [name], reason="asked", timeout_s=TIMEOUT_S, on_progress=end, register=register)
    assert (found["state"], found["missing"]) == ("unreadable", {})
    found = resume(cluster.client, found["id"], timeout_s=TIMEOUT_S, register=register)
    assert (found["state"], found["missing"], register.all()) == ("key-unreadable", {}, [])
    assert [record.key for record in cluster.held(name)] == [b"other"]
