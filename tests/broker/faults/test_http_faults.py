"""`/v1/faults`: faults for tests in any language, and protection from foreign callers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.faults.faults import MAX_FAULTS
from diamant.broker.http.serving.json_body import MAX_BODY_BYTES
from diamant.protocol.errors import ErrorCode
from tests.broker.wire import METADATA, PRODUCE, WireClient, batch_of, produce_fields

TIMEOUT_S = 60
JSON_HEADER = "Content-Type: application/json\r\n"


class Answer(NamedTuple):
    """An HTTP response with its decoded body."""

    status: int
    headers: dict[str, str]
    json: Any


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with HTTP and an advertised host name."""
    config = BrokerConfig(
        listen="127.0.0.1:0",
        data_dir=tmp_path,
        diamant_http_listen="127.0.0.1:0",
        advertised_listeners="PLAINTEXT://kafka.test:9092",
    )
    async with Broker(config) as running:
        yield running


async def call(
    broker: Broker,
    method: str,
    path: str,
    body: Any = None,
    *,
    host: str | None = None,
    headers: str = JSON_HEADER,
    raw: bytes | None = None,
) -> Answer:
    """Send one request; `raw` replaces the JSON body."""
    assert broker.addresses.http is not None
    content = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(broker.addresses.http.host, broker.addresses.http.port)
    host = broker.addresses.http.address if host is None else host
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}Content-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    async with asyncio.timeout(TIMEOUT_S):
        answer = await reader.read()
    writer.close()
    top, _, rest = answer.partition(b"\r\n\r\n")
    first, *lines = top.decode().split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in lines)
    return Answer(int(first.split()[1]), fields, json.loads(rest) if rest else None)


async def test_the_life_of_a_fault(broker: Broker) -> None:
    """A fault is added, listed, fired, read with its firings, and removed, all in JSON."""
    async with WireClient(f"127.0.0.1:{broker.addresses.kafka[0].port}") as wire:
        await wire.create("t")
        wanted = {"api": "Produce", "topic": "t", "error": "not_leader_or_follower", "times": 1}
        added = await call(broker, "POST", "/v1/faults", wanted)
        shown = {**wanted, "error": "NOT_LEADER_OR_FOLLOWER", "id": 1, "matched": 0, "count": 0, "held": 0, "fired": []}
        assert (added.status, added.headers["location"], added.json) == (201, "/v1/faults/1", shown)
        assert (await call(broker, "GET", "/v1/faults")).json == {"faults": [shown], "max_faults": 1000}
        assert (await wire.produce("t", [b"v"])).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await wire.produce("t", [b"v"])).error_code == ErrorCode.NONE
        found = (await call(broker, "GET", "/v1/faults/1")).json
        assert (found["count"], found["matched"]) == (1, 2)
        (firing,) = found["fired"]
        assert (firing["api"], firing["client_id"], firing["parts"]) == ("Produce", "wire", ["t-0"])
        removed = await call(broker, "DELETE", "/v1/faults/1")
        assert (removed.status, removed.json["count"]) == (200, 1)
        assert (await call(broker, "GET", "/v1/faults/1")).status == 404
        assert (await call(broker, "DELETE", "/v1/faults/1")).status == 404


async def test_all_faults_are_removed_at_once(broker: Broker) -> None:
    """DELETE removes all, even if there are none."""
    assert (await call(broker, "DELETE", "/v1/faults")).json == {"removed": 0}
    for _ in range(3):
        assert (await call(broker, "POST", "/v1/faults", {"drop": True, "client_id": "nobody"})).status == 201
    assert (await call(broker, "DELETE", "/v1/faults")).json == {"removed": 3}
    assert (await call(broker, "GET", "/v1/faults")).json["faults"] == []


