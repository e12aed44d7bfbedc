"""An erasure on three brokers of Apache Kafka, each with a replica of everything: the leader alone proves nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diamant.broker.clusters.operations import erase, resume
from diamant.broker.clusters.outcome import ErasureOutcome
from diamant.broker.clusters.register import Register
from tests.broker.clusters.any_cluster import AnyCluster, open_works
from tests.broker.clusters.real_kafka import RealKafka, real_kafka
from tests.broker.clusters.test_erasing_oddities import at_stage

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


at_any_step = pytest.mark.parametrize(
    "stage",
    ["looking at the cluster", "finding", "lowering configurations", "writing tombstones", "closing active segments",
     "waiting for the cleaner of each replica", "reading the replicas"],
)  # fmt: skip


def check_each_as_leader(cluster: RealKafka, name: str) -> None:
    """Have each replica lead once: none has a value of the key, all have the rest."""
    for broker in (1, 2, 3):
        cluster.lead(name, 0, broker)
        assert values(cluster, name, broker) == 0
        assert {record.key for record in cluster.held(name)} >= {b"customer-%d" % (40 + number) for number in range(10)}


@pytest.mark.long
@at_any_step
def test_a_leader_that_moves_at_any_step_hides_nothing(three: RealKafka, register: Register, stage: str) -> None:
    """Leadership goes to another broker without a stop. Afterwards each replica leads once, and none has a value."""
    name = fill(three, f"moves-{stage.replace(' ', '-')}")
    before = three.configs(name)
    (leader,) = three.client.led(name, [0])
    with AnyCluster(three.bootstrap) as own:

        def move() -> None:
            three.lead(name, 0, leader % 3 + 1)

        found = erase(
            own.client, KEY, [name], reason="asked", timeout_s=TIMEOUT_S, register=register,
            on_progress=at_stage(stage, move),
        )  # fmt: skip
    assert [*three.client.led(name, [0])] == [leader % 3 + 1]
    assert (found["state"], found["missing"], found["not_put_back"]) == ("unreadable", {}, {})
    assert (three.configs(name), open_works(register)) == (before, [])
    check_each_as_leader(three, name)


@pytest.mark.long
@at_any_step
def test_a_leader_that_stops_at_any_step_leaves_an_erasure_to_resume(
    three: RealKafka, register: Register, stage: str
) -> None:
    """Its replica is missing, or is read once it is back. Nothing is lost, and afterwards each replica leads without a value."""
    name = fill(three, f"stops-{stage.replace(' ', '-')}")
    before = three.configs(name)
    three.lead(name, 0, 2)
    try:
        found = erase(
            three.client, KEY, [name], reason="asked", timeout_s=TIMEOUT_S, register=register,
            on_progress=at_stage(stage, lambda: three.stop(2)),
        )  # fmt: skip
    finally:
        three.start(2)
        three.wait_up(2)
        three.wait_registered(3)
    assert ([*found["missing"]], found["not_put_back"]) == ([f"{name}-0@2"], {})
    assert three.configs(name) == before
    three.wait_in_sync(name, 3)
    assert resume(three.client, found["id"], timeout_s=TIMEOUT_S, register=register)["missing"] == {}
    assert (three.configs(name), open_works(register)) == (before, [])
    check_each_as_leader(three, name)


def test_a_replica_that_was_down_leaves_the_erasure_open(three: RealKafka, register: Register) -> None:
    """A broker that was down during the erasure returns with all values. Until a resumed run has read it, the erasure is open.

    A dry run meanwhile finds no value, but names the replica and the erasure.
    """
    name = fill(three, "returns")
    before = three.configs(name)
    three.stop(3)
    try:
        found = erase(three.client, KEY, [name], reason="asked", timeout_s=TIMEOUT_S, register=register)
        plan = erase(
            three.client, KEY, [name], reason="asked", timeout_s=TIMEOUT_S, register=register, dry_run=True
        )  # fmt: skip
    finally:
        three.start(3)
        three.wait_up(3)
    assert (found["state"], [*found["missing"]]) == ("not-certified", [f"{name}-0@3"])
    assert (plan["tombstones"], [*plan["missing"]], plan["open"]) == (0, [f"{name}-0@3"], [found["id"]])
    assert three.configs(name) == before
    assert [work.id for work in open_works(register)] == [found["id"]]
    three.wait_in_sync(name, 3)
    assert [values(three, name, broker) for broker in (1, 2, 3)] == [0, 0, 20]
    found = resume(three.client, found["id"], timeout_s=TIMEOUT_S, register=register)
    assert (found["state"], found["missing"], open_works(register)) == ("unreadable", {}, [])
    assert three.configs(name) == before
    assert [values(three, name, broker) for broker in (1, 2, 3)] == [0, 0, 0]
