"""Groups that are not loaded yet are awaited; groups that cannot be loaded are reported as unknown."""

from __future__ import annotations

import asyncio
import math
import threading
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.commands.admin.erase import _is_agreed
from diamant.broker.groups.coordinator import committed_offsets, partition_scan
from diamant.broker.groups.coordinator.partition_scan import PartitionScan
from diamant.broker.metrics.figures import take_figures
from diamant.broker.metrics.metric_table import METRICS
from diamant.broker.operation_errors import NotPossible
from diamant.broker.topics.internal_names import GROUP_OFFSETS_TOPIC
from diamant.storage.segments.segment import FileSlice
from tests.broker.erasure.brokers import broker_at
from tests.broker.erasure.constants import DAY_MS, KEY, PERSON, RETRY_MS, START_MS
from tests.broker.erasure.erasing import erase, traces_of
from tests.broker.erasure.issued import certified_at
from tests.broker.erasure.records import create, fill, write
from tests.broker.groups.offsets.offset_requests import commit, find_coordinator, wait_until_loaded
from tests.broker.wire import WireClient
from tests.waiting import PATIENCE_S, wait_until

GROUP = "analytics"
ONE_PARTITION = {"offsets.topic.num.partitions": "1"}
NOT_LOADED = f"{GROUP_OFFSETS_TOPIC}-0: "


async def have_a_group_behind(tmp_path: Path) -> None:
    """Leave a directory with a value, and a group that has committed offset 0."""
    async with broker_at(tmp_path, **ONE_PARTITION) as broker:
        await create(broker)
        async with WireClient(broker.bootstrap_servers) as client:
            await find_coordinator(client, GROUP)
            await wait_until_loaded(broker)
            assert not any(await commit(client, GROUP, {("users", 0): 0}))
        write(broker, (KEY, PERSON))
        fill(broker)


def restarted(tmp_path: Path) -> Broker:
    return broker_at(tmp_path, START_MS + 1, **ONE_PARTITION)


class Slow:
    """Loading that blocks until released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._go_on = threading.Event()
        real = partition_scan._feed

        def feed(scan: PartitionScan, slices: tuple[FileSlice, ...]) -> None:
            assert self._go_on.wait(PATIENCE_S)
            real(scan, slices)

        monkeypatch.setattr(partition_scan, "_feed", feed)

    def go_on(self) -> None:
        self._go_on.set()


def damage(tmp_path: Path) -> None:
    """Change the bytes of the committed offset so that its batch is readable but invalid."""
    (path,) = (tmp_path / "data" / f"{GROUP_OFFSETS_TOPIC}-0").glob("*.log")
    data = bytearray(path.read_bytes())
    # The version of the key, of a record that is not null: no key of that length is of it.
    at = data.index(b"\x00\x01\x00" + bytes([len(GROUP)]) + GROUP.encode())
    data[at + 3] += 100
    path.write_bytes(data)


async def test_now_waits_until_the_groups_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that is behind counts once it is loaded, and the horizon applies until it is confirmed."""
    await have_a_group_behind(tmp_path)
    slow = Slow(monkeypatch)
    async with restarted(tmp_path) as broker:
        assert broker.services.groups().loading.is_loading
        waiting = asyncio.create_task(erase(broker, now=True))
        await wait_until(lambda: broker.services.erasures().queue.calls == 1)
        slow.go_on()
        found = await waiting
        assert (found.state, found.is_now_refused) == ("values-gone", True)
        assert (found.groups_behind, found.groups_not_known) == ({"users-0": [GROUP]}, [])
        assert found.certificate["overrides"] == []