async def test_a_test_can_wait_for_a_fault_to_fire(broker: Broker) -> None:
    """The response follows the firing, or is 408 after the timeout."""
    await call(broker, "POST", "/v1/faults", {"api": "Metadata", "throttle_time_ms": 1})
    late = await call(broker, "GET", "/v1/faults/1?wait_fired=1&timeout_ms=10")
    assert late.status == 408
    assert "has fired 0 times within 0.01 s, expected 1" in late.json["error"]
    waiting = asyncio.create_task(call(broker, "GET", "/v1/faults/1?wait_fired=1"))
    async with WireClient(f"127.0.0.1:{broker.addresses.kafka[0].port}") as wire:
        await wire.call(METADATA, 4, {"topics": []})
    assert (await waiting).json["count"] == 1


async def test_what_is_held_is_released(broker: Broker) -> None:
    """POST to `release` answers held requests; the fault stays."""
    await call(broker, "POST", "/v1/faults", {"api": 0, "hold": True})
    async with WireClient(f"127.0.0.1:{broker.addresses.kafka[0].port}") as wire:
        await wire.create("t")
        sent = wire.send(PRODUCE, 9, produce_fields("t", 0, batch_of([b"v"])))
        assert (await call(broker, "GET", "/v1/faults/1?wait_fired=1")).json["held"] == 1
        assert (await call(broker, "POST", "/v1/faults/1/release")).json == {"released": 1}
        assert (await wire.receive(PRODUCE, 9, sent)).responses
    assert (await call(broker, "GET", "/v1/faults/1")).json["held"] == 0


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:9644", 200),
        ("127.0.0.1", 200),
        ("127.0.0.2:1", 200),
        ("[::1]:9644", 200),
        ("kafka.test:9644", 200),
        ("evil.test", 403),
        ("localhost.evil.test:9644", 403),
        ("10.1.2.3:9644", 403),
        ("", 403),
        ("[", 403),
    ],
)
async def test_only_the_brokers_own_names_are_answered(broker: Broker, host: str, status: int) -> None:
    """DNS rebinding sends a foreign Host, which is refused; `/health` answers all."""
    assert (await call(broker, "GET", "/v1/faults", host=host)).status == status
    assert (await call(broker, "GET", "/health", host=host)).status == 200


@pytest.mark.parametrize("path", ["/v1/faults", "/v1/faults/1/release"])
@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "application/jsonx"]
)
async def test_a_form_is_no_json(broker: Broker, content_type: str, path: str) -> None:
    """Requests that a page may send without a preflight are refused, whatever their body."""
    await call(broker, "POST", "/v1/faults", {"drop": True, "client_id": "nobody"})
    headers = f"Content-Type: {content_type}\r\n" if content_type else ""
    answer = await call(broker, "POST", path, {"drop": True}, headers=headers)
    assert (answer.status, "expected application/json" in answer.json["error"]) == (415, True)
    assert len(broker.faults) == 1


async def test_no_other_origin_may_read(broker: Broker) -> None:
    """Neither responses nor preflights have CORS headers."""
    headers = "Origin: http://evil.test\r\nAccess-Control-Request-Method: POST\r\n"
    for method, status in (("OPTIONS", 405), ("GET", 200)):
        answer = await call(broker, method, "/v1/faults", headers=headers)
        assert answer.status == status
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("raw", "status", "message"),
    [
        (b"", 400, "the body is not JSON"),
        (b"{", 400, "the body is not JSON"),
        (b'{"a": {"b": 1, "b": 2}}', 400, "the body is not JSON: a name is given twice in an object"),
        (b"\xff\xfe\x00", 400, "the body is not JSON"),
        (b"[" * 50_000, 400, "the body is not JSON"),
        (b"[1]", 400, "the body is not a JSON object but list"),
        (b"null", 400, "the body is not a JSON object but NoneType"),
        (b"{}", 400, "the fault has no effect"),
        (b'{"errr": 1}', 400, "errr: unknown field"),
        (b'{"error": "NOPE"}', 400, "error: 'NOPE' is unknown"),
        (b'{"error": {"a": 1}}', 400, "error: {'a': 1} is unknown"),
        (b'{"api": {"a": 1}, "drop": true}', 400, "api: {'a': 1} is unknown"),
        (b'{"api": [[]], "drop": true}', 400, "api: [] is unknown"),
        (b'{"delay_ms": 1e9}', 400, "delay_ms: expected an integer"),
        (b'{"delay_ms": 99999999999999999999}', 400, "delay_ms: expected an integer"),
        (b'{"drop": "yes"}', 400, "drop: expected true or false"),
        (b'{"drop": true, "probability": NaN}', 400, "probability: expected a number"),
        (b'{"stale": []}', 400, "stale: expected an object"),
        (b'{"self": 1}', 400, "self: unknown field"),
        (b" " * (MAX_BODY_BYTES + 1), 413, f"expected at most {MAX_BODY_BYTES}"),
    ],
)
async def test_bad_bodies_are_told_what_is_wrong(broker: Broker, raw: bytes, status: int, message: str) -> None:
    """The error is a sentence in JSON, and nothing is installed."""
    answer = await call(broker, "POST", "/v1/faults", raw=raw)
    assert answer.status == status
    assert message in answer.json["error"]
    assert not broker.services.faults.made is not None or not len(broker.faults)


