"""The tombstones of an erasure on any Kafka cluster: they go after their horizon, or at once if all groups have read them."""

from __future__ import annotations

from contextlib import suppress
from math import log2
from pathlib import Path

import pytest

from diamant.broker.client import admin as admin_module
from diamant.broker.client.kafka_client import LATEST
from diamant.broker.client.kafka_group import KafkaGroup
from diamant.broker.clusters import lowered_configs, rolling
from diamant.broker.clusters.cluster_look import look
from diamant.broker.clusters.lowered_configs import CleaningDelays, alter
from diamant.broker.clusters.operations import erase, resume
from diamant.broker.clusters.register import ClusterWork, Register
from diamant.broker.clusters.rolling import Replica, Roller
from diamant.broker.clusters.work_progress import TimeIsUp
from diamant.cleaner.evidence.certificates.cluster_claims import contradictions
from diamant.json_types import JsonObject
from tests.broker.clusters.any_cluster import OLD_MS, AnyCluster
from tests.broker.clusters.open_transaction import OpenTransaction
from tests.broker.clusters.test_commands import run
from tests.broker.clusters.test_erasing_oddities import at_stage, time_is_up
from tests.mutants import Mutant, put_in

TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def with_transactions(cluster: AnyCluster) -> AnyCluster:
    """A cluster that has a transaction topic, so that segments are closed without a further tombstone."""
    with OpenTransaction(cluster.client, cluster.create("makes-the-transaction-topic")):
        pass
    return cluster


def filled(cluster: AnyCluster, name: str, *, delete_retention_ms: str = "86400000", **configs: str) -> str:
    """Return a topic with two values of the key."""
    cluster.create(name, delete_retention_ms=delete_retention_ms, **configs)
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


@pytest.mark.parametrize("is_decided", [True, False])
def test_a_resumed_run_removes_them_after_their_horizon(
    with_transactions: AnyCluster, register: Register, is_decided: bool
) -> None:
    """The register keeps an erasure whose values are gone until its tombstones are, too.

    They may have got the horizon after the last read.
    """
    cluster = with_transactions
    name = filled(cluster, f"horizon-{is_decided}", delete_retention_ms="1")

    def end(progress: JsonObject) -> None:
        if progress["stage"] == "waiting for the cleaner to remove the tombstones":
            raise TimeIsUp

    found = erase(cluster.client, b"k", [name], reason="asked", timeout_s=TIMEOUT_S, on_progress=end, register=register)
    assert (found["state"], found["missing"]) == ("unreadable", {})
    if not is_decided:
        (work,) = register.all()
        fields = work.to_fields()
        for mark in fields["outcome"]["reads"][0]["tombstones"]:
            mark["horizon_ms"] = None
        register.save(ClusterWork.from_fields(fields))
    found = resume(cluster.client, found["id"], timeout_s=TIMEOUT_S, register=register)
    assert (found["state"], found["missing"], register.all()) == ("key-unreadable", {}, [])
    assert [record.key for record in cluster.held(name)] == [b"other"]


