"""A broker that a test stops and starts again, as an operator would: the same ports, data and certificates."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import socket
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NoReturn

import pytest
from confluent_kafka import Producer

from diamant import BlockingBroker, Broker
from diamant.broker.cannot_start import CannotStart
from diamant.broker.node.cleaner import NodeCleaner
from diamant.broker.operation_errors import NotPossible
from tests.broker.test_blocking_broker import values
from tests.broker.wire import WireClient


def port_of(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or a URL."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    return host, int(port)


def is_open(address: str) -> bool:
    """True if a connection is accepted; anything but a refusal is an error."""
    try:
        socket.create_connection(port_of(address)).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_broker_comes_back_on_the_same_ports_with_the_same_data() -> None:
    """Records, configurations, users and ids stay in the temporary directory; between stop and start clients are refused."""
    settings = {"diamant_http_listen": "127.0.0.1:0", "listen": ["A://127.0.0.1:0", "B://127.0.0.1:0"]}
    protocols = {"listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT", "inter.broker.listener.name": "A"}
    with Broker(properties=protocols, **settings) as broker:
        broker.create_topic("t", compact=True)
        broker.produce("t", "1", key="a")
        before = (broker.bootstrap_servers, broker.http_url, broker.cluster_id, values(broker, "t"))
        assert broker.http_url is not None
        addresses = [*broker.bootstrap_servers.split(","), broker.http_url]
        for _ in range(2):
            broker.stop()
            assert broker.bootstrap_servers == before[0]
            assert [is_open(address) for address in addresses] == [False] * 3
            broker.start()
            assert (broker.bootstrap_servers, broker.http_url, broker.cluster_id, values(broker, "t")) == before
            assert [is_open(address) for address in addresses] == [True] * 3
        assert broker.produce("t", "2", key="a").offset == 1


async def test_the_same_on_an_event_loop() -> None:
    """On a loop, start and stop are awaited; a second start or stop does nothing."""
    async with Broker() as broker:
        address = broker.bootstrap_servers
        await broker.produce("t", "v")
        await asyncio.gather(broker.stop(), broker.stop())
        await broker.stop()
        await broker.start()
        await broker.start()
        assert broker.bootstrap_servers == address
        assert [record.value async for _, record in broker.records("t")] == [b"v"]


def test_nobody_else_gets_the_port_of_a_stopped_broker() -> None:
    """The system does not hand it out, whatever asks for a free port while the broker is away."""
    with Broker() as broker:
        broker.stop()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(port_of(broker.bootstrap_servers))
        broker.start()


def test_a_stopped_broker_says_so() -> None:
    """Operations fail with one sentence instead of waiting; a clock and faults from before the stop do nothing in silence."""
    with Broker(diamant_clock="manual") as broker:
        clock, faults = broker.clock, broker.faults
        faults.add("Produce", error="NOT_LEADER_OR_FOLLOWER")
        broker.stop()
        with pytest.raises(RuntimeError, match=r"the broker is not running: .* call start\(\)"):
            broker.produce("t", "v")
        broker.start()
        assert broker.faults.list() == []
        with pytest.raises(RuntimeError, match="use the `faults` of the broker as it runs now"):
            faults.add("Produce", error="NOT_LEADER_OR_FOLLOWER")
        with pytest.raises(NotPossible, match="use the clock of the broker that is running now"):
            clock.advance("1s")


def test_a_frozen_clock_stands_still_across_a_stop() -> None:
    """The frozen clock continues where it was, however long the broker was away."""
    with Broker(diamant_clock="manual") as broker:
        broker.clock.freeze()
        broker.clock.advance("8d")
        now_ms = broker.clock.now_ms()
        broker.stop()
        broker.start()
        assert (broker.clock.now_ms(), broker.clock.state().is_frozen) == (now_ms, True)


def test_a_client_of_before_trusts_and_is_trusted_after() -> None:
    """With `tls=True` and users, a client's configuration stays valid: the CA is the same."""
    with Broker(users={"alice": "secret"}, tls=True) as broker:
        client = broker.client_config("alice", certificate="alice")
        broker.stop()
        broker.start()
        client.check()
        assert broker.client_config("alice").ca == client.ca


def test_a_fork_can_be_stopped_too(tmp_path: Path) -> None:
    """A fork's directory stays, even if the original is started while the fork is away."""
    with Broker(data_dir=tmp_path / "data") as original:
        original.produce("t", "v")
        with original.fork() as fork:
            fork.stop()
            original.stop()
            original.start()
            fork.start()
            assert values(fork, "t") == values(original, "t")
    assert sorted(os.listdir(tmp_path)) == ["data"]


def test_kept_state_ends_with_the_broker() -> None:
    """Kept state ends with `with`, whether the broker runs or not, and without `with` when nobody has the broker any more."""
    with Broker() as broker:
        broker.stop()
        directory, address = Path(broker.config.data_dir), port_of(broker.bootstrap_servers)
        assert directory.exists()
    assert not directory.exists()
    with socket.socket() as other:
        other.bind(address)

    async def stopped() -> tuple[Path, tuple[str, int]]:
        made = Broker()
        await made.start()
        await made.stop()
        return Path(made.config.data_dir), port_of(made.bootstrap_servers)

    directory, address = asyncio.run(stopped())
    gc.collect()
    assert not directory.exists()
    with socket.socket() as other:
        other.bind(address)