async def test_groups_that_cannot_be_loaded_refuse_now(tmp_path: Path) -> None:
    """Groups that cannot be listed are refused even with confirmation. The error names the partition and the remedy."""
    await have_a_group_behind(tmp_path)
    damage(tmp_path)
    async with restarted(tmp_path) as broker:
        for is_confirmed in (False, True):
            with pytest.raises(NotPossible) as raised:
                await erase(broker, now=True, confirm_groups_behind=is_confirmed)
            assert NOT_LOADED + "its records cannot be read" in str(raised.value)
            assert "Without --now" in str(raised.value)
            assert GROUP not in str(raised.value)
        assert traces_of(broker) == []
        found = await erase(broker)
        assert (found.state, found.groups_behind) == ("values-gone", {})
        assert found.groups_not_known[0].startswith(NOT_LOADED)
        assert found.to_fields()["groups_not_known"] == found.groups_not_known
        with pytest.raises(NotPossible, match="it is not known which groups"):
            await broker.erase_now(found.id, confirm_groups_behind=True)
        await certified_at(broker, broker.env.clock.now_ms() + DAY_MS + RETRY_MS, "key-gone")


@pytest.mark.slow
async def test_explain_and_the_metric_say_that_groups_are_not_known(tmp_path: Path) -> None:
    """An empty answer would mean that no group is behind."""
    await have_a_group_behind(tmp_path)
    async with restarted(tmp_path) as broker:
        await wait_until_loaded(broker)
        await erase(broker)
        (one,) = (await broker.explain("users", tombstones=True)).partitions
        assert ([record.groups_behind for record in one.records], one.problems) == ([(GROUP,)], ())
        assert await wait_behind(broker) == 1
    damage(tmp_path)
    async with restarted(tmp_path) as broker:
        await wait_until_loaded(broker)
        (one,) = (await broker.explain("users", tombstones=True)).partitions
        assert [record.groups_behind for record in one.records] == [()]
        assert one.problems[0].startswith(f"groups that may be behind are not known: {NOT_LOADED}")
        assert math.isnan(await wait_behind(broker))


async def wait_behind(broker: Broker) -> float:
    """Return the metric's value for the partition, once the cleaner knows its tombstones."""
    behind = METRICS["diamant_tombstone_consumers_behind"].samples
    assert behind is not None
    async with asyncio.timeout(60):
        while True:
            shown = dict(behind(await take_figures(broker.services)))
            if ("users", "0") in shown:
                return shown["users", "0"]
            await asyncio.sleep(0)


async def test_waiting_for_groups_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups that are still loading after that are unknown."""
    await have_a_group_behind(tmp_path)
    slow = Slow(monkeypatch)
    async with restarted(tmp_path) as broker:
        (told,) = await committed_offsets.groups_not_known(broker.services.groups, broker.node.topics, 0.01)
        assert told.startswith(NOT_LOADED + "it is being loaded")
        slow.go_on()
        await wait_until_loaded(broker)
        assert (await erase(broker, now=True)).groups_behind == {"users-0": [GROUP]}


async def test_many_partitions_are_reported_in_few_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten of them are listed."""
    many = {"offsets.topic.num.partitions": "13"}
    async with broker_at(tmp_path, **many) as broker, WireClient(broker.bootstrap_servers) as client:
        await create(broker)
        await find_coordinator(client, GROUP)
        await wait_until_loaded(broker)
        # Enough for each partition to have some.
        for number in range(100):
            assert not any(await commit(client, f"{GROUP}-{number}", {("users", 0): 0}))
    slow = Slow(monkeypatch)
    async with broker_at(tmp_path, **many) as broker:
        found = await committed_offsets.groups_not_known(broker.services.groups, broker.node.topics, 0.01)
        slow.go_on()
        assert (len(found), found[-1]) == (11, "3 more partitions")
        assert found[0].startswith(NOT_LOADED)


def test_the_command_does_not_say_that_nobody_is_behind(capsys: pytest.CaptureFixture[str]) -> None:
    """Without known groups, the command says that they are unknown."""
    assert _is_agreed({"groups_behind": {}, "groups_not_known": [NOT_LOADED + "why"]}, is_asked=False)
    assert capsys.readouterr().err == f"groups that may be behind are not known: {NOT_LOADED}why\n"
    assert _is_agreed({"groups_behind": {}, "groups_not_known": []}, is_asked=False)
    assert "no group with committed offsets is behind" in capsys.readouterr().err
