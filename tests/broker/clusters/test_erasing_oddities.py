"""Erasures on clusters that do not sit still: odd timestamps and keys, open transactions, other writers, interruptions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from diamant.broker.client.kafka_client import KafkaRefusal, LedPartition
from diamant.broker.client.kafka_group import KafkaGroup
from diamant.broker.clusters import lowered_configs
from diamant.broker.clusters.cluster_look import ConfigValue, SeenTopic, check_cleanable, look
from diamant.broker.clusters.operations import erase, restore, resume
from diamant.broker.clusters.outcome import ErasureOutcome
from diamant.broker.clusters.register import ClusterWork, Register
from diamant.broker.clusters.work_progress import TimeIsUp
from diamant.broker.operation_errors import NotFound, NotPossible
from diamant.json_types import JsonObject
from diamant.protocol.errors import ErrorCode
from diamant.protocol.murmur2 import default_partitions
from tests.broker.clusters.any_cluster import OLD_MS, AnyCluster, open_works
from tests.broker.clusters.open_transaction import OpenTransaction

TIMEOUT_S = 120.0
DAY_MS = 86_400_000
DELETE_TOPICS, CREATE_PARTITIONS = 20, 37
KEY = b"customer-42"


def at_stage(stage: str, do: Callable[[], object]) -> Callable[[JsonObject], None]:
    """Return a listener that does something once, when a stage begins."""
    done: list[str] = []

    def listen(progress: JsonObject) -> None:
        if progress["stage"] == stage and not done:
            done.append(stage)
            do()

    return listen


def interrupt() -> None:
    """What Ctrl-C does."""
    raise KeyboardInterrupt


def time_is_up() -> None:
    """What --timeout does."""
    raise TimeIsUp


def run(
    cluster: AnyCluster, register: Register, name: str, key: bytes = KEY, timeout_s: float = TIMEOUT_S, **more: Any
) -> JsonObject:
    """Erase a key from one topic."""
    return erase(cluster.client, key, [name], reason="asked", timeout_s=timeout_s, register=register, **more)


def left(cluster: AnyCluster, name: str, key: bytes = KEY) -> list[bytes]:
    """Return the values of a key that a topic's first partition still answers."""
    return [record.value for record in cluster.held(name) if record.key == key and record.value is not None]


@pytest.mark.parametrize("when", ["1970", "long ago", "in half an hour", "none", "log append time"])
def test_timestamps_of_all_kinds(cluster: AnyCluster, register: Register, when: str) -> None:
    """The active segment is closed whatever the times in it are."""
    own: dict[str, Any] = {"message_timestamp_type": "LogAppendTime"} if when == "log append time" else {}
    name = cluster.create(f"times-{when.replace(' ', '-')}", **own)
    ahead_ms = round(time.time() * 1000) + DAY_MS // 48
    stamp = {"1970": 0, "long ago": OLD_MS, "in half an hour": ahead_ms, "none": -1}.get(when)
    before = cluster.configs(name)
    cluster.produce(
        name, [(KEY, b"a value, long enough"), (b"other", b"2"), (KEY, b"another value")], timestamp_ms=stamp
    )
    found = run(cluster, register, name)
    assert (found["missing"], left(cluster, name)) == ({}, [])
    assert left(cluster, name, b"other") == [b"2"]
    assert cluster.configs(name) == before


KEYS = {"empty": b"", "avro": b"\x00\x00\x00\x00\x2a", "text": "schlüssel".encode(), "long": b"x" * 3000}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_all_kinds(cluster: AnyCluster, register: Register, kind: str) -> None:
    """A key is bytes; one with no bytes at all is a key as well."""
    name, key = cluster.create(f"keys-{kind}"), KEYS[kind]
    cluster.produce(name, [(key, b"1"), (b"other", b"2"), (key, b"3")], timestamp_ms=OLD_MS)
    assert run(cluster, register, name, key)["missing"] == {}
    assert left(cluster, name, key) == []


