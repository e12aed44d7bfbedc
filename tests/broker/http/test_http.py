"""The HTTP port: responses, bounds, and independence of the broker's other work."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
import logging
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import diamant
from diamant.broker.broker import Broker
from diamant.broker.cannot_start import CannotStart
from diamant.broker.client.admin import Admin, AdminError
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.broker_table import DEFAULT_HTTP_LISTEN
from diamant.broker.config.listeners import Listener
from diamant.broker.http.serving.connections import TimedServer
from diamant.broker.http.serving.routes import PROBES
from diamant.broker.launch.launch_settings import make_config
from diamant.broker.metrics import prometheus as metrics
from diamant.broker.node.cleaner import NodeCleaner
from diamant.storage.config_key import ConfigError
from diamant.storage.errors import StorageError
from tests.broker.http_asking import TIMEOUT_S, Answer, ask, connect, limit_http
from tests.broker.wire import WireClient
from tests.waiting import wait_until

MOST = 64
"""Connections."""


def config(data_dir: Path, listen: str = "127.0.0.1:0") -> BrokerConfig:
    """Return a broker with HTTP on a free port."""
    return BrokerConfig(listen="127.0.0.1:0", data_dir=data_dir, diamant_http_listen=listen)


async def exchange(broker: Broker, request: bytes) -> bytes:
    """Send bytes, and read until the broker closes; empty after a reset."""
    reader, writer = await connect(broker)
    writer.write(request)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def get(broker: Broker, path: str, method: str = "GET", headers: str = "") -> Answer:
    """Send one GET request."""
    raw = await exchange(broker, f"{method} {path} HTTP/1.1\r\nHost: diamant\r\n{headers}\r\n".encode())
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in lines)
    return Answer(int(first.split()[1]), fields, body)


# -- answers -------------------------------------------------------------------------------------------------------------


async def test_metrics_are_prometheus_text(broker: Broker) -> None:
    """The format is version 0.0.4, whatever the request accepts; the connection is then closed."""
    for accept in ("", "Accept: application/openmetrics-text; version=1.0.0\r\n", "Accept: nonsense;version=x\r\n"):
        answer = await get(broker, "/metrics", headers=accept)
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert answer.headers["connection"] == "close"
        assert b"\nkafka_server_kafkaserver_brokerstate 3.0\n" in answer.body


async def test_health_of_a_running_broker(broker: Broker) -> None:
    """A running broker is alive and ready, and reports its identity."""
    async with WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t", 3)
    answer = await get(broker, "/health")
    assert answer.status == 200
    assert answer.headers["cache-control"] == "no-store"
    health = answer.json
    assert health.pop("uptime_s") >= 0
    assert health.pop("version")
    assert health == {
        "status": "ok",
        "live": True,
        "ready": True,
        "cluster_id": broker.cluster_id,
        "node_id": 1,
        "listeners": [broker.bootstrap_servers],
        "partitions": 3,
        "partitions_offline": 0,
    }


async def test_health_of_a_broker_that_stops(broker: Broker) -> None:
    """A broker that stops is alive but not ready: 503 keeps clients away, and the metrics agree."""
    broker.node.is_stopping = True
    answer = await get(broker, "/health")
    assert (answer.status, answer.json["live"], answer.json["ready"]) == (503, True, False)
    assert b"\nkafka_server_kafkaserver_brokerstate 7.0\n" in (await get(broker, "/metrics")).body
    broker.node.is_stopping = False


@pytest.mark.parametrize("path", ["/metric", "/metrics/", "/Health", "/%2e%2e/etc/passwd", "/topic?x=/metrics"])
async def test_other_paths_do_not_exist(broker: Broker, path: str) -> None:
    """Other paths get 404 in JSON, with the existing paths."""
    answer = await get(broker, path)
    assert answer.status == 404
    assert {"/health", "/metrics", "/v1/faults"} <= set(answer.json["paths"])


async def test_a_query_does_not_matter(broker: Broker) -> None:
    """Unknown parameters, as some scrapers append them, are ignored."""
    assert (await get(broker, "/metrics?name[]=x")).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_only_reading_is_possible(broker: Broker, method: str) -> None:
    """Other methods get 405 with the possible ones."""
    answer = await get(broker, "/health", method, "Content-Length: 5\r\n")
    assert (answer.status, answer.headers["allow"]) == (405, "get, head")


@pytest.mark.parametrize("path", ["/metrics", "/health"])
async def test_head_has_the_headers_alone(broker: Broker, path: str) -> None:
    """HEAD has the status and length of GET, without the body."""
    answer = await get(broker, path, "HEAD")
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.headers["content-length"]) > 100


async def test_a_bug_is_answered_and_logged(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The peer gets 500 without details, the log a traceback; the next request is served."""

    async def fail(_broker: Broker) -> metrics.Scrape:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(metrics, "take", fail)
        answer = await get(broker, "/metrics")
    assert answer.status == 500
    assert (answer.json["code"], "a bug" in answer.body.decode()) == ("internal", False)
    assert any(record.exc_info and "GET /metrics failed" in record.getMessage() for record in caplog.records)
    assert (await get(broker, "/metrics")).status == 200


