"""A start with an existing `__consumer_offsets` restores everything, blocks nothing, and does not serve corrupt partitions."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.coordinators.internal_topic import partition_of
from diamant.broker.groups.classic.events import Leaver
from diamant.broker.groups.coordinator import partition_scan
from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
from diamant.broker.groups.coordinator.offset_removal import GROUPS_PER_TURN
from diamant.broker.groups.coordinator.partition_scan import PartitionScan
from diamant.broker.transactions.markers import write_marker
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.messages.offset_columns import TopicOffsets
from tests.broker.groups.classic.direct import Direct, join_request
from tests.broker.groups.offsets.offset_requests import (
    commit,
    delete_groups,
    delete_offsets,
    fetch,
    fetch_error,
    find_coordinator,
    join,
    list_groups,
    wait_until_loaded,
)
from tests.broker.groups.offsets.offsets_log import commit_record
from tests.broker.wire import CREATE_PARTITIONS, WireClient
from tests.memory_env import MemoryEnv
from tests.waiting import PATIENCE_S, wait_until

MakeBroker = Callable[..., Broker]
NONE = ErrorCode.NONE


@asynccontextmanager
async def started(make_broker: MakeBroker, **properties: Any) -> AsyncIterator[tuple[Broker, WireClient]]:
    """A broker and a connection; topics "t" (3 partitions), "u" (1) and the coordinator's are created if missing."""
    async with make_broker(**properties) as broker, WireClient(broker.bootstrap_servers) as client:
        if "t" not in broker.node.topics.by_name:
            await client.create("t", 3)
            await client.create("u", 1)
            await find_coordinator(client)
        yield broker, client


def commit_pending(
    groups: GroupCoordinator, group_id: str, producer_id: int, offset: int, *, partition: int = 0
) -> None:
    """Commit an offset for topic "t" in a transaction."""
    refused = groups.commits.commit_transactional(
        group_id,
        [TopicOffsets("t", None, [partition], [offset], [-1], None)],
        producer_id=producer_id,
        producer_epoch=0,
        member_id="",
        instance_id=None,
        generation=-1,
        version=3,
    )
    assert refused == []


def end_transaction(broker: Broker, group_id: str, producer_id: int, *, is_commit: bool) -> None:
    """Write the marker as the transaction coordinator does."""
    log = broker.services.groups().log.log_of(group_id)
    write_marker(
        broker.node,
        broker.services.groups,
        log,
        producer_id=producer_id,
        producer_epoch=0,
        is_commit=is_commit,
        coordinator_epoch=0,
    )


class HeldLoading:
    """Holds the scans of logs in threads until `go_on`."""

    def __init__(self, env: MemoryEnv) -> None:
        self.names: list[str] = []
        self.is_holding = True
        self._may_go_on = threading.Event()
        for name in (f"__consumer_offsets-{partition}" for partition in range(10)):
            env.before("pread", f"/data/{name}/*.log", partial(self._hold, name), times=None)

    def _hold(self, name: str) -> None:
        # Neither the loop, which finds where to read, nor a thread that opens logs.
        if threading.current_thread().name.startswith("asyncio_"):
            self.names.append(name)
            self._may_go_on.wait(PATIENCE_S)
            self.is_holding = False

    def go_on(self) -> None:
        """Let the scans proceed."""
        self._may_go_on.set()


async def test_everything_is_back_after_a_restart(make_broker: MakeBroker) -> None:
    """Offsets with metadata, deletions, and groups with members are back without a new FindCoordinator."""
    async with started(make_broker) as (_, client):
        await commit(client, "simple", {("t", 0): 1, ("t", 1): 2, ("u", 0): 3}, metadata="m")
        await delete_offsets(client, "simple", ("t", 1))
        await commit(client, "gone", {("t", 0): 1})
        await delete_groups(client, "gone")
        member = await join(client, "classic", "t")
        await commit(client, "classic", {("t", 2): 7}, member=member)
    async with started(make_broker) as (broker, client):
        await wait_until_loaded(broker)
        assert await fetch(client, "simple") == {("t", 0): 1, ("u", 0): 3}
        assert await fetch(client, "classic") == {("t", 2): 7}
        assert await list_groups(client) == {
            "simple": ("", "Empty", "classic"),
            "classic": ("consumer", "Stable", "classic"),
        }
        assert await commit(client, "classic", {("t", 2): 8}, member=member) == [NONE]