async def test_a_part_that_does_not_stop_keeps_no_other_running(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its error is logged; the tasks of the others end, ports and directory are free, and the next start recovers."""

    async def fail() -> None:
        raise ZeroDivisionError("a bug")

    before = asyncio.all_tasks()
    async with Broker(data_dir=tmp_path / "data", diamant_http_listen="127.0.0.1:0") as broker:
        await broker.create_topic("t")
        broker.services.history()
        addresses = [broker.bootstrap_servers, str(broker.http_url)]
        broker.services.creation.stop = fail  # type: ignore[method-assign]
    assert "the shutdown of jobs and coordinators has failed: a bug. The next start recovers" in caplog.text
    assert not any(map(is_open, addresses))
    assert asyncio.all_tasks() == before
    async with Broker(data_dir=tmp_path / "data") as broker:
        assert not broker.node.directory.was_clean


async def test_a_stop_without_threads_releases_the_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What needs a thread of its own blocks the loop instead: the same process can start a broker there."""

    def refuse(_: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    broker = Broker(data_dir=tmp_path / "data")
    await broker.start()
    await broker.create_topic("t")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        await broker.stop()
    async with Broker(data_dir=tmp_path / "data") as again:
        assert list(again.node.topics.by_name) == ["t"]


async def test_a_cancelled_end_removes_the_temporary_directory() -> None:
    """The end runs to its end before its caller is told."""
    begun, may_go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        begun.set()
        await may_go_on.wait()

    async def use() -> None:
        async with broker:
            broker.services.creation.stop = hold  # type: ignore[method-assign]

    broker = Broker()
    using = asyncio.create_task(use())
    await begun.wait()
    is_there = Path(broker.config.data_dir).exists
    using.cancel()
    await asyncio.sleep(0)
    assert is_there()
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await using
    assert not is_there()


async def test_a_start_that_fails_at_its_end_closes_what_it_has_let_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Clients that connected before, over Kafka or HTTP, would wait for ever. The thread of the audit log ends, too."""
    clients: list[asyncio.StreamReader] = []
    addresses: list[str] = []
    audit_file = tmp_path / "audit.log"

    async def fail_once_clients_are_in(cleaning: NodeCleaner) -> None:
        addresses.extend([broker.addresses.kafka[0].address, str(broker.addresses.http_url)])
        for address in addresses:
            reader, writer = await asyncio.open_connection(*port_of(address))
            clients.append(reader)
            stack.callback(writer.close)
        async with WireClient(addresses[0]) as wire:
            await wire.create("t")
        assert any(thread.name.startswith("audit") for thread in threading.enumerate())
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "somewhere")

    broker = Broker(data_dir=tmp_path / "data", diamant_http_listen="127.0.0.1:0", diamant_audit_file=str(audit_file))
    before, threads = asyncio.all_tasks(), set(threading.enumerate())
    with monkeypatch.context() as patch, ExitStack() as stack:
        patch.setattr(NodeCleaner, "start", fail_once_clients_are_in)
        with pytest.raises(CannotStart, match="Too many open files"):
            await broker.start()
        for reader in clients:
            with suppress(ConnectionError):
                assert await reader.read() == b""
    assert len(clients) == 2
    assert not any(map(is_open, addresses))
    assert asyncio.all_tasks() == before
    assert not [one.name for one in set(threading.enumerate()) - threads if not one.name.startswith("asyncio")]


async def test_a_part_that_does_not_stop_does_not_end_a_reset(tmp_path: Path) -> None:
    """The state that it works on is replaced in any case: the broker serves the snapshot."""

    async def fail() -> None:
        raise ZeroDivisionError("a bug")

    async with Broker(data_dir=tmp_path / "data") as broker:
        snapshot = await broker.snapshot()
        await broker.create_topic("later")
        broker.services.creation.stop = fail  # type: ignore[method-assign]
        await broker.reset(snapshot)
        assert "later" not in broker.node.topics.by_name
        await broker.create_topic("t")


def test_a_start_that_fails_can_be_tried_again(tmp_path: Path) -> None:
    """The data stays, and the port, too."""
    with Broker(data_dir=tmp_path) as broker:
        broker.produce("t", "v")
        address = broker.bootstrap_servers
        broker.stop()
        properties = tmp_path / "meta.properties"
        good = properties.read_bytes()
        properties.write_text("version=7\n")
        with pytest.raises(Exception, match=r"meta\.properties"):
            broker.start()
        properties.write_bytes(good)
        broker.start()
        assert broker.bootstrap_servers == address
        assert len(values(broker, "t")) == 1


def test_a_client_survives_a_broker_that_goes_away(diamant_manual_broker: BlockingBroker) -> None:
    """A producer keeps its records while nobody answers, and delivers them, once each, when the broker is back."""
    config = {"bootstrap.servers": diamant_manual_broker.bootstrap_servers, "enable.idempotence": True}
    config |= {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "log_level": 0}
    producer = Producer(config)
    producer.produce("t", b"before")
    assert producer.flush(30) == 0
    diamant_manual_broker.stop()
    producer.produce("t", b"while it was away")
    producer.poll(0)
    diamant_manual_broker.start()
    assert producer.flush(30) == 0
    found = [record.value for _, record in diamant_manual_broker.records("t")]
    assert found == [b"before", b"while it was away"]