async def test_requests_at_once_share_one_text(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simultaneous requests share one text, made once."""
    entered, gate = asyncio.Event(), asyncio.Event()
    taken = []
    real = metrics.take

    async def take(of: Broker) -> metrics.Scrape:
        taken.append(of)
        entered.set()
        await gate.wait()
        return await real(of)

    monkeypatch.setattr(metrics, "take", take)
    requests = [asyncio.create_task(get(broker, "/metrics")) for _ in range(5)]
    await entered.wait()
    assert broker.running.http is not None
    serving = broker.running.http._serving
    assert serving is not None
    await wait_until(lambda: serving.server.requests_count >= 5)
    gate.set()
    assert len({(await request).body for request in requests}) == 1
    assert len(taken) == 1


# -- bad peers -----------------------------------------------------------------------------------------------------------

BAD_REQUESTS = {
    "no HTTP": b"garbage\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00\x00\r\n\r\n",
    "Kafka": bytes.fromhex("00000014001200040000000100046b63617400000000000d0a"),
    "a version that is none": b"GET / HTTP/9.9\r\n\r\n",
    "a path without end": b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "a header without end": b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
    "too many headers": b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"".join(b"A%d: b\r\n" % n for n in range(999)),
    "a URL that is none": b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
    "two lengths": b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
}


@pytest.mark.parametrize("request_bytes", BAD_REQUESTS.values(), ids=BAD_REQUESTS)
async def test_bad_requests_close_their_connection_and_nothing_else(
    broker: Broker, request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The response is at most 400, nothing is logged, and the next request is served."""
    answer = await exchange(broker, request_bytes)
    assert answer == b"" or answer.split()[1] == b"400"
    assert (await get(broker, "/health")).status == 200
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_body_is_not_read(broker: Broker) -> None:
    """A peer that keeps sending is disconnected; the response does not wait for the end of the body."""
    reader, writer = await connect(broker)
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n" + bytes(1000))
    async with asyncio.timeout(TIMEOUT_S):
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        while await reader.read(1 << 16):
            pass
    writer.close()


@pytest.mark.parametrize("said", [b"", b"GET /met", b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: "])
async def test_a_silent_peer_is_closed(broker: Broker, said: bytes) -> None:
    """A connection without a whole request is closed at its time limit."""
    await limit_http(broker, timeout_s=0.05)
    assert await exchange(broker, said) == b""


async def test_a_peer_that_does_not_read_is_closed(broker: Broker) -> None:
    """A response larger than the socket buffers is dropped at the time limit."""
    await limit_http(broker, timeout_s=0.2)
    reader, writer = await connect(broker)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 2000)
    server = await serving(broker)
    async with asyncio.timeout(TIMEOUT_S):
        await wait_until(lambda: server.requests_count > 0 and not server.connections)
    writer.close()
    del reader


async def serving(broker: Broker) -> TimedServer:
    """Wait for aiohttp's server and return it."""
    http = broker.running.http
    assert http is not None
    async with asyncio.timeout(TIMEOUT_S):
        await wait_until(lambda: http._serving is not None)
    assert http._serving is not None
    return http._serving.server


async def test_silent_connections_give_way(broker: Broker) -> None:
    """Beyond the limit, the oldest connections without a request are closed, and all paths are answered."""
    await limit_http(broker, most=MOST, timeout_s=600.0)
    said = [b"", b"GET /met", b"POST /v1/compact HTTP/1.1\r\nHost: x\r\nX-Slow: "]
    slow = []
    for index in range(2 * MOST):
        reader, writer = await connect(broker)
        writer.write(said[index % len(said)])
        slow.append((reader, writer))
        if index % 16 == 0:
            assert (await get(broker, "/healthz")).status == 200
    server = await serving(broker)
    for path in ("/healthz", "/readyz", "/health", "/metrics"):
        assert (await get(broker, path)).status == 200
        assert server.count <= MOST
    async with asyncio.timeout(TIMEOUT_S):
        with contextlib.suppress(ConnectionResetError):
            assert await slow[0][0].read() == b""
    for _, writer in slow:
        writer.close()


async def test_probes_are_answered_while_all_connections_are_at_work(broker: Broker) -> None:
    """With every connection busy, probes are answered, others get 503, and silent ones change nothing."""
    # A long time: on a busy machine the busy ones would go before.
    await limit_http(broker, most=8, most_for_probes=4, timeout_s=600.0)
    head = b"POST /v1/explain HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
    busy = await asyncio.gather(*(connect(broker) for _ in range(8)))
    for _, writer in busy:
        writer.write(head)
    server = await serving(broker)
    await wait_until(lambda: server.requests_count == 8)
    silent = [await connect(broker) for _ in range(12)]
    for path in PROBES:
        assert (await get(broker, path)).status == 200
    answer = await get(broker, "/metrics")
    assert (answer.status, answer.json["code"]) == (503, "too-many")
    assert len(server.connections) <= 12
    for _, writer in [*busy, *silent]:
        writer.close()
    await wait_until(lambda: not server.connections)
    assert (await get(broker, "/metrics")).status == 200


async def test_http_is_there_when_the_kafka_port_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP answers even while the cleaner is still loading."""
    opened = asyncio.Event()
    start = NodeCleaner.start

    async def held(self: NodeCleaner) -> None:
        await opened.wait()
        await start(self)

    monkeypatch.setattr(NodeCleaner, "start", held)
    broker = Broker(config(tmp_path))
    starting = asyncio.create_task(broker.start())
    await wait_until(lambda: broker.http_url is not None)
    async with WireClient(broker.bootstrap_servers) as wire:
        assert (await wire.create("t")).error_code == 0
    found = await asyncio.to_thread(Admin(broker.bootstrap_servers).status)
    assert found["topics"] == 1
    assert not starting.done()
    opened.set()
    await starting
    await broker.stop()


async def test_a_start_that_fails_lets_go_of_the_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another broker can bind the port, and operations again report that the broker is not running."""

    async def fail(_self: NodeCleaner) -> None:
        raise StorageError("no")

    with monkeypatch.context() as patch:
        patch.setattr(NodeCleaner, "start", fail)
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{sock.getsockname()[1]}"
        broker = Broker(config(tmp_path, address))
        with pytest.raises(CannotStart):
            await broker.start()
        assert broker.http_url is None
        with pytest.raises(RuntimeError, match="is not running"):
            _ = broker.clock
    async with Broker(config(tmp_path, address)) as broker:
        assert broker.http_url == f"http://{address}"


# -- start and stop ------------------------------------------------------------------------------------------------------


async def test_http_is_off_unless_it_is_asked_for(tmp_path: Path) -> None:
    """A broker in a program has no HTTP port by default; an empty text means the same."""
    async with Broker(data_dir=tmp_path) as broker:
        assert broker.http_url is None
    assert config(tmp_path, "").http_listener is None


async def test_a_port_in_use_leaves_the_broker_without_http(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One log line says so; Kafka clients are served."""
    async with Broker(config(tmp_path / "one")) as first:
        assert first.addresses.http is not None
        taken = first.addresses.http.address
        async with Broker(config(tmp_path / "two", taken)) as second:
            assert second.http_url is None
            async with WireClient(second.bootstrap_servers) as wire:
                assert (await wire.create("t")).error_code == 0
        assert (await get(first, "/health")).json["cluster_id"] == first.cluster_id
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warnings == [
        f"no HTTP (/metrics, /health, /v1): {taken} is in use, perhaps by another Diamant; "
        "--set diamant.http.listen=127.0.0.1:0 takes a free port"
    ]


async def test_stop_closes_the_port_and_every_connection(tmp_path: Path) -> None:
    """Silent connections do not delay the stop, the port is free at once, and the broker can restart."""
    broker = Broker(config(tmp_path))
    await broker.start()
    address = broker.addresses.http
    assert address is not None
    assert (await get(broker, "/health")).status == 200
    reader, writer = await connect(broker)
    async with asyncio.timeout(TIMEOUT_S):
        await broker.stop()
        assert await reader.read() == b""
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(address.host, address.port)
    assert broker.http_url is None
    async with Broker(config(tmp_path, address.address)) as again:
        assert (await get(again, "/health")).status == 200


async def test_stop_before_any_request(tmp_path: Path) -> None:
    """The port is closed even without any request."""
    async with Broker(config(tmp_path)) as broker:
        address = broker.addresses.http
        assert address is not None
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(address.host, address.port)


@pytest.mark.parametrize("turns", range(12))
async def test_stop_during_the_first_request(tmp_path: Path, turns: int) -> None:
    """A connection made just before the stop is closed in any state."""
    broker = Broker(config(tmp_path))
    await broker.start()
    reader, writer = await connect(broker)
    assert broker.running.http is not None
    async with asyncio.timeout(TIMEOUT_S):
        while broker.running.http._starting is None:
            await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        await broker.stop()
        try:
            assert await reader.read() == b""
        except ConnectionResetError:
            pass
    writer.close()


async def test_without_descriptors_connections_wait(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """If the system refuses to accept, the broker logs it and retries after a pause."""
    await limit_http(broker, accept_retry_s=0.01)
    assert (await get(broker, "/health")).status == 200
    assert broker.running.http is not None
    serving = broker.running.http._serving
    assert serving is not None
    real = serving._sock
    refusals = [OSError(24, "Too many open files"), BlockingIOError()]

    class Refusing:
        def accept(self) -> Any:
            if refusals:
                raise refusals.pop(0)
            return real.accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    serving._sock = Refusing()  # type: ignore[assignment]
    assert (await get(broker, "/health")).status == 200
    serving._sock = real
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "cannot accept HTTP connections for now: Too many open files"
    ]


async def test_a_server_that_cannot_be_loaded_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker continues without HTTP."""
    monkeypatch.setitem(sys.modules, "diamant.broker.http.serving.routes", None)  # an ImportError
    async with Broker(config(tmp_path)) as broker:
        assert await exchange(broker, b"") == b""
        async with WireClient(broker.bootstrap_servers) as wire:
            assert (await wire.create("t")).error_code == 0
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert errors == ["HTTP could not be started: there will be no /metrics and no /health"]


def refuse_once(monkeypatch: pytest.MonkeyPatch, name: str, error: Exception) -> None:
    """Have the next import from a module fail, as without descriptors."""
    module = importlib.import_module(name)

    class Unreadable(ModuleType):
        def __getattr__(self, _: str) -> Any:
            sys.modules[name] = module
            raise error

    monkeypatch.setitem(sys.modules, name, Unreadable(name))


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "Too many open files", "x.py"), ImportError("x.so: Too many open files")]
)
async def test_what_cannot_be_loaded_without_descriptors_is_loaded_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """The first peer waits until there are descriptors again, and is answered; an operation names the cause."""
    refuse_once(monkeypatch, "diamant.broker.http.serving.routes", error)
    async with Broker(config(tmp_path)) as broker:
        assert (await get(broker, "/health")).status == 200
        for module in ("running_requests", "broker_status"):
            refuse_once(monkeypatch, f"diamant.broker.operations.broker_state.{module}", error)
            answer = await ask(broker, "GET", "/v1/status")
            assert (answer.status, answer.json["code"]) == (500, "failed")
            assert str(error) in answer.json["error"]
        assert (await ask(broker, "GET", "/v1/status")).status == 200
    assert "HTTP could not be started, trying again" in caplog.text
    assert not any(record.exc_info for record in caplog.records)