def test_a_record_that_mentions_the_key_stays_and_is_named(cluster: AnyCluster, register: Register) -> None:
    """Other records with the key's bytes, or those of an erased value, are listed by their offsets."""
    name = cluster.create("mentions")
    value = b"a value that is nowhere else"
    pairs = [(b"customer-000042", value), (b"a", b"see customer-000042"), (b"b", b"copy: " + value), (b"c", b"nothing")]
    cluster.produce(name, pairs, timestamp_ms=OLD_MS)
    found = run(cluster, register, name, b"customer-000042")
    (read,) = ErasureOutcome.from_fields(found["outcome"]).reads
    assert (read.same_bytes, found["missing"]) == ((1, 2), {})
    assert left(cluster, name, b"a") == [b"see customer-000042"]


@pytest.mark.parametrize("is_likely", [True, False])
def test_a_copy_in_a_partition_without_the_key_is_named(
    cluster: AnyCluster, register: Register, is_likely: bool
) -> None:
    """The certificate lists it. The other partitions are read again for that only if the key is not where Java puts it."""
    name, key, value = cluster.create(f"copied-{is_likely}", partitions=6), b"k", b"a value that is nowhere else"
    likely = default_partitions(key, 6)
    unlikely = [one for one in range(6) if one not in likely]
    home, elsewhere = likely[0] if is_likely else unlikely[0], unlikely[1]
    cluster.produce(name, [(b"a", b"copy: " + value)], timestamp_ms=OLD_MS, partition=elsewhere)
    cluster.produce(name, [(key, value)], timestamp_ms=OLD_MS, partition=home)
    stages: list[str] = []
    done = run(cluster, register, name, key, on_progress=lambda fields: stages.append(fields["stage"]))
    certificate = done["certificate"]
    expected = {"topic": name, "partition": elsewhere, "offset": 0, "what": "same-bytes"}
    assert (certificate["state"], certificate["elsewhere"]) == ("unreadable", [expected])
    before = stages[: stages.index("lowering configurations")]
    assert ("reading the replicas" in before) == (not is_likely)


def test_a_value_that_is_written_during_the_erasure_is_named(cluster: AnyCluster, register: Register) -> None:
    """The new value stays, and the response has its offset; older values are gone."""
    name = cluster.create("written-since")
    cluster.produce(name, [(KEY, b"old")], timestamp_ms=OLD_MS)

    def write() -> None:
        with AnyCluster(cluster.bootstrap) as other:
            other.produce(name, [(KEY, b"new")])

    found = run(cluster, register, name, on_progress=at_stage("waiting for the cleaner of each replica", write))
    (since,) = found["written_since"]
    assert (since["topic"], since["partition"]) == (name, 0)
    assert left(cluster, name) == [b"new"]


@pytest.mark.parametrize("stage", ["looking at the cluster", "finding", "lowering configurations", "writing tombstones",
    "closing active segments", "waiting for the cleaner of each replica"])  # fmt: skip
def test_an_interruption_puts_everything_back(cluster: AnyCluster, register: Register, stage: str) -> None:
    """Ctrl-C at any stage leaves the configurations as they were. What was begun is open, and a resumed run closes it."""
    name = cluster.create(f"interrupted-{stage.replace(' ', '-')}", segment_ms="123456")
    cluster.produce(name, [(KEY, b"old"), (b"other", b"1")], timestamp_ms=OLD_MS)
    before = cluster.configs(name)
    with pytest.raises(KeyboardInterrupt):
        run(cluster, register, name, on_progress=at_stage(stage, interrupt))
    assert cluster.configs(name) == before
    works = open_works(register)
    assert [work.changes for work in works] == [{}] * len(works)
    assert bool(works) == (stage not in ("looking at the cluster", "finding"))
    for work in works:
        assert resume(cluster.client, work.id, timeout_s=TIMEOUT_S, register=register)["missing"] == {}
        assert left(cluster, name) == []
    assert open_works(register) == []


def test_an_open_transaction_is_named_and_the_erasure_stays_open(cluster: AnyCluster, register: Register) -> None:
    """An open transaction holds the cleaner until the time limit; once it is over, a resumed run closes the erasure."""
    name = cluster.create("held")
    before = cluster.configs(name)
    with OpenTransaction(cluster.client, name) as transaction:
        cluster.produce(name, [(KEY, b"old"), (b"other", b"1")], timestamp_ms=OLD_MS)
        found = run(
            cluster, register, name, on_progress=at_stage("waiting for the cleaner of each replica", time_is_up)
        )
        (reason,) = found["missing"].values()
        assert f"open transaction of producer {transaction.producer_id}" in reason
        assert cluster.configs(name) == before
    found = resume(cluster.client, found["id"], timeout_s=TIMEOUT_S, register=register)
    assert (found["missing"], left(cluster, name)) == ({}, [])


