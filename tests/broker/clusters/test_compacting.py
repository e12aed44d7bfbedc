"""A compaction on any Kafka cluster: superseded records go from each replica, without a record of our own."""

from __future__ import annotations

from pathlib import Path

import pytest

from diamant.broker.clusters.compacting import FIRST_WINDOW, MAX_WINDOW, search_windows
from diamant.broker.clusters.operations import compact
from diamant.broker.clusters.register import Register
from diamant.broker.clusters.work_progress import TimeIsUp
from diamant.json_types import JsonObject
from tests.broker.clusters.any_cluster import OLD_MS, AnyCluster, diamant
from tests.broker.clusters.open_transaction import OpenTransaction

TIMEOUT_S = 120.0


@pytest.mark.parametrize(("start", "end"), [(0, 0), (5, 9), (0, 4_000), (100, 30_000), (0, 999_999), (7, 5_000_000)])
def test_superseded_records_are_searched_in_the_last_offsets(start: int, end: int) -> None:
    """The windows join from the end back to the start, each four times the one before, and cover a million offsets at most."""
    windows = list(search_windows(start, end))
    assert sum(last - first for first, last in windows) == min(end - start, MAX_WINDOW)
    assert [first for first, _ in windows[:-1]] == [last for _, last in windows[1:]]
    assert [last - first for first, last in windows[:-1]] == [
        FIRST_WINDOW * 4**number for number in range(len(windows[:-1]))
    ]
    assert not windows or windows[0][1] == end


@pytest.fixture(scope="module")
def with_transactions(cluster: AnyCluster) -> AnyCluster:
    """A cluster that has a transaction topic, which the compaction does not create."""
    with OpenTransaction(cluster.client, cluster.create("makes-the-transaction-topic")):
        pass
    return cluster


def test_superseded_records_go_without_a_record_of_ours(with_transactions: AnyCluster, register: Register) -> None:
    """Only the latest of each key is left in both partitions, nothing was written, and the configurations are as before."""
    cluster = with_transactions
    name = cluster.create("compacted", partitions=2)
    for partition in range(2):
        pairs = [(b"k%d" % (number % 7), b"%d" % number) for number in range(70)]
        cluster.produce(name, pairs, timestamp_ms=OLD_MS, partition=partition)
    before = cluster.configs(name)
    found = compact(cluster.client, name, timeout_s=TIMEOUT_S, register=register)
    assert (found["is_reached"], found["missing"], found["left"]) == (True, {}, [])
    assert (cluster.configs(name), register.all()) == (before, [])
    for partition in range(2):
        assert [record.value for record in cluster.held(name, partition)] == [
            b"%d" % number for number in range(63, 70)
        ]


def test_what_holds_a_compaction_is_named(cluster: AnyCluster, register: Register) -> None:
    """An open transaction, when the time is up; the configurations are as before."""
    name = cluster.create("held-back")
    before = cluster.configs(name)
    with OpenTransaction(cluster.client, name) as transaction:
        cluster.produce(name, [(b"a", b"1"), (b"a", b"2")], timestamp_ms=OLD_MS)

        def end(progress: JsonObject) -> None:
            if progress["stage"] == "waiting for the cleaner of each replica":
                raise TimeIsUp

        found = compact(cluster.client, name, timeout_s=TIMEOUT_S, on_progress=end, register=register)
    assert not found["is_reached"]
    assert f"open transaction of producer {transaction.producer_id}" in found["held_text"]
    assert (cluster.configs(name), register.all()) == (before, [])


def test_what_closes_no_segment_is_told_before_the_wait(tmp_path: Path, register: Register) -> None:
    """Without a transaction topic nothing may be appended: the caller hears at once what is missing, and what helps."""
    notes: list[str] = []

    def end(progress: JsonObject) -> None:
        if notes:
            raise TimeIsUp

    with diamant(tmp_path) as cluster:
        name = cluster.create("no-transactions")
        cluster.produce(name, [(b"a", b"1"), (b"a", b"2")], timestamp_ms=OLD_MS)
        found = compact(
            cluster.client, name, timeout_s=TIMEOUT_S, on_progress=end, on_note=notes.append, register=register
        )
    (note,) = notes
    for words in (
        f"the active segment of {name}-0",
        "__transaction_state does not exist",
        "with a timestamp more than segment.ms after its first record's",
    ):
        assert words in note
    assert "__transaction_state does not exist" in found["held_text"]


def test_a_clean_topic_is_left_alone(with_transactions: AnyCluster, register: Register) -> None:
    """Without a superseded record nothing is lowered."""
    cluster = with_transactions
    name = cluster.create("clean")
    cluster.produce(name, [(b"a", b"1"), (b"b", b"2")], timestamp_ms=OLD_MS)
    assert compact(cluster.client, name, timeout_s=TIMEOUT_S, register=register)["is_reached"]
    assert len(cluster.held(name)) == 2