# -- configuration -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "listener"),
    [
        ("127.0.0.1:9644", Listener("HTTP", "127.0.0.1", 9644)),
        (":0", Listener("HTTP", "", 0)),
        ("[::1]:80", Listener("HTTP", "::1", 80)),
        ("localhost:65535", Listener("HTTP", "localhost", 65535)),
        ("", None),
    ],
)
def test_an_address_is_host_and_port(text: str, listener: Listener | None) -> None:
    """An address is host:port, as for Kafka's listeners; an empty host is every interface."""
    assert BrokerConfig(diamant_http_listen=text).http_listener == listener


@pytest.mark.parametrize("text", ["9644", "localhost", "http://localhost:9644", "a:b", "h:65536", "h:-1", "a:1,b:2"])
def test_addresses_that_are_none(text: str) -> None:
    """Invalid addresses are refused with the name of the configuration."""
    with pytest.raises(ConfigError, match=r"^diamant\.http\.listen: .* is not host:port"):
        BrokerConfig(diamant_http_listen=text)


def test_diamant_start_has_http_on_unless_told_otherwise(tmp_path: Path) -> None:
    """HTTP listens on loopback by default; the file and --set override it, and an empty --set turns it off."""
    file = tmp_path / "server.properties"
    file.write_text("diamant.http.listen=:1234\n")
    assert make_config(None, [], [], None)["diamant.http.listen"] == DEFAULT_HTTP_LISTEN
    assert make_config(str(file), [], [], None)["diamant.http.listen"] == ":1234"
    assert make_config(str(file), ["diamant.http.listen=:5678"], [], None)["diamant.http.listen"] == ":5678"
    assert make_config(None, ["diamant.http.listen="], [], None).http_listener is None


async def test_the_address_of_http_in_the_place_of_kafkas_is_recognised(broker: Broker) -> None:
    """The error says that the address is that of HTTP."""
    assert broker.addresses.http is not None
    with pytest.raises(AdminError, match="it answers HTTP: give the address of the Kafka listener"):
        await asyncio.to_thread(Admin(broker.addresses.http.address).status)


def test_the_package_shows_its_names() -> None:
    """Names are loaded on first use, but listed from the start."""
    assert set(diamant.__all__) <= set(dir(diamant))