def test_tombstones_alone_are_not_nothing(
    with_transactions: AnyCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeat that finds and removes only those says so, with exit code 0, and names the tombstone that is gone."""
    cluster, register = with_transactions, Register(tmp_path / "state")
    name = filled(cluster, "only-tombstones", delete_retention_ms="1")
    stop = at_stage("waiting for the cleaner to remove the tombstones", time_is_up)
    found = erase(
        cluster.client, b"k", [name], reason="asked", timeout_s=TIMEOUT_S, on_progress=stop, register=register
    )
    assert found["state"] == "unreadable"
    put_in(monkeypatch, Mutant(admin_module, "HTTP_ADDRESS_CONFIG", lambda _real: "no.such.config"))
    words = ["erase", name, "--key", "k", "--reason", "asked"]
    plan = run(cluster, tmp_path, *words, "--dry-run")
    assert (plan.exit_code, "Only tombstones of the key were found" in plan.stdout) == (0, True), plan.output
    done = run(cluster, tmp_path, *words)
    told = done.stdout.splitlines()
    assert (done.exit_code, told[0]) == (0, "No value of the key was found, only tombstones. They are gone now."), (
        done.output
    )
    assert told[1].startswith("key-unreadable, erasure ")
    assert told[3].split()[:3] == [f"{name}-0", "0", "3"]
    assert [record.key for record in cluster.held(name)] == [b"other"]


def test_tombstones_that_another_run_has_removed_were_found(with_transactions: AnyCluster, register: Register) -> None:
    """An erasure that found nothing else is not told at the end that nothing matched."""
    cluster = with_transactions
    name = filled(cluster, "removed-by-another", delete_retention_ms="1")
    opened = []
    for _ in range(2):
        stop = at_stage("waiting for the cleaner to remove the tombstones", time_is_up)
        found = erase(
            cluster.client, b"k", [name], reason="asked", timeout_s=TIMEOUT_S, on_progress=stop, register=register
        )
        assert found["state"] == "unreadable"
        opened.append(found["id"])
    for one in opened:
        found = resume(cluster.client, one, timeout_s=TIMEOUT_S, register=register)
        assert (found["state"], found["missing"]) == ("key-unreadable", {})
        assert found["certificate"]["done"] == [{"topic": name, "partition": 0, "tombstone_offset": 3}]
    assert register.all() == []


def killed(
    cluster: AnyCluster, name: str, register: Register, stage: str, *, tombstones_now: bool = False
) -> JsonObject:
    """Run an erasure to a stage, and leave the cluster and the register as `kill -9` does there. Returns the saved work."""
    saved: list[ClusterWork] = []

    def end() -> None:
        saved.extend(register.all())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        erase(
            cluster.client, b"k", [name], reason="asked", tombstones_now=tombstones_now, timeout_s=TIMEOUT_S,
            on_progress=at_stage(stage, end), register=register,
        )  # fmt: skip
    (work,) = saved
    lowered = {topic: {one: value.lowered for one, value in own.items()} for topic, own in work.changes.items()}
    assert not alter(cluster.client, lowered)
    register.save(work)
    return work.to_fields()


@pytest.mark.parametrize("stage", ["writing tombstones", "closing active segments"])
def test_a_killed_run_is_resumed_to_its_end(with_transactions: AnyCluster, register: Register, stage: str) -> None:
    """The values that it has left lowered are not taken for the topic's own: they are lowered again when needed, and put back."""
    cluster = with_transactions
    name = filled(cluster, f"killed-{stage.replace(' ', '-')}")
    before = cluster.configs(name)
    work = killed(cluster, name, register, stage, tombstones_now=True)
    assert cluster.configs(name)["segment.ms"].value == lowered_configs.ROLLING["segment.ms"]
    found = resume(cluster.client, work["id"], timeout_s=TIMEOUT_S, register=register)
    assert (found["state"], found["missing"], found["left"]) == ("key-unreadable", {}, [])
    assert [record.key for record in cluster.held(name)] == [b"other"]
    assert (cluster.configs(name), register.all()) == (before, [])


def test_tombstones_whose_horizon_is_written_are_removed_by_later_ones(
    with_transactions: AnyCluster, register: Register
) -> None:
    """The horizon of a tombstone cannot be changed after its first clean. So a later erasure writes another in its place."""
    cluster = with_transactions
    name = filled(cluster, "superseded")
    before = cluster.configs(name)
    erase(cluster.client, b"k", [name], reason="asked", timeout_s=TIMEOUT_S, register=register)
    (tombstone,) = [record.offset for record in cluster.held(name) if record.value is None]
    found = erase(
        cluster.client, b"k", [name], reason="asked", tombstones_now=True, timeout_s=TIMEOUT_S, register=register
    )
    assert (found["state"], found["missing"], found["left"]) == ("key-unreadable", {}, [])
    assert found["certificate"]["done"][0]["tombstone_offset"] > tombstone
    assert contradictions(found["certificate"]) == []
    assert [record.key for record in cluster.held(name)] == [b"other"]
    assert cluster.configs(name) == before


def test_a_resumed_run_removes_them_at_once_if_asked_to(with_transactions: AnyCluster, register: Register) -> None:
    """By new tombstones, whose offset it names. Claims end where they did: no other replica has to be read further for it.

    A group that is behind keeps them, without consent.
    """
    cluster = with_transactions
    name = filled(cluster, "resumed-at-once")
    before = cluster.configs(name)
    first = erase(cluster.client, b"k", [name], reason="asked", timeout_s=TIMEOUT_S, register=register)
    KafkaGroup(cluster.client, "still-behind").commit({(name, 0): 1})

    def again(*, is_agreed: bool) -> JsonObject:
        return resume(
            cluster.client, first["id"], tombstones_now=True, agree=lambda *_: is_agreed, timeout_s=TIMEOUT_S,
            register=register,
        )  # fmt: skip

    found = again(is_agreed=False)
    assert (found["is_now_refused"], found["groups_behind"]) == (True, {f"{name}-0": ["still-behind"]})
    assert (found["state"], found["certificate"]["done"]) == ("unreadable", first["certificate"]["done"])
    assert [record.key for record in cluster.held(name)] == [b"other", b"k"]
    found = again(is_agreed=True)
    assert (found["state"], found["missing"], found["left"]) == ("key-unreadable", {}, [])
    assert [record.key for record in cluster.held(name)] == [b"other"]
    (before_this,), (done,) = first["certificate"]["done"], found["certificate"]["done"]
    assert done["tombstone_offset"] > before_this["tombstone_offset"]
    assert [one["below_offset"] for one in found["certificate"]["claims"]] == [before_this["tombstone_offset"] + 1]
    assert contradictions(found["certificate"]) == []
    assert (cluster.configs(name), register.all()) == (before, [])


def test_a_group_that_is_behind_is_named_by_a_later_erasure_too(
    with_transactions: AnyCluster, register: Register
) -> None:
    """What counts is not the values, which are gone by then, but the tombstone, which the group has still to read."""
    cluster = with_transactions
    name = filled(cluster, "behind-again")
    KafkaGroup(cluster.client, "slow-again").commit({(name, 0): 1})
    for _ in range(2):
        found = erase(
            cluster.client, b"k", [name], reason="asked", tombstones_now=True, timeout_s=TIMEOUT_S, register=register
        )
        assert (found["is_now_refused"], found["groups_behind"]) == (True, {f"{name}-0": ["slow-again"]})
    assert [(record.key, record.value) for record in cluster.held(name)] == [(b"other", b"2"), (b"k", None)]


def test_a_segment_that_stays_open_gets_few_markers(with_transactions: AnyCluster) -> None:
    """Each append that closes nothing doubles the wait for the next, so that an hour of them leaves a dozen."""
    cluster, seconds, markers = with_transactions, iter(range(60, 3600, 60)), 0
    name = filled(cluster, "stays-open", segment_ms=str(2**40))
    cluster.produce(name, [(b"k", b"4")])
    roller = Roller(cluster.client, look(cluster.client, [name]), None, {name: CleaningDelays()}, lambda: next(seconds))
    (before,) = cluster.client.offsets(name, [0], LATEST).values()
    roller.close_after((name, 0), before - 1)
    with suppress(StopIteration):
        while roller.close_segments([Replica(name, 0, *cluster.client.broker_ids())]):
            (end,) = cluster.client.offsets(name, [0], LATEST).values()
            markers = end - before
    assert 8 <= markers <= 1 + log2(3600 / rolling.FIRST_PAUSE_S)
