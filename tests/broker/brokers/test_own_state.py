"""The state of single brokers: configurations, log directories, groups and transactions of their own, and their addresses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest

from diamant import Admin
from diamant.broker.broker import Broker
from diamant.broker.cannot_start import CannotStart
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.metrics.metric_table import METRICS
from diamant.protocol.errors import ErrorCode
from diamant.storage.config_key import ConfigError
from tests.broker.brokers.several import create, metadata, several, table, take_down
from tests.broker.running import running
from tests.broker.wire import API_VERSIONS, DESCRIBE_CONFIGS, DESCRIBE_LOG_DIRS, INCREMENTAL_ALTER_CONFIGS, WireClient
from tests.memory_env import MemoryEnv
from tests.ports import reserved_row

BROKER = 4
DESCRIBE_QUORUM, UNREGISTER = 55, 64


async def configs(wire: WireClient, broker_id: int) -> tuple[int, dict[str, str | None]]:
    """Return the configurations of a broker: the error code and the values."""
    resource = {"resource_type": BROKER, "resource_name": str(broker_id), "configuration_keys": None}
    fields = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
    (result,) = (await wire.call(DESCRIBE_CONFIGS, 4, fields)).results
    return result.error_code, {config.name: config.value for config in result.configs}


async def test_each_broker_describes_its_own_configurations() -> None:
    """A broker describes its own id, rack and addresses; as in Kafka, it does not know those of another."""
    async with several(broker_rack="a,b") as (broker, wires):
        for number, wire in enumerate(wires):
            code, found = await configs(wire, number + 1)
            assert code == 0
            assert (found["node.id"], found["broker.rack"]) == (str(number + 1), "aba"[number])
            assert found["advertised.listeners"] == f"PLAINTEXT://{broker.addresses.kafka[number].address}"
        assert (await configs(wires[0], 2))[0] == ErrorCode.INVALID_REQUEST


async def test_a_broker_takes_configurations_for_itself() -> None:
    """A broker's own configurations are kept and described; another broker refuses them."""
    async with several() as (_, wires):
        change = {"name": "log.cleaner.threads", "config_operation": 0, "value": "2"}
        resource = {"resource_type": BROKER, "resource_name": "2", "configs": [change]}
        fields = {"resources": [resource], "validate_only": False}
        codes = [(await wire.call(INCREMENTAL_ALTER_CONFIGS, 1, fields)).responses[0].error_code for wire in wires]
        assert codes == [ErrorCode.INVALID_REQUEST, 0, ErrorCode.INVALID_REQUEST]
        assert (await configs(wires[1], 2))[1]["log.cleaner.threads"] == "2"
        assert (await configs(wires[2], 3))[1]["log.cleaner.threads"] == "1"


async def test_a_log_directory_lists_the_replicas_of_its_broker() -> None:
    """DescribeLogDirs of a broker without a replica does not name the partition."""
    async with several() as (_, wires):
        await create(wires[0], replicas=[[1, 3]])
        found = []
        for wire in wires:
            (result,) = (await wire.call(DESCRIBE_LOG_DIRS, 4, {"topics": None})).results
            found.append([topic.name for topic in result.topics])
        assert found == [["t"], [], ["t"]]


async def test_every_broker_leads_to_the_one_http_port(tmp_path: Path) -> None:
    """`diamant.Admin` finds it through any of them."""
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path, brokers=3, diamant_http_listen="127.0.0.1:0")
    async with Broker(config) as broker:
        found = [
            await asyncio.to_thread(lambda one: Admin(one.address).http_url, one) for one in broker.addresses.kafka
        ]
        assert found == [broker.http_url] * 3


async def test_the_quorum_is_observed_by_the_other_brokers() -> None:
    """The quorum has one voter, node 1, and two observers."""
    async with several() as (_, wires):
        asked = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}
        part = (await wires[2].call(DESCRIBE_QUORUM, 2, asked)).topics[0].partitions[0]
        assert [one.replica_id for one in part.current_voters] == [1]
        assert [one.replica_id for one in part.observers] == [2, 3]


async def test_no_broker_of_the_process_can_be_unregistered() -> None:
    """UnregisterBroker is refused for every broker of the process, as all of them are in use."""
    async with several() as (_, wires):
        assert (await wires[0].call(UNREGISTER, 0, {"broker_id": 2})).error_code == ErrorCode.INVALID_REQUEST


async def test_api_versions_knows_which_broker_was_meant() -> None:
    """A client that names the node it means is told to bootstrap again only if it reaches another one."""
    async with several() as (broker, wires):
        fields = {"client_software_name": "c", "client_software_version": "1", "cluster_id": broker.node.cluster_id}
        codes = [(await wire.call(API_VERSIONS, 5, {**fields, "node_id": 2})).error_code for wire in wires]
        assert codes == [ErrorCode.REBOOTSTRAP_REQUIRED, 0, ErrorCode.REBOOTSTRAP_REQUIRED]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"listen": "127.0.0.1:65534"}, "65535"),
        ({"listen": ["A://127.0.0.1:9092", "B://127.0.0.1:9094"]}, "same port"),
        ({"brokers": 1001}, "diamant.brokers"),
        ({"diamant_brokers_ports": "9092,9093"}, "expected 3 numbers"),
        ({"diamant_brokers_ports": "9092,9093,x"}, "expected 3 numbers"),
        ({"diamant_brokers_ports": "9092,9093,9092"}, "same port"),
        ({"brokers": 0}, "diamant.brokers"),
    ],
)
def test_ports_that_brokers_cannot_have_are_refused(config: dict[str, Any], reason: str) -> None:
    """Before anything is opened, with the configuration's name."""
    protocols = {"listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT,PLAINTEXT:PLAINTEXT"}
    with pytest.raises(ConfigError, match=reason):
        BrokerConfig(**{"brokers": 3, "data_dir": "/data", "properties": protocols, **config})