async def test_a_body_without_a_length_is_bounded(broker: Broker) -> None:
    """Chunked bodies are read only up to the limit."""
    assert broker.addresses.http is not None
    reader, writer = await asyncio.open_connection(broker.addresses.http.host, broker.addresses.http.port)
    writer.write(
        b"POST /v1/faults HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n" + JSON_HEADER.encode()
    )
    writer.write(b"\r\n" + (b"4000\r\n" + b" " * 0x4000 + b"\r\n") * 5)
    async with asyncio.timeout(TIMEOUT_S):
        assert b" 413 " in await reader.readline()
    writer.close()


async def test_a_body_that_ends_early_is_nobodys_fault(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """A peer that disconnects early leaves no trace, not even in the log."""
    assert broker.addresses.http is not None
    assert (await call(broker, "GET", "/health")).status == 200
    _, writer = await asyncio.open_connection(broker.addresses.http.host, broker.addresses.http.port)
    writer.write(f"POST /v1/faults HTTP/1.1\r\nHost: localhost\r\n{JSON_HEADER}Content-Length: 100\r\n\r\n".encode())
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await call(broker, "GET", "/v1/faults")).json["faults"] == []
    assert not caplog.records


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/v1/faults", 405),
        ("POST", "/v1/faults/1", 405),
        ("GET", "/v1/faults/1/release", 405),
        ("GET", "/v1/faults/2", 404),
        ("GET", "/v1/faults/x", 404),
        ("GET", "/v1/faults/-1", 404),
        ("GET", "/v1/faults/%D9%A3", 404),
        ("GET", "/v1/faults/" + "9" * 5000, 404),
        ("GET", "/v1/faults/", 404),
        ("GET", "/v1/faults/1/2", 404),
        ("GET", "/v1/other", 404),
        ("GET", "/v1/faults/1?wait_fired=x", 400),
        ("GET", "/v1/faults/1?wait_fired=1&timeout_ms=99999", 400),
    ],
)
async def test_other_paths_and_methods(broker: Broker, method: str, path: str, status: int) -> None:
    """404 for an unknown path, 405 for a method, 400 for an invalid query, each with its reason."""
    await call(broker, "POST", "/v1/faults", {"drop": True, "client_id": "nobody"})
    answer = await call(broker, method, path)
    assert answer.status == status
    assert answer.json["error"]


async def test_too_many_faults_are_a_conflict(broker: Broker) -> None:
    """409 with the limit."""
    for _ in range(MAX_FAULTS - 1):
        broker.faults.add("Fetch", topic="none", drop=True)
    body = {"drop": True, "client_id": "nobody"}
    assert (await call(broker, "POST", "/v1/faults", body)).status == 201
    answer = await call(broker, "POST", "/v1/faults", body)
    assert (answer.status, answer.json["error"]) == (409, f"{MAX_FAULTS} faults are installed, remove some first")
