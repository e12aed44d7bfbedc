"""The placement of replicas over brokers and racks."""

from __future__ import annotations

from diamant.broker.brokers.placement import placed

RACKS = {1: "r1", 2: "r2", 3: "r3"}


def test_leaders_and_followers_take_turns() -> None:
    """Each broker leads a third of the partitions, and the replicas of a partition follow one another."""
    assert placed(range(4), 3, RACKS, RACKS) == [(1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 2, 3)]
    assert placed(range(3), 2, dict.fromkeys(RACKS), RACKS) == [(1, 2), (2, 3), (3, 1)]


def test_partitions_that_a_topic_grows_by_continue_the_turn() -> None:
    """Partition 3 has the same replicas whether the topic had it from the start or not."""
    assert placed(range(3, 5), 2, RACKS, RACKS) == placed(range(5), 2, RACKS, RACKS)[3:]


def test_replicas_are_on_different_racks() -> None:
    """With two racks of two brokers, two replicas are never on one rack, and leadership is divided equally."""
    replicas = placed(range(8), 2, {1: "a", 2: "a", 3: "b", 4: "b"}, range(1, 5))
    assert all(len({(first - 1) // 2, (second - 1) // 2}) == 2 for first, second in replicas)
    assert sorted(first for first, _ in replicas) == [1, 1, 2, 2, 3, 3, 4, 4]


def test_a_broker_that_is_down_leads_nothing_new() -> None:
    """A broker that is down becomes the last of the replicas, as Kafka places fenced brokers."""
    assert placed(range(3), 3, RACKS, {1, 3}) == [(1, 3, 2), (3, 1, 2), (3, 1, 2)]
