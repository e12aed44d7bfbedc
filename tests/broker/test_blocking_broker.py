"""A broker for a test: its defaults, topics and records by hand, and its operations with and without an event loop."""

from __future__ import annotations

import asyncio
import socket
import stat
from errno import EACCES, EADDRINUSE, EBUSY, ENOSPC
from pathlib import Path

import pytest

import diamant
from diamant import BlockingBroker, Broker, BrokerConfig, CannotStart, DiamantContainer, KafkaError
from diamant.broker.cannot_start import as_cannot_start
from diamant.protocol.errors import ErrorCode
from diamant.protocol.murmur2 import murmur2
from diamant.storage.errors import CorruptLog, InUse


def values(broker: BlockingBroker, topic: str) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Partition, offset, key and value of each record."""
    return [(partition, record.offset, record.key, record.value) for partition, record in broker.records(topic)]


def test_a_broker_without_settings_is_temporary() -> None:
    """A free port, and a directory that nobody else may read and that is gone at the end; started again it is empty."""
    made = Broker()
    directory = Path(made.config.data_dir)
    for _ in range(2):
        with made as broker:
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700
            assert not broker.bootstrap_servers.endswith(":9092")
            assert broker.http_url is None
            broker.create_topic("t")
        assert not directory.exists()


def test_internal_topics_of_a_temporary_broker_are_small(tmp_path: Path) -> None:
    """One partition, unless settings or properties say otherwise; with a directory that stays it is Kafka's default."""
    found = {
        "temporary": Broker(),
        "settings": Broker(offsets_topic_num_partitions=7),
        "properties": Broker(properties={"offsets.topic.num.partitions": "5"}),
        "kept": Broker(data_dir=tmp_path),
    }
    partitions = {name: broker.config.offsets_topic_num_partitions for name, broker in found.items()}
    assert partitions == {"temporary": 1, "settings": 7, "properties": 5, "kept": 50}
    assert found["properties"].config.transaction_state_log_num_partitions == 1


def test_a_directory_that_is_named_stays(tmp_path: Path) -> None:
    """A named directory stays: only what the broker has made itself is removed."""
    for _ in range(2):
        with Broker(data_dir=tmp_path) as broker:
            broker.produce("t", "v")
    with Broker(data_dir=tmp_path) as broker:
        assert len(values(broker, "t")) == 2


def test_a_broker_that_cannot_start_leaves_no_directory() -> None:
    """The error is as always."""
    with Broker() as other:
        made = Broker(listen=other.bootstrap_servers)
        with pytest.raises(CannotStart), made:
            pass
        assert not Path(made.config.data_dir).exists()


def test_topics_and_records_by_hand() -> None:
    """Text is UTF-8, None a tombstone; the key chooses the partition as in Java, records without one take turns."""
    with Broker() as broker:
        broker.create_topic("users", 3, compact=True, min_compaction_lag_ms=0, preallocate=False)
        produced = [broker.produce("users", value, key="ä") for value in ("1", b"2", None)]
        home = murmur2("ä".encode()) % 3
        assert produced == [("users", home, 0), ("users", home, 1), ("users", home, 2)]
        assert values(broker, "users") == [
            (home, offset, "ä".encode(), value) for offset, value in enumerate((b"1", b"2", None))
        ]
        assert broker.compact("users").removed == {"superseded": 2}
        assert values(broker, "users") == [(home, 2, "ä".encode(), None)]
        assert list(broker.latest("users")) == []
        broker.create_topic("turns", 2)
        assert [broker.produce("turns", str(number)).partition for number in range(4)] in ([0, 1, 0, 1], [1, 0, 1, 0])
        broker.produce("turns", "v", partition=1, headers={"a": "b"}, timestamp_ms=7)
        *_, (_, last) = broker.records("turns", 1)
        assert (last.timestamp, last.headers) == (7, (("a", b"b"),))