async def test_a_transaction_continues_after_a_restart(make_broker: MakeBroker) -> None:
    """The offsets of an open transaction are unstable before and after the restart, and are committed or dropped at its
    marker.
    """
    async with started(make_broker) as (broker, client):
        await commit(client, "g", {("t", 0): 1, ("t", 1): 1})
        commit_pending(broker.services.groups(), "g", 7, 5)
        commit_pending(broker.services.groups(), "g", 8, 6, partition=1)
        commit_pending(broker.services.groups(), "new", 7, 9)
        unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
        stable_fetch = {("t", 0): unstable, ("t", 1): unstable}
        assert await fetch(client, "g", require_stable=True) == stable_fetch
    async with started(make_broker) as (broker, client):
        await wait_until_loaded(broker)
        assert await fetch(client, "g", require_stable=True) == stable_fetch
        assert await fetch(client, "g") == {("t", 0): 1, ("t", 1): 1}
        for group_id in ("g", "new"):
            end_transaction(broker, group_id, 7, is_commit=True)
        end_transaction(broker, "g", 8, is_commit=False)
        assert await fetch(client, "g", require_stable=True) == {("t", 0): 5, ("t", 1): 1}
        assert await fetch(client, "new") == {("t", 0): 9}
    async with started(make_broker) as (broker, client):
        await wait_until_loaded(broker)
        assert await fetch(client, "g", require_stable=True) == {("t", 0): 5, ("t", 1): 1}
        assert await fetch(client, "new") == {("t", 0): 9}


async def test_groups_that_are_not_loaded_yet(make_broker: MakeBroker, groups_env: MemoryEnv) -> None:
    """Requests get the loading error and move their partition to the front, but heartbeats get none: no member leaves. Groups of
    empty partitions are served.
    """
    groups = {partition_of(group_id, 5): group_id for group_id in "abcdefghi"}
    empty = groups.pop(3)
    async with started(make_broker, offsets_topic_num_partitions=5) as (_, client):
        for partition, group_id in groups.items():
            await commit(client, group_id, {("t", 0): partition})
    held = HeldLoading(groups_env)
    async with started(make_broker) as (broker, client):
        await wait_until(lambda: bool(held.names))
        last = groups[4]
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await fetch_error(client, last) == loading
        assert await commit(client, last, {("t", 0): 9}) == [loading]
        assert await delete_groups(client, last) == {last: loading}
        assert await delete_offsets(client, last, ("t", 0)) == loading
        described = await client.call(15, 6, {"groups": [last]})
        assert described.groups[0].error_code == loading
        listed = await client.call(16, 4, {"states_filter": []})
        assert listed.error_code == loading
        direct = Direct(broker)
        assert direct.groups.heartbeat(last, "m", None, 1) is NONE
        direct.join(last, "a", join_request(fresh_id="a"))
        direct.sync(last, "m", 1)
        assert (direct.joins["a"].error, direct.syncs["m"].error) == (loading, loading)
        with pytest.raises(KafkaError, match=loading.name):
            direct.groups.leave(last, [Leaver("m")])
        assert await find_coordinator(client, last) == NONE
        assert await commit(client, empty, {("t", 0): 3}) == [NONE]
        held.go_on()
        await wait_until_loaded(broker)
        assert held.names[1] == "__consumer_offsets-4"
        assert await fetch(client, last) == {("t", 0): 4}
        assert set(await list_groups(client)) == {*groups.values(), empty}


