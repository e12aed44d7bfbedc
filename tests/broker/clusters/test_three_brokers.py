"""An erasure on three brokers of Apache Kafka, each with a replica of everything: the leader alone proves nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diamant.broker.clusters.operations import erase, resume
from diamant.broker.clusters.outcome import ErasureOutcome
from diamant.broker.clusters.register import Register
from tests.broker.clusters.any_cluster import open_works
from tests.broker.clusters.real_kafka import RealKafka, real_kafka

pytestmark = pytest.mark.slow
TIMEOUT_S = 180.0
KEY = b"customer-42"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """Three brokers."""
    with real_kafka(tmp_path_factory.mktemp("three"), brokers=3, min_insync_replicas="2") as running:
        yield running


def fill(cluster: RealKafka, name: str, partitions: int = 1) -> str:
    """Return a topic with three replicas and twenty values of the key in each partition."""
    cluster.create(name, partitions=partitions)
    for partition in range(partitions):
        pairs = [(b"customer-%d" % (40 + number % 10), b"value %d of someone" % number) for number in range(200)]
        cluster.produce(name, pairs, partition=partition)
    return name


def values(cluster: RealKafka, topic: str, broker: int) -> int:
    """How many values of the key one replica answers."""
    return sum(record.key == KEY and record.value is not None for record in cluster.held(topic, broker=broker))


def test_each_replica_is_read_and_clean(three: RealKafka, register: Register) -> None:
    """Nine replicas are read whole, none has a value, and the configurations are as before."""
    name = fill(three, "nine", partitions=3)
    before = three.configs(name)
    found = erase(three.client, KEY, [name], reason="asked", timeout_s=TIMEOUT_S, register=register)
    outcome = ErasureOutcome.from_fields(found["outcome"])
    assert (found["state"], found["missing"], three.configs(name)) == ("unreadable", {}, before)
    assert len([read for read in outcome.reads if read.is_clean]) == 9
    assert [values(three, name, broker) for broker in (1, 2, 3)] == [0, 0, 0]


def test_a_replica_that_was_down_leaves_the_erasure_open(three: RealKafka, register: Register) -> None:
    """A broker that was down during the erasure returns with all values. Until a resumed run has read it, the erasure is open."""
    name = fill(three, "returns")
    before = three.configs(name)
    three.stop(3)
    try:
        found = erase(three.client, KEY, [name], reason="asked", timeout_s=TIMEOUT_S, register=register)
    finally:
        three.start(3)
        three.wait_up(3)
    assert (found["state"], [*found["missing"]]) == ("not-certified", [f"{name}-0@3"])
    assert three.configs(name) == before
    assert [work.id for work in open_works(register)] == [found["id"]]
    three.wait_in_sync(name, 3)
    assert [values(three, name, broker) for broker in (1, 2, 3)] == [0, 0, 20]
    found = resume(three.client, found["id"], timeout_s=TIMEOUT_S, register=register)
    assert (found["state"], found["missing"], open_works(register)) == ("unreadable", {}, [])
    assert three.configs(name) == before
    assert [values(three, name, broker) for broker in (1, 2, 3)] == [0, 0, 0]