def test_records_that_kafka_refuses_are_refused() -> None:
    """Such records are refused with Kafka's codes, and nothing is stored."""
    with Broker(auto_create_topics_enable=False) as broker:
        broker.create_topic("users", compact=True)
        for refused, code in (
            (lambda: broker.create_topic("users"), ErrorCode.TOPIC_ALREADY_EXISTS),
            (lambda: broker.create_topic("t", cleanup_policy="compost"), ErrorCode.INVALID_CONFIG),
            (lambda: broker.produce("absent", "v"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (lambda: broker.produce("users", "v", key="k", partition=1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (lambda: broker.produce("users", "v"), ErrorCode.INVALID_RECORD),
        ):
            with pytest.raises(KafkaError) as error:
                refused()
            assert error.value.code == code
        assert values(broker, "users") == []


async def test_the_same_with_an_event_loop() -> None:
    """The operations are awaited inside `async with`."""
    async with Broker() as broker:
        await broker.create_topic("users", compact=True)
        for value in ("1", "2"):
            await broker.produce("users", value, key="k")
        assert [record.value async for _, record in broker.records("users")] == [b"1", b"2"]
        assert (await broker.compact("users")).removed == {"superseded": 1}


def test_a_clock_that_is_moved_in_a_line() -> None:
    """The clock's methods wait as the broker's do; `call` takes results as well as coroutines."""
    with Broker(diamant_clock="manual") as broker:
        broker.clock.freeze()
        before_ms = broker.clock.now_ms()
        assert broker.clock.advance("1d").to_ms == before_ms + 86_400_000
        assert broker.call(broker.clock.advance(1)).to_ms == broker.call(broker.awaited.clock.advance(0)).to_ms


def test_a_container_without_docker() -> None:
    """What tests ask of testcontainers' Kafka is there, and its configurations are taken."""
    container = DiamantContainer("confluentinc/cp-kafka:7.6.0").with_kraft().with_env("KAFKA_NUM_PARTITIONS", "3")
    with pytest.raises(RuntimeError, match="start"):
        container.get_bootstrap_server()
    with container.with_env("LANG", "C") as kafka:
        host, port = kafka.get_bootstrap_server().split(":")
        assert (kafka.get_container_host_ip(), kafka.get_exposed_port(9093)) == (host, int(port))
        assert kafka.broker.config.num_partitions == 3
    container.stop()


def test_a_container_with_security() -> None:
    """A container takes users, ACLs and TLS as `BrokerConfig` does, and has the configurations of clients."""
    container = DiamantContainer(users={"alice": "secret"}, acls=["User:alice ALL topic users"], tls=True)
    with container as kafka:
        config = kafka.client_config("alice")
        assert config.bootstrap_servers == kafka.get_bootstrap_server()
        assert config.confluent()["security.protocol"] == "SASL_SSL"
        assert kafka.broker.node.authorizer is not None


def test_dir_shows_what_there_is() -> None:
    """Every name is in `dir`, and can be had."""
    assert {"Admin", "BlockingBroker", "Broker", "DiamantContainer", "KafkaError"} <= {*dir(diamant)}
    assert all(getattr(diamant, name) is not None for name in diamant.__all__)


def test_settings_stand_for_a_configuration(tmp_path: Path) -> None:
    """Settings have the names of a BrokerConfig; a wrong one is its error, and both at once are refused."""
    with Broker(listen="127.0.0.1:0", data_dir=tmp_path, num_partitions=3) as broker:
        assert (broker.config.num_partitions, Path(broker.config.data_dir)) == (3, tmp_path)
    with pytest.raises(TypeError, match="did you mean num_partitions"):
        Broker(num_partitoins=3)
    with pytest.raises(TypeError, match="give these to the BrokerConfig"):
        Broker(BrokerConfig(), listen="127.0.0.1:0")


def test_an_address_in_use_is_named(tmp_path: Path) -> None:
    """The error names the address and a way out; nothing is left of the start."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(CannotStart, match=f"{address}: Address already in use. Is another broker") as raised:
            Broker(listen=address, data_dir=tmp_path).__enter__()
        assert (raised.value.errno, raised.value.reason) == (EADDRINUSE, f"{address}: Address already in use")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "here:1: Name or service not known"),
        (PermissionError(EACCES, "Permission denied", "/d"), "/d: Permission denied. The broker needs to read"),
        (OSError(ENOSPC, "No space left on device", "/d"), "/d: No space left on device"),
        (OSError("strange"), "here:1: strange"),
        (CorruptLog("/d/meta.properties", 2, "expected a number"), "/d/meta.properties at 2: expected a number"),
    ],
)
def test_an_error_at_the_start_names_the_file_or_address(error: Exception, said: str) -> None:
    """The file if the error names one, else the address; the error behind it is the cause."""
    with pytest.raises(CannotStart) as raised, as_cannot_start("here:1"):
        raise error
    assert str(raised.value).startswith(said)
    assert raised.value.__cause__ is error


async def test_a_directory_in_use_is_named(tmp_path: Path) -> None:
    """A directory in use by a broker in a thread or on an event loop of the same program is named by one error."""
    async with Broker(listen="127.0.0.1:0", data_dir=tmp_path):
        other = Broker(listen="127.0.0.1:0", data_dir=tmp_path)
        said = f"{tmp_path}/.lock: in use by this process already. Is another broker running on it?"
        for start in (other.start(), asyncio.to_thread(other.__enter__)):
            with pytest.raises(diamant.CannotStart) as raised:
                await start
            assert str(raised.value).startswith(said)
            assert (raised.value.errno, type(raised.value.__cause__)) == (EBUSY, InUse)


async def test_an_error_found_late_in_the_start_names_the_file(tmp_path: Path) -> None:
    """The error has the file, also where it is found late in the start."""
    async with Broker(listen="127.0.0.1:0", data_dir=tmp_path):
        pass
    (tmp_path / "meta.properties").write_text("version=7\n")
    with pytest.raises(CannotStart, match=r"meta\.properties"):
        await Broker(listen="127.0.0.1:0", data_dir=tmp_path).start()


@pytest.mark.parametrize("below", ["", "/data"])
def test_a_file_in_the_place_of_the_directory_is_named(tmp_path: Path, below: str) -> None:
    """The error names the file that stands in place of the directory, or of one above it."""
    (tmp_path / "file").touch()
    with pytest.raises(CannotStart, match=r"file.*: .*Expected a directory"):
        Broker(listen="127.0.0.1:0", data_dir=f"{tmp_path}/file{below}").__enter__()