def test_ports_follow_one_another_or_are_listed() -> None:
    """The ports of every listener are consecutive or listed; a listener with port 0 gets free ones."""

    def ports(**config: Any) -> list[int]:
        return [one.port for one in BrokerConfig(brokers=3, data_dir="/data", **config).all_listeners]

    assert ports(listen="127.0.0.1:9092") == [9092, 9093, 9094]
    assert ports(listen="127.0.0.1:0") == [0, 0, 0]
    assert ports(listen="127.0.0.1:9092", diamant_brokers_ports="1092,2092,3092") == [1092, 2092, 3092]


@pytest.mark.parametrize("taken", range(3))
@pytest.mark.parametrize("are_listed", [False, True], ids=["consecutive", "listed"])
async def test_a_port_that_is_taken_is_named_and_nothing_starts(taken: int, are_listed: bool, tmp_path: Path) -> None:
    """The error names the address, the broker and the configuration; no other port is open, and there is no directory."""
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(one).number for one in reserved_row(3)]
        config: dict[str, Any] = {"diamant_brokers_ports": ",".join(map(str, ports))} if are_listed else {}
        config |= {"listen": f"127.0.0.1:{ports[0]}", "data_dir": tmp_path / "d", "brokers": 3}
        with socket.create_server(("127.0.0.1", ports[taken])), pytest.raises(CannotStart) as caught:
            await Broker(BrokerConfig(**config)).start()
        place = f"127.0.0.1:{ports[taken]}, for broker {taken + 1} (diamant.brokers.ports, --ports)"
        assert str(caught.value).startswith(f"{place}: Address already in use")
        assert not (tmp_path / "d").exists()
        async with Broker(BrokerConfig(**config)) as broker:
            assert [one.port for one in broker.addresses.kafka] == ports


async def test_a_hundred_brokers_answer() -> None:
    """Each has a port, names all the others, and leads its partition; one that goes down is left out."""
    async with several(100) as (broker, wires):
        assert not (await create(wires[0], partitions=100, factor=3)).error_code
        for wire in wires:
            assert len((await metadata(wire)).brokers) == 100
        for _, one in table(broker).partitions("t"):
            answer = await wires[one.leader - 1].produce("t", [b"v"], partition=one.partition_id)
            assert answer.error_code == 0
        assert len({one.leader for _, one in table(broker).partitions("t")}) == 100
        assert (await broker.brokers.down(7)).changed_isr_count == 3
        assert len((await metadata(wires[99])).brokers) == 99
        assert len((await broker.brokers.list()).brokers) == 100


async def test_free_ports_are_kept_for_the_next_start() -> None:
    """After a stop, the brokers have the same addresses, as a single broker has."""
    broker = Broker(brokers=3)
    await broker.start()
    before = broker.bootstrap_servers
    await broker.stop()
    async with broker:
        assert broker.bootstrap_servers == before


def samples(broker: Broker, name: str) -> list[tuple[Any, float]]:
    """Return the samples of a metric."""
    take = METRICS[name].now
    assert take is not None
    return list(take(broker.services))


async def test_status_and_metrics_name_the_brokers() -> None:
    """Which are up, what they lead and follow."""
    async with several() as (broker, wires):
        await create(wires[0], partitions=3, factor=3)
        take_down(broker, 2)
        found = (await broker.status()).to_fields()["brokers"]
        assert isinstance(found, list)
        assert [(one["broker_id"], one["is_up"], one["leads"], one["follows"]) for one in found] == [
            (1, True, 1, 2),
            (2, False, 0, 0),
            (3, True, 2, 1),
        ]
        assert found[2]["listeners"] == (broker.addresses.kafka[2].address,)
        assert samples(broker, "diamant_broker_up") == [(("1",), 1), (("2",), 0), (("3",), 1)]
        assert samples(broker, "diamant_broker_leaders") == [(("1",), 1), (("2",), 0), (("3",), 2)]


async def test_one_broker_names_no_brokers() -> None:
    """The status of one broker has no `brokers`, its metrics no `diamant_broker_up`, its certificates no broker ids."""
    async with running(MemoryEnv()) as (broker, _):
        assert "brokers" not in (await broker.status()).to_fields()
        assert samples(broker, "diamant_broker_up") == []
        assert "broker_ids" not in str(broker.services.evidence().issuer_fields(0, is_manual_clock=False))


async def test_certificates_say_that_the_brokers_share_one_storage() -> None:
    """The issuer names the ids."""
    async with several() as (broker, _):
        issuer = broker.services.evidence().issuer_fields(0, is_manual_clock=False)["issuer"]
        assert isinstance(issuer, dict)
        assert issuer["broker_ids"] == [1, 2, 3]
        assert "share one storage" in issuer["note"]