async def test_nothing_is_lost_while_a_partition_is_loaded(
    make_broker: MakeBroker, groups_env: MemoryEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Markers written before and after the read of its log ended, and deleted topics: nothing is lost, nothing is applied
    twice.
    """
    async with started(make_broker, offsets_topic_num_partitions=1) as (broker, client):
        await commit(client, "g", {("t", 0): 1, ("u", 0): 2})
        commit_pending(broker.services.groups(), "g", 7, 5)
        commit_pending(broker.services.groups(), "g", 8, 6, partition=1)
    held = HeldLoading(groups_env)
    finish = PartitionScan.finish
    read = asyncio.Event()
    async with started(make_broker) as (broker, client):
        loop = asyncio.get_running_loop()

        def finish_and_tell(scan: PartitionScan) -> Any:
            asyncio.run_coroutine_threadsafe(end_late(), loop).result()
            return finish(scan)

        async def end_late() -> None:
            end_transaction(broker, "g", 8, is_commit=True)
            read.set()

        monkeypatch.setattr(PartitionScan, "finish", finish_and_tell)
        await wait_until(lambda: bool(held.names))
        end_transaction(broker, "g", 7, is_commit=True)
        await client.call(20, 4, {"topic_names": ["u"], "timeout_ms": 1000})
        held.go_on()
        await wait_until_loaded(broker)
        assert read.is_set()
        assert await fetch(client, "g", require_stable=True) == {("t", 0): 5, ("t", 1): 6}


async def test_a_partition_that_cannot_be_read_is_not_served(
    make_broker: MakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Groups of an unreadable partition get NOT_COORDINATOR, and the log states the reason; other partitions are served."""
    others = {partition_of(group_id, 3): group_id for group_id in "abcdef"}
    bad = others.pop(0)
    async with started(make_broker) as (broker, client):
        await commit(client, bad, {("t", 0): 1})
        for group_id in others.values():
            await commit(client, group_id, {("t", 0): 2})
        broker.services.groups().log.topic.append(0, [(commit_record(1, bad)[0], b"\x00\x63what is this")])
    caplog.clear()
    async with started(make_broker) as (broker, client):
        await wait_until_loaded(broker)
        assert "__consumer_offsets-0 could not be loaded" in caplog.text
        assert "its version is 99" in caplog.text
        assert await fetch_error(client, bad) == ErrorCode.NOT_COORDINATOR
        assert await commit(client, bad, {("t", 0): 1}) == [ErrorCode.NOT_COORDINATOR]
        for group_id in others.values():
            assert await fetch(client, group_id) == {("t", 0): 2}
        assert set(await list_groups(client)) == set(others.values())


@pytest.mark.slow
async def test_compressed_offsets(make_broker: MakeBroker) -> None:
    """`offsets.topic.compression.codec` applies to new writes; all codecs are read."""
    for codec in range(5):
        async with started(make_broker, offsets_topic_compression_codec=codec) as (broker, client):
            await wait_until_loaded(broker)
            await commit(client, f"g{codec}", {("t", partition): codec for partition in range(3)})
    async with started(make_broker) as (broker, client):
        await wait_until_loaded(broker)
        for codec in range(5):
            assert await fetch(client, f"g{codec}") == {("t", partition): codec for partition in range(3)}


async def test_stopping_while_loading(make_broker: MakeBroker, groups_env: MemoryEnv) -> None:
    """The stop does not wait for the loading."""
    async with started(make_broker) as (_, client):
        await commit(client, "g", {("t", 0): 1})
    held = HeldLoading(groups_env)
    async with started(make_broker):
        await wait_until(lambda: bool(held.names))
    assert held.is_holding
    held.go_on()


@pytest.mark.slow
async def test_loading_imports_nothing_heavy(tmp_path: Path) -> None:
    """Loading offsets does not import numpy."""
    async with started(partial(Broker, BrokerConfig("127.0.0.1:0", tmp_path / "data"))) as (_, client):
        await commit(client, "g", {("t", 0): 1})
    script = tmp_path / "script.py"
    script.write_text(
        "import asyncio, sys\n"
        "from diamant.broker.broker import Broker\n"
        "from diamant.broker.config.broker_config import BrokerConfig\n"
        "async def main():\n"
        f"    async with Broker(BrokerConfig('127.0.0.1:0', {str(tmp_path / 'data')!r})) as broker:\n"
        "        await broker.services.groups().loaded()\n"
        "        assert 'g' in broker.services.groups().groups\n"
        "    print([name for name in ('numpy', 'aiohttp') if name in sys.modules])\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    assert output == b"[]\n", errors.decode()


async def test_a_topic_that_is_deleted_while_it_is_loaded(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state read so far is dropped with the topic: the groups do not reappear in the next turn."""
    async with started(make_broker, offsets_topic_num_partitions=1) as (_, client):
        assert await commit(client, "g", {("t", 0): 1}) == [NONE]
    is_read, may_go_on = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def when_told(function: Callable[..., Any], *arguments: Any) -> Any:
        result = function(*arguments)
        if function.__name__ == "finish":
            is_read.set()
            await may_go_on
        return result

    monkeypatch.setattr(partition_scan, "to_thread", when_told)
    async with make_broker() as broker:
        await is_read.wait()
        may_go_on.set_result(None)
        broker.services.groups()._use(None)
        for _ in range(5):
            await asyncio.sleep(0)
        assert broker.services.groups().groups == {}


async def test_a_topic_that_was_given_more_partitions(
    make_broker: MakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Only a group's present partition counts: its older records in another one do not reappear."""
    moved = next(
        name for name in map("g{}".format, range(99)) if (partition_of(name, 2), partition_of(name, 3)) == (1, 0)
    )
    async with started(make_broker, offsets_topic_num_partitions=2) as (broker, client):
        assert await commit(client, moved, {("t", 0): 1}) == [NONE]
        commit_pending(broker.services.groups(), moved, 5, 2, partition=1)
        topic = {"name": "__consumer_offsets", "count": 3, "assignments": None}
        await client.call(CREATE_PARTITIONS, 3, {"topics": [topic], "timeout_ms": 5_000, "validate_only": False})
        assert await commit(client, moved, {("t", 0): 3}) == [NONE]
    async with started(make_broker) as (broker, client):
        await wait_until_loaded(broker)
        assert await fetch(client, moved, {"t": [0, 1]}) == {("t", 0): 3, ("t", 1): -1}
    assert "__consumer_offsets-1: 1 groups that belong to other partitions are skipped" in caplog.text


async def test_deleting_a_topic_of_many_groups(groups_broker: Broker, client: WireClient) -> None:
    """Their offsets are removed over several turns of the loop."""
    groups = groups_broker.services.groups()
    names = [f"g{number}" for number in range(2 * GROUPS_PER_TURN)]
    for name in names:
        groups.commits.commit(
            name,
            [TopicOffsets("t", None, [0], [1], [-1], None)],
            member_id="",
            instance_id=None,
            generation=-1,
            version=9,
        )
    coroutine = groups.topic_deleted(groups_broker.node.topics.by_name["t"])
    assert coroutine is not None
    removing = asyncio.ensure_future(coroutine)
    await asyncio.sleep(0)
    left = sum(bool(groups.groups[name].offsets) for name in names)
    assert left == GROUPS_PER_TURN
    await removing
    assert not any(groups.groups[name].offsets for name in names)
