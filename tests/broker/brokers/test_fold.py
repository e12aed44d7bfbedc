"""A directory of several brokers, opened with fewer of them, by Apache Kafka's rules, and after it was folded."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from diamant.broker.broker import Broker
from diamant.broker.cannot_start import CannotStart
from diamant.broker.commands.log.fold_brokers import fold
from diamant.broker.config.broker_config import BrokerConfig
from diamant.protocol.kraft.records import Endpoint
from diamant.storage.env.env import RealEnv
from diamant.storage.kraft.features import BROKERS_FEATURE
from diamant.storage.kraft.format import metadata_directory
from diamant.storage.kraft.opening import OtherBroker, open_metadata_log
from diamant.storage.kraft.replay import load_metadata
from diamant.storage.kraft.snapshot import list_snapshots
from tests.broker.brokers.several import create, leaders, several, table, take_down
from tests.broker.fetching import fetch
from tests.broker.running import running
from tests.broker.wire import WireClient
from tests.memory_env import MemoryEnv

ENDPOINT = Endpoint("PLAINTEXT", "127.0.0.1", 9092)


@pytest.mark.parametrize("count", [1, 2])
async def test_fewer_brokers_do_not_open_the_directory_of_three(count: int) -> None:
    """The refusal names both ways out, and changes nothing."""
    env = MemoryEnv()
    async with several(env=env) as (_, wires):
        await create(wires[0], factor=3)
    with pytest.raises(CannotStart, match=r"on 3 brokers.*--brokers 3.*diamant log fold-brokers"):
        async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir="/data", brokers=count), env=env):
            pass
    async with several(env=env) as (_, wires):
        assert await leaders(wires[0]) == [(1, 0, [1, 2, 3])]


async def test_more_brokers_open_it() -> None:
    """Existing partitions keep their replicas, new ones may have more."""
    env = MemoryEnv()
    async with several(env=env) as (_, wires):
        await create(wires[0], factor=3)
    async with several(4, env=env) as (_, wires):
        assert await leaders(wires[0]) == [(1, 0, [1, 2, 3])]
        assert (await create(wires[0], "u", factor=4)).replication_factor == 4


async def test_a_directory_of_one_broker_keeps_one_replica_of_each_partition() -> None:
    """Opened with three, its partitions stay where they are until they are reassigned; new topics have three replicas."""
    env = MemoryEnv()
    async with running(env) as (_, wire):
        await create(wire, partitions=2)
        await wire.produce("t", [b"of one"])
    async with several(env=env) as (broker, wires):
        assert await leaders(wires[1]) == [(1, 0, [1]), (1, 0, [1])]
        assert table(broker).live == [1, 2, 3]
        assert (await create(wires[1], "u", factor=3)).replication_factor == 3
        table(broker).set_replicas("t", 0, [3, 2, 1])
        take_down(broker, 1)
        assert await leaders(wires[1]) == [(3, 1, [3, 2]), (-1, 1, [])]
        assert (await fetch(wires[2], "t", 0)).high_watermark == 1


async def test_a_crash_raises_every_leader_epoch() -> None:
    """As with one broker, a crash raises all leader epochs: other records may take the offsets of unsynced ones."""
    env = MemoryEnv()
    async with several(env=env) as (broker, wires):
        await create(wires[0], partitions=2, factor=3)
        take_down(broker, 3)
    others = [OtherBroker(broker_id, (ENDPOINT,), None) for broker_id in (2, 3)]
    open_metadata_log(env, "/data", node_id=1, endpoints=[ENDPOINT], others=others).close(clean=False)
    async with several(env=env) as (broker, wires):
        assert table(broker).live == [1, 2]
        assert [epoch for _, epoch, _ in await leaders(wires[0])] == [1, 1]


async def test_folded_it_is_a_directory_of_one_broker(tmp_path: Path) -> None:
    """Each partition is there with all records; a second time there is nothing to fold."""
    data = str(tmp_path / "data")
    config = {"listen": "127.0.0.1:0", "data_dir": data, "offsets_topic_num_partitions": 1}
    async with Broker(BrokerConfig(**config, brokers=3)) as broker:
        async with WireClient(broker.addresses.kafka[1].address) as wire:
            await create(wire, replicas=[[2, 3]])
            await wire.produce("t", [b"a", b"b"])
        busy = CliRunner().invoke(fold, [data])
        assert busy.exit_code == 1
        assert "in use" in busy.output or "another" in busy.output
    done = CliRunner().invoke(fold, [data])
    assert (done.exit_code, done.output) == (0, f"{data}: 3 brokers are now one\n")
    image = load_metadata(RealEnv(), metadata_directory(data)).image
    assert BROKERS_FEATURE not in image.features
    assert list(image.brokers) == [1]
    # Kafka begins at the newest snapshot, and would refuse the feature before it.
    assert (
        len([snapshot for snapshot in list_snapshots(RealEnv(), metadata_directory(data)) if snapshot.end_offset]) == 1
    )
    async with Broker(BrokerConfig(**config)) as broker:
        async with WireClient(broker.bootstrap_servers) as wire:
            assert await leaders(wire) == [(1, 1, [1])]
            assert (await fetch(wire, "t", 0)).high_watermark == 2
    again = CliRunner().invoke(fold, [data])
    assert again.exit_code == 1
    assert "nothing to fold" in again.output
