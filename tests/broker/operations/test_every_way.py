"""Operations give the same answer in Python, to Admin, and over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.client.admin import Admin, AdminError
from diamant.broker.dispatch.operation_table import OPERATIONS
from diamant.broker.operation_errors import NotFound
from tests.broker.groups.offsets.offset_requests import commit, find_coordinator
from tests.broker.wire import WireClient


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingBroker]:
    """A broker with a topic of three records."""
    with Broker(data_dir=tmp_path_factory.mktemp("data"), diamant_http_listen="127.0.0.1:0") as broker:
        broker.create_topic("users", compact=True)
        for value in ("1", "2", None):
            broker.produce("users", value, key="a")
        yield broker


@pytest.fixture
def admin(broker: BlockingBroker) -> Admin:
    """A client of the broker."""
    return Admin(broker.bootstrap_servers)


def test_both_classes_have_the_methods_of_each_row() -> None:
    """A row without a method in a class has one written by hand there, or its comment says why there is none."""
    by_hand = {"Broker": {"find"}, "Admin": set[str]()}
    for name, kind in (("Broker", Broker), ("Admin", Admin)):
        missing = {row.name for row in OPERATIONS.values() if "." not in row.name and not hasattr(kind, row.name)}
        assert missing - {"clock", "faults"} == by_hand[name]


def test_segments_are_counted(broker: BlockingBroker, admin: Admin) -> None:
    """Segments are counted by partition, with the records of each kind."""
    found = broker.segments("users", all=True)
    assert found == admin.segments("users", all=True)
    (segment,) = found["partitions"][0]["segments"]
    assert (segment["counts"]["superseded"], segment["counts"]["tombstones"]) == (2, 1)


def test_configurations_are_altered(broker: BlockingBroker, admin: Admin) -> None:
    """All configurations of a call are altered or none, or only on trial; null restores the broker's default."""
    changes: dict[str, str | None] = {"segment.ms": "60000"}
    assert not broker.alter_configs("users", changes, validate_only=True)["is_changed"]
    assert broker.alter_configs("users", changes) == {"topic": "users", "set": changes, "is_changed": True}
    assert admin.alter_configs("users", {"segment.ms": None})["is_changed"]
    with pytest.raises(NotFound, match="there is no topic 'absent'"):
        broker.alter_configs("absent", changes)


def test_offsets_are_reset(broker: BlockingBroker, admin: Admin) -> None:
    """The offsets of one group in a topic are reset; the report has those before and after."""

    async def commit_once() -> None:
        async with WireClient(broker.bootstrap_servers) as wire:
            await find_coordinator(wire)
            assert await commit(wire, "g", {("users", 0): 3}) == [0]

    broker.call(commit_once())
    rows = [{"partition": 0, "before": 3, "after": 1}]
    trial = admin.reset_offsets("g", "users", "-2", validate_only=True)
    assert (trial["offsets"], trial["is_changed"]) == (rows, False)
    assert broker.reset_offsets("g", "users", "-2", 0).to_fields()["offsets"] == rows
    with pytest.raises(AdminError, match="there is no group 'h/1'"):
        admin.reset_offsets("h/1", "users", "start")


def test_a_record_is_produced(broker: BlockingBroker, admin: Admin) -> None:
    """A record's value may be text, bytes or nothing; its headers are by name."""
    broker.create_topic("t")
    for offset, options in enumerate(
        ({"value": "v", "key": b"\xff"}, {"key": "k", "tombstone": True}, {"headers": {"h": "1", "none": None}})
    ):
        given: dict[str, Any] = options
        assert admin.produce("t", **given) == {"topic": "t", "partition": 0, "offset": offset}
    first, second, third = (record for _, record in broker.records("t"))
    assert (first.key, first.value, second.value, third.value) == (b"\xff", b"v", None, b"")
    assert [(one.key, one.value) for one in third.headers] == [("h", b"1"), ("none", None)]


def test_figures_and_state_are_the_same(broker: BlockingBroker, admin: Admin) -> None:
    """Status and history of the broker are the same in every way."""
    assert admin.status().keys() == broker.status().to_fields().keys()
    assert admin.history()["series"].keys() == broker.history()["series"].keys()
    with pytest.raises(NotFound, match="no history"):
        broker.history("absent")


def test_snapshots_are_listed_and_deleted(broker: BlockingBroker, admin: Admin) -> None:
    """A snapshot is there until it is deleted; a reset takes it, or its ID."""
    snapshot = broker.snapshot()
    assert admin.snapshots() == broker.snapshots() == {"snapshots": [snapshot.to_fields()]}
    broker.reset(snapshot)
    assert admin.reset(snapshot.id) == {"id": snapshot.id}
    assert broker.delete_snapshot(snapshot.id) == {"id": snapshot.id}
    with pytest.raises(AdminError, match="there is no snapshot"):
        admin.reset(snapshot.id)