def test_what_a_killed_run_left_is_put_back(cluster: AnyCluster, register: Register) -> None:
    """The saved file has it. A value that another client has set since is left and named."""
    name = cluster.create("killed", segment_ms="77000")
    before = cluster.configs(name)
    work = lowered(cluster, register, name)
    assert cluster.configs(name) != before
    with pytest.raises(NotPossible, match=f"diamant restore {work.id}"):
        run(cluster, register, name)
    alter(cluster, name, "min.cleanable.dirty.ratio", "0.3")
    found = restore(cluster.client, work.id, register=register)
    (sentence,) = found["left"]
    assert "min.cleanable.dirty.ratio is 0.3" in sentence
    alter(cluster, name, "min.cleanable.dirty.ratio", None)
    assert cluster.configs(name) == before
    assert open_works(register) == []
    with pytest.raises(NotFound):
        restore(cluster.client, work.id, register=register)


def test_a_saved_file_of_another_cluster_is_refused(cluster: AnyCluster, register: Register) -> None:
    """Nothing is changed on a cluster that the file is not of."""
    name = cluster.create("elsewhere")
    work = lowered(cluster, register, name)
    work.cluster_id = "another"
    register.save(work)
    during = cluster.configs(name)
    with pytest.raises(NotPossible, match="to cluster another"):
        restore(cluster.client, work.id, register=register)
    assert cluster.configs(name) == during


def test_two_runs_on_one_topic_are_refused(cluster: AnyCluster, register: Register) -> None:
    """The second would save the lowered values of the first."""
    name = cluster.create("twice")
    cluster.produce(name, [(KEY, b"old")], timestamp_ms=OLD_MS)
    refused: list[str] = []

    def again() -> None:
        with AnyCluster(cluster.bootstrap) as other, pytest.raises(NotPossible) as error:
            run(other, register, name)
        refused.append(str(error.value))

    assert run(cluster, register, name, on_progress=at_stage("writing tombstones", again))["missing"] == {}
    assert "in progress" in refused[0]


def test_topics_that_no_erasure_is_possible_on(cluster: AnyCluster, register: Register) -> None:
    """Topics that are unknown, internal or not compacted are refused, with the reason and the next step."""
    cluster.create("deletes", cleanup_policy="delete")
    with pytest.raises(KafkaRefusal, match="there is no topic 'missing'"):
        run(cluster, register, "missing")
    with pytest.raises(
        NotPossible, match=r"not compacted .cleanup.policy=delete.*7 days.*diamant explain deletes --key"
    ):
        run(cluster, register, "deletes")
    KafkaGroup(cluster.client, "readers").commit({("deletes", 0): 0})
    with pytest.raises(
        NotPossible, match="'__consumer_offsets' is internal to the brokers: expected one of your own topics"
    ):
        run(cluster, register, "__consumer_offsets")
    assert open_works(register) == []


def test_a_partition_without_a_leader_ends_it_before_the_first_change() -> None:
    """The error names the brokers that have its replicas, one of which has to be started."""
    led = LedPartition(3, -1, (2, 4), (4,), int(ErrorCode.LEADER_NOT_AVAILABLE))
    topic = SeenTopic("users", "", False, (led,), None, {"cleanup.policy": ConfigValue("compact", is_own=True)})
    with pytest.raises(NotPossible, match="users-3 has no leader; its replicas are on brokers 2, 4: start one of them"):
        check_cleanable([topic])


def lowered(cluster: AnyCluster, register: Register, *names: str) -> ClusterWork:
    """Return topics with lowered configurations, and the saved file of a run that was killed then."""
    seen = look(cluster.client, names)
    work = ClusterWork(register.new_id(), "erase", seen.cluster_id, cluster.bootstrap, [*names], 0)
    topics = [*seen.topics.values()]
    lowered_configs.lower(cluster.client, register, work, topics, lowered_configs.lowering(cluster.client, topics))
    return work


