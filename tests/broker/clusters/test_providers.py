"""Erasures where a cluster does not take the values that it is given: refused, raised without an error, ignored."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.client.kafka_client import KafkaClient, KafkaRefusal
from diamant.broker.client.kafka_connection import Fields
from diamant.broker.clusters.cluster_look import DESCRIBE_CONFIGS, TIERED_CONFIG, now_ms
from diamant.broker.clusters.erasing import ErasureRun
from diamant.broker.clusters.lowered_configs import INCREMENTAL_ALTER_CONFIGS
from diamant.broker.clusters.operations import compact, erase, resume
from diamant.broker.clusters.outcome import ErasureOutcome
from diamant.broker.clusters.register import ClusterWork, Register
from diamant.broker.clusters.work_progress import WorkProgress
from diamant.broker.inspection.cluster_audit import audit
from diamant.broker.inspection.cluster_explanation import explain
from diamant.broker.operation_errors import NotPossible
from diamant.json_types import JsonObject
from diamant.protocol.errors import ErrorCode
from tests.broker.clusters.any_cluster import AnyCluster, diamant, open_works
from tests.broker.clusters.real_kafka import real_kafka
from tests.waiting import PATIENCE_S

KEY = b"customer-42"
TIMEOUT_S = 120.0
ALTER_CLIENT_QUOTAS = 49
MINUTE_MS, WEEK_MS = 60_000, 7 * 86_400_000
NEVER = "the policy allows no change"


class Provider(KafkaClient):
    """A client of a cluster with a lowest value for some configurations. `how`: lower ones are refused, raised or ignored."""

    def __init__(self, bootstrap: str, least: Mapping[str, float], how: str) -> None:
        # A value that the cluster does not take is waited for.
        super().__init__(bootstrap, timeout_s=PATIENCE_S if how == "refused" else 1.5)
        self._least = least
        self._how = how

    def ask_any(self, api_key: int, fields: Fields) -> Fields:
        """Ask, with the provider in between."""
        if api_key == INCREMENTAL_ALTER_CONFIGS:
            (resource,) = fields["resources"]
            taken = []
            for one in resource["configs"]:
                is_low = one["value"] is not None and float(one["value"]) < self._least.get(one["name"], 0)
                if is_low and self._how == "refused":
                    code = int(ErrorCode.POLICY_VIOLATION)
                    refusal = {"resource_name": resource["resource_name"], "error_code": code, "error_message": NEVER}
                    return {"responses": [refusal]}
                if not is_low:
                    taken.append(one)
                elif self._how == "raised":
                    taken.append({**one, "value": f"{self._least[one['name']]:.0f}"})
            fields = {**fields, "resources": [{**resource, "configs": taken}]}
        return super().ask_any(api_key, fields)


@contextmanager
def topic_with_values(cluster: AnyCluster, name: str) -> Iterator[Mapping[str, object]]:
    """A topic whose records are of now, and later ones of the next hour at most; its configurations are the same afterwards."""
    cluster.create(
        name, message_timestamp_after_max_ms="3600000"
    )  # Kafka's default from 4.0 on, without a limit before.
    cluster.produce(name, [(KEY, b"a value, long enough"), (b"other", b"2"), (KEY, b"another value")])
    before = cluster.configs(name)
    yield before
    assert cluster.configs(name) == before


def run(client: KafkaClient, register: Register, name: str) -> JsonObject:
    """Erase the key from one topic."""
    return erase(client, KEY, [name], reason="asked", timeout_s=TIMEOUT_S, register=register)


def values(cluster: AnyCluster, name: str) -> list[bytes]:
    """Return the values of the key that are left."""
    return [one.value for one in cluster.held(name) if one.key == KEY and one.value is not None]


@pytest.mark.parametrize("how", ["refused", "raised", "ignored"])
def test_ten_minutes_are_overcome_by_tombstones_of_later_times(
    cluster: AnyCluster, register: Register, how: str
) -> None:
    """A segment.ms of ten minutes closes segments at once, and a ratio that is not taken is replaced by a maximum lag."""
    name = f"provider-{how}"
    least = {"segment.ms": 10 * MINUTE_MS, "min.cleanable.dirty.ratio": 0.5, "file.delete.delay.ms": MINUTE_MS}
    if how == "ignored":
        del least["segment.ms"]
    with topic_with_values(cluster, name), Provider(cluster.bootstrap, least, how) as client:
        found = run(client, register, name)
        assert (found["missing"], found["left"], values(cluster, name)) == ({}, [], [])
        assert found["outcome"]["file_delay_lowered"] == ()


def test_a_week_is_told_and_leaves_a_resumable_erasure(cluster: AnyCluster, register: Register) -> None:
    """Nothing closes the segment before its records are a week old: the wait ends at once, with the time."""
    name, began = "provider-week", time.monotonic()
    with topic_with_values(cluster, name), Provider(cluster.bootstrap, {"segment.ms": WEEK_MS}, "refused") as client:
        before_ms = now_ms()
        found = run(client, register, name)
        assert time.monotonic() - began < TIMEOUT_S / 2
        (reason,) = found["missing"].values()
        told = re.search(r"the shortest segment.ms .* is 604800000 ms: .* of (\S+ \S+) UTC or later", reason)
        assert told is not None, reason
        assert told[1] >= time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime((before_ms + WEEK_MS) / 1000))
        assert (found["state"], len(values(cluster, name))) == ("not-certified", 2)
        compacted = compact(client, name, timeout_s=TIMEOUT_S, register=register)
        assert "is 604800000 ms: at the latest" in compacted["held_text"]
    found = resume(cluster.client, found["id"], timeout_s=TIMEOUT_S, register=register)
    assert (found["missing"], values(cluster, name)) == ({}, [])


def test_a_policy_that_refuses_all_changes_ends_it_before_the_first(cluster: AnyCluster, register: Register) -> None:
    """Its own words are told; nothing is written, and nothing stays open."""
    name = "provider-never"
    never = dict.fromkeys(("segment.ms", "min.cleanable.dirty.ratio", "max.compaction.lag.ms"), float("inf"))
    with topic_with_values(cluster, name), Provider(cluster.bootstrap, never, "refused") as client:
        with pytest.raises(NotPossible, match=f"nothing was changed.*{NEVER}"):
            run(client, register, name)
        assert len(cluster.held(name)) == 3
    assert open_works(register) == []


class Tiered(KafkaClient):
    """A client of a cluster whose topics have tiered storage, which Kafka allows with the policy delete only."""

    def ask_any(self, api_key: int, fields: Fields) -> Fields:
        """Ask, and say so in the configurations."""
        answer = super().ask_any(api_key, fields)
        if api_key != DESCRIBE_CONFIGS:
            return answer
        tiered = {"name": TIERED_CONFIG, "value": "true", "config_source": 1}
        results = [
            {**one, "configs": [*(each for each in one["configs"] if each["name"] != TIERED_CONFIG), tiered]}
            for one in answer["results"]
        ]
        return {**answer, "results": results}


def test_tiered_storage_is_told_by_each_verb(cluster: AnyCluster, register: Register) -> None:
    """Nothing is compacted there, so an erasure and a compaction are refused; an explanation names what it has not seen."""
    name = cluster.create("tiered", cleanup_policy="delete", retention_ms=str(WEEK_MS))
    cluster.produce(name, [(KEY, b"1")])
    with Tiered(cluster.bootstrap, timeout_s=PATIENCE_S) as client:
        with pytest.raises(
            NotPossible, match=f"tiered storage .{TIERED_CONFIG}.*are deleted 7 days after.*in remote storage, too"
        ):
            run(client, register, name)
        with pytest.raises(NotPossible, match="does not compact such topics"):
            compact(client, name, timeout_s=TIMEOUT_S, register=register)
        (part,) = explain(client, name, key=KEY)["partitions"]
        assert "records in remote storage are not looked at" in str(part["problems"])
        assert {one.kind for one in audit(client, [name], 30 * WEEK_MS).findings} >= {"remote-storage"}
    assert not [*register.all()]


def test_a_dead_cleaner_is_told_and_everything_put_back(tmp_path: Path, register: Register) -> None:
    """After five of its pauses without a movement at any replica, the wait ends."""
    seconds = 0.0

    def clock() -> float:
        nonlocal seconds
        seconds += 5
        return seconds

    with diamant(tmp_path, log_cleaner_enable=False) as cluster, topic_with_values(cluster, "dead"):
        outcome = ErasureOutcome(register.new_id(), "", ("dead",), {}, "00" * 32, "asked", "", now_ms())
        work = ClusterWork(outcome.id, "erase", "", cluster.bootstrap, ["dead"], 0, key=KEY, outcome=outcome)
        run = ErasureRun(cluster.client, register, work, b"s" * 32, WorkProgress(1e9, clock=clock))
        run.look()
        run.find()
        run.erase()
        (reason,) = run.outcome.missing.values()
        assert reason == "its cleaner has not moved for 5 pauses: is it dead? See the broker's log"
        assert work.changes == {}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["diamant", "kafka"])
def test_a_quota_slows_an_erasure_down_and_no_more(tmp_path: Path, register: Register, kind: str) -> None:
    """Throttled responses have no records, and are asked for again: no replica is taken for empty or for lagging."""
    with (diamant if kind == "diamant" else real_kafka)(tmp_path, quota_window_num="2") as cluster:
        with topic_with_values(cluster, "slow"):
            pairs = [(b"filler %d" % number, bytes([number]) * 20_000) for number in range(20)]
            cluster.produce("slow", pairs)
            ops = [
                {"key": f"{what}_byte_rate", "value": 200_000.0, "remove": False} for what in ("consumer", "producer")
            ]
            entry = {"entity": [{"entity_type": "user", "entity_name": "ANONYMOUS"}], "ops": ops}
            fields = {"entries": [entry], "validate_only": False}
            answer = cluster.client.controller().ask(ALTER_CLIENT_QUOTAS, fields)
            assert not answer["entries"][0]["error_code"]
            with KafkaClient(cluster.bootstrap, timeout_s=PATIENCE_S) as client:
                found = run(client, register, "slow")
            assert (found["missing"], values(cluster, "slow")) == ({}, [])
            assert [read["records"] for read in found["outcome"]["reads"]] == [23]


class Impatient(KafkaClient):
    """A client that does not wait for replicas."""

    def pause(self, deadline: float, what: str, code: int) -> None:
        """Wait before a retry, except for replicas."""
        super().pause(0.0 if code == ErrorCode.NOT_ENOUGH_REPLICAS else deadline, what, code)


def test_too_few_replicas_in_sync_leave_it_open(tmp_path: Path, register: Register) -> None:
    """The tombstone needs min.insync.replicas: without them the erasure ends with that reason, and is resumed later."""
    with (
        Broker(data_dir=tmp_path, log_cleaner_backoff_ms=20, diamant_cleaner_mode="kafka") as broker,
        AnyCluster(broker.bootstrap_servers) as cluster,
        topic_with_values(cluster, "few"),
    ):
        fault = broker.faults.add("Produce", error="NOT_ENOUGH_REPLICAS")
        with Impatient(cluster.bootstrap, timeout_s=PATIENCE_S) as client:
            with pytest.raises(KafkaRefusal, match="the tombstone in few-0: NOT_ENOUGH_REPLICAS"):
                run(client, register, "few")
        (work,) = open_works(register)
        assert work.changes == {}
        fault.remove()
        found = resume(cluster.client, work.id, timeout_s=TIMEOUT_S, register=register)
        assert (found["missing"], values(cluster, "few")) == ({}, [])
