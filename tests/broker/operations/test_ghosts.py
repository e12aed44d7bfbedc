"""Ghosts: deletions missed by a group that was behind when the tombstone was removed, and their bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest
from click.testing import CliRunner

from diamant import Admin
from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.cli import main
from diamant.broker.client.kafka_client import KafkaClient
from diamant.broker.client.kafka_group import KafkaGroup
from diamant.broker.operations.records.ghosts import MAX_GHOSTS, MAX_KEY_BYTES, Ghost, GhostLedger
from tests.waiting import PATIENCE_S

PARTITION = "users", 0


@pytest.fixture
def broker() -> Iterator[BlockingBroker]:
    """A broker with a frozen clock, and values of a, b and c at offsets 0 to 2."""
    with Broker(diamant_clock="manual", diamant_http_listen="127.0.0.1:0") as broker:
        broker.clock.freeze()
        broker.create_topic("users", 1, compact=True)
        for key in "abc":
            broker.produce("users", "1", key=key)
        yield broker


def commit(broker: BlockingBroker, group: str, offset: int) -> None:
    """Commit an offset, as a member would."""
    with KafkaClient(broker.bootstrap_servers, timeout_s=PATIENCE_S) as client:
        KafkaGroup(client, group).commit({PARTITION: offset})


def ghosts(broker: BlockingBroker, group: str | None = None) -> list[tuple[bytes, list[str]]]:
    """Return the ghost keys, each with its groups."""
    return [(one.key, sorted(one.groups)) for _, one in broker.ghosts("users", group).ghosts]


def delete(broker: BlockingBroker, *keys: str) -> None:
    """Write tombstones, clean, and let their delete horizons pass."""
    for key in keys:
        broker.produce("users", None, key=key)
    broker.produce("users", "the last one stays", key="z")
    broker.compact("users")
    broker.clock.advance("2d")
    assert not {record.key for _, record in broker.records("users")} & {key.encode() for key in keys}


def test_a_group_that_stood_still_has_missed_a_deletion(broker: BlockingBroker) -> None:
    """The key is listed with only the groups that have not passed the tombstone; over HTTP and by the command, too."""
    commit(broker, "slow", 3)
    commit(broker, "quick", 100)
    delete(broker, "a")
    assert ghosts(broker) == [(b"a", ["slow"])]
    assert ghosts(broker, "quick") == []
    (found,) = Admin(broker.bootstrap_servers).ghosts("users", "slow")["ghosts"]
    assert (found["key"], found["offset"], found["groups"]) == ({"text": "a"}, 3, ["slow"])
    shown = CliRunner().invoke(main, ["ghosts", "users", "-b", broker.bootstrap_servers])
    assert (shown.exit_code, "slow" in shown.output) == (3, True), shown.output
    shown = CliRunner().invoke(main, ["ghosts", "users", "-g", "quick", "-b", broker.bootstrap_servers])
    assert (shown.exit_code, shown.output) == (0, "No group has missed a deletion.\n")


def test_a_tombstone_that_is_there_is_no_ghost(broker: BlockingBroker) -> None:
    """The group can still read it; only its removal makes a ghost. A group that has read it in time has no ghost."""
    commit(broker, "slow", 3)
    broker.produce("users", None, key="a")
    broker.produce("users", "the last one stays", key="z")
    broker.compact("users")
    assert ghosts(broker) == []
    commit(broker, "slow", 5)
    broker.clock.advance("2d")
    assert [record.key for _, record in broker.records("users")] == [b"b", b"c", b"z"]
    assert ghosts(broker) == []


def test_a_ghost_ends_with_a_new_record_or_a_rewind(broker: BlockingBroker) -> None:
    """A new record of the key, a group reset to an earlier offset, or a recreated topic ends it. Reading on does not."""
    commit(broker, "slow", 3)
    delete(broker, "a", "b", "c")
    commit(broker, "slow", 7)
    assert [key for key, _ in ghosts(broker)] == [b"a", b"b", b"c"]
    broker.produce("users", "2", key="b")
    assert [key for key, _ in ghosts(broker)] == [b"a", b"c"]
    commit(broker, "slow", 0)
    assert ghosts(broker) == []


def test_each_deletion_is_noted_when_its_time_is_over(broker: BlockingBroker) -> None:
    """Later deletions are recorded, too, even if the group has not moved and compactions in between removed nothing."""
    commit(broker, "slow", 3)
    delete(broker, "a")
    broker.produce("users", "3", key="z")
    broker.compact("users")
    delete(broker, "c")
    assert [key for key, _ in ghosts(broker)] == [b"a", b"c"]


def test_an_erased_key_is_not_named(broker: BlockingBroker) -> None:
    """An erased key is named neither for an existing ghost nor for a tombstone that the erasure removes."""
    commit(broker, "slow", 3)
    delete(broker, "a")
    for key in ("a", "b"):
        broker.erase(key, "users", reason="test")
    broker.clock.advance("2d")
    assert not {record.key for _, record in broker.records("users")} & {b"a", b"b"}
    assert ghosts(broker) == []


def test_tombstones_that_wait_for_groups_make_no_ghosts(broker: BlockingBroker) -> None:
    """With `diamant.tombstone.hold=groups`, the tombstone is kept until the group has passed it."""
    hold = {"diamant_tombstone_hold": "groups", "diamant_tombstone_hold_max_ms": 2 * 86_400_000}
    broker.create_topic("held", 1, compact=True, **hold)
    with KafkaClient(broker.bootstrap_servers, timeout_s=PATIENCE_S) as client:
        broker.produce("held", "1", key="a")
        KafkaGroup(client, "slow").commit({("held", 0): 1})
    broker.produce("held", None, key="a")
    broker.produce("held", "the last one stays", key="z")
    broker.compact("held")
    broker.clock.advance("2d")
    assert [record.key for _, record in broker.records("held")] == [b"a", b"z"]
    assert broker.ghosts("held").ghosts == ()
    broker.clock.advance("2d")
    assert [one.key for _, one in broker.ghosts("held").ghosts] == [b"a"]


TOPIC = UUID(int=1)


def ghost(key: bytes) -> Ghost:
    """Return a ghost of one key."""
    return Ghost(key, 7, 0, {"slow": 3})


def test_a_full_ledger_counts() -> None:
    """Further keys and long keys are only counted. Removing a key makes room."""
    ledger = GhostLedger()
    for index in range(MAX_GHOSTS):
        ledger.add(TOPIC, 0, ghost(b"%d" % index))
    ledger.add(TOPIC, 1, ghost(b"one more"))
    ledger.add(TOPIC, 0, ghost(b"0"))
    assert (len(ledger.of(TOPIC)[0]), 1 in ledger.of(TOPIC), ledger.left_out) == (MAX_GHOSTS, False, {TOPIC: 1})
    ledger.forget_key(b"0")
    ledger.add(TOPIC, 1, ghost(b"x" * (MAX_KEY_BYTES + 1)))
    ledger.add(TOPIC, 1, ghost(b"one more"))
    assert (list(ledger.of(TOPIC)[1]), ledger.left_out) == ([b"one more"], {TOPIC: 2})


def test_topics_are_distinguished_by_their_ids() -> None:
    """A topic that was deleted and recreated has no ghosts."""
    ledger = GhostLedger()
    ledger.add(TOPIC, 0, ghost(b"k"))
    assert ledger.of(UUID(int=2)) == {}