def alter(cluster: AnyCluster, name: str, config: str, value: str | None) -> None:
    """Set or unset a configuration of a topic."""
    assert not lowered_configs.alter(cluster.client, {name: {config: value}})


def test_times_that_the_cluster_no_longer_accepts_are_overcome_by_size(cluster: AnyCluster, register: Register) -> None:
    """Records dated in a week, and a tombstone must not be: segments roll by their size, for the time of it."""
    name = cluster.create("next-week", message_timestamp_after_max_ms=str(30 * DAY_MS))
    stamp = round(time.time() * 1000) + 7 * DAY_MS
    pairs = [(KEY, b"a value"), *((b"k%d" % number, b"x" * 60_000) for number in range(20))]
    cluster.produce(name, pairs, timestamp_ms=stamp)
    alter(cluster, name, "message.timestamp.after.max.ms", "3600000")
    before = cluster.configs(name)
    found = run(cluster, register, name)
    assert (found["missing"], left(cluster, name), cluster.configs(name)) == ({}, [], before)
    assert len(left(cluster, name, b"k7")) == 1


def test_a_resumed_run_claims_nothing_about_files_that_wait_for_deletion(
    cluster: AnyCluster, register: Register
) -> None:
    """Between two runs the cleaner may have replaced segments with the usual delay."""
    name = cluster.create("resumed-files")
    cluster.produce(name, [(KEY, b"old")], timestamp_ms=OLD_MS)
    found = run(cluster, register, name, on_progress=at_stage("closing active segments", time_is_up))
    assert found["outcome"]["file_delay_lowered"] == (name,)
    found = resume(cluster.client, found["id"], timeout_s=TIMEOUT_S, register=register)
    assert (found["missing"], found["outcome"]["file_delay_lowered"]) == ({}, ())


def test_a_partition_that_is_added_meanwhile_keeps_the_erasure_open(cluster: AnyCluster, register: Register) -> None:
    """The new partition's values are found at the end; a resumed run erases them."""
    name = cluster.create("grows")
    cluster.produce(name, [(KEY, b"old")], timestamp_ms=OLD_MS)

    def grow() -> None:
        fields = {
            "topics": [{"name": name, "count": 2, "assignments": None}],
            "timeout_ms": 30_000,
            "validate_only": False,
        }
        with AnyCluster(cluster.bootstrap) as other:
            assert not other.client.controller().ask(CREATE_PARTITIONS, fields)["results"][0]["error_code"]
            other.client.led(name, [1])
            other.produce(name, [(KEY, b"in the new partition")], timestamp_ms=OLD_MS, partition=1)

    found = run(cluster, register, name, on_progress=at_stage("writing tombstones", grow))
    ((missing, reason),) = found["missing"].items()
    assert (missing.partition("@")[0], reason) == (f"{name}-1", "a value remains at offset 0")
    found = resume(cluster.client, found["id"], timeout_s=TIMEOUT_S, register=register)
    assert found["missing"] == {}
    assert not [record for record in cluster.held(name, 1) if record.value]


def test_a_topic_that_is_created_again_meanwhile_ends_the_erasure(cluster: AnyCluster, register: Register) -> None:
    """Nothing is written to the new topic, and its configurations are left alone."""
    name = cluster.create("again")
    cluster.produce(name, [(KEY, b"old")], timestamp_ms=OLD_MS)

    def create_again() -> None:
        with AnyCluster(cluster.bootstrap) as other:
            fields = {"topic_names": [name], "topics": [{"name": name, "topic_id": None}], "timeout_ms": 30_000}
            assert not other.client.controller().ask(DELETE_TOPICS, fields)["responses"][0]["error_code"]
            other.wait_gone(name)
            other.create(name)

    with pytest.raises(NotPossible, match="deleted"):
        run(cluster, register, name, on_progress=at_stage("writing tombstones", create_again))
    assert cluster.held(name) == []
    assert not any(value.is_own for config, value in cluster.configs(name).items() if config != "cleanup.policy")
    (work,) = open_works(register)
    with pytest.raises(NotPossible, match="created again since"):
        resume(cluster.client, work.id, timeout_s=TIMEOUT_S, register=register)
    assert restore(cluster.client, work.id, forget=True, register=register)["is_open"] is False
    assert register.all() == []
