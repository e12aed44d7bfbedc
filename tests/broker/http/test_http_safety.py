"""Safety of HTTP: hosts, content types, tokens, and validation before any effect."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.listeners import Listener
from diamant.broker.dispatch.operation_row import MAX_BODY_BYTES
from diamant.broker.dispatch.operation_table import OPERATIONS
from diamant.broker.http.serving.openapi import document
from diamant.broker.http.serving.route import Route, route_of
from diamant.broker.http.serving.routes import Routes
from diamant.broker.http.serving.token import Token, TokenCheck
from tests.broker.http_asking import TIMEOUT_S, ask, connect

TOKEN = "0123456789abcdef-secret"
ADVANCE = {"by_ms": 1}


@asynccontextmanager
async def running(path: Path, listen: str = "127.0.0.1:0", **config: Any) -> AsyncIterator[Broker]:
    """A broker with HTTP and a manual clock."""
    settings = {"diamant_http_listen": listen, "diamant_clock": "manual", **config}
    async with Broker(data_dir=path / "data", **settings) as broker:
        yield broker


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """A token file that only its owner can read."""
    path = tmp_path / "token"
    path.write_text(f"  {TOKEN}\n")
    path.chmod(0o600)
    return path


def bearer(token: str) -> dict[str, str | None]:
    """Return the header with a token."""
    return {"Authorization": f"Bearer {token}"}


# -- browsers ------------------------------------------------------------------------------------------------------------


HOSTS = {
    **dict.fromkeys(("localhost", "LOCALHOST:9644", "127.0.0.1", "127.0.0.2:1", "[::1]:9644", "kafka.test:9644"), 200),
    **dict.fromkeys(("evil.test", "localhost.evil.test:9644", "127.0.0.1.evil.test", "10.1.2.3:9644", "", "["), 403),
}


async def test_only_the_brokers_own_names_are_answered(tmp_path: Path) -> None:
    """DNS rebinding sends a foreign Host, which is refused by the API and the page; `/health` answers all."""
    async with running(tmp_path, advertised_listeners="PLAINTEXT://kafka.test:9092") as broker:
        for host, status in HOSTS.items():
            for path in ("/v1/clock", "/v1/faults", "/v1/openapi.json", "/"):
                assert (await ask(broker, "GET", path, headers={"Host": host})).status == status, (host, path)
            assert (await ask(broker, "GET", "/health", headers={"Host": host})).status == 200


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx", "", None],
)
async def test_a_form_cannot_move_the_clock(broker: Broker, content_type: str | None) -> None:
    """Requests that a page may send without a preflight are refused before any effect, whatever their body."""
    before = broker.clock.state().to_fields()["ahead_ms"]
    for path, fields in (("/v1/clock/advance", {"by_ms": 3_600_000}), ("/v1/clock/freeze", {})):
        answer = await ask(broker, "POST", path, fields, headers={"Content-Type": content_type})
        assert (answer.status, "expected application/json" in answer.json["error"]) == (415, True)
    assert abs(broker.clock.state().to_fields()["ahead_ms"] - before) < 1_800_000


async def test_other_origins_are_told_nothing(broker: Broker) -> None:
    """Neither responses nor preflights allow another origin to read."""
    for method, path in (("GET", "/v1/clock"), ("OPTIONS", "/v1/clock/advance"), ("POST", "/v1/clock/advance")):
        answer = await ask(broker, method, path, {}, headers={"Origin": "http://evil.example"})
        assert not [name for name in answer.headers if name.startswith("access-control")]
    assert (await ask(broker, "OPTIONS", "/v1/clock/advance")).status == 405


# -- the token -----------------------------------------------------------------------------------------------------------


async def test_a_token_is_asked_for_where_there_is_one(tmp_path: Path, token_file: Path) -> None:
    """A missing or wrong token gets 401; reading needs none; the right token allows the request."""
    async with running(tmp_path, diamant_http_token_file=str(token_file)) as broker:
        assert (await ask(broker, "GET", "/v1/clock")).status == 200
        wrong: list[dict[str, str | None]] = [
            {},
            bearer("x"),
            bearer(""),
            bearer(TOKEN[:-1]),
            bearer(TOKEN + "x"),
            bearer("\xff" * 20),
            {"Authorization": TOKEN},
            {"Authorization": f"Basic {TOKEN}"},
        ]
        for headers in wrong:
            answer = await ask(broker, "POST", "/v1/clock/advance", ADVANCE, headers=headers)
            assert (answer.status, answer.json["code"]) == (401, "unauthorized")
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert TOKEN not in answer.body.decode()
        assert (await ask(broker, "POST", "/v1/clock/advance", ADVANCE, headers=bearer(TOKEN))).status == 200
        assert (await ask(broker, "POST", "/v1/faults", {"delay_ms": 1})).status == 401


async def test_elsewhere_than_loopback_nothing_changes_without_a_token(tmp_path: Path) -> None:
    """On all interfaces without a token, changes are refused to all, with the remedy."""
    async with running(tmp_path, listen=":0") as broker:
        assert (await ask(broker, "GET", "/v1/clock")).status == 200
        answer = await ask(broker, "POST", "/v1/clock/advance", ADVANCE, headers=bearer(TOKEN))
        assert (answer.status, answer.json["code"]) == (403, "not-allowed")
        assert "diamant.http.token.file" in answer.json["error"]


async def test_http_for_everybody_without_a_token_is_warned_of(
    tmp_path: Path, token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At startup, one warning lists what clients can do and the remedy. None on loopback; with a token only a hint at TLS."""
    listen = "0.0.0.0:0"

    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]

    async with running(tmp_path):
        pass
    assert warnings() == []
    async with running(tmp_path, diamant_http_token_file=str(token_file), listen=listen):
        pass
    assert ["has no TLS: its token can be intercepted" in warning for warning in warnings()] == [True]
    caplog.clear()
    async with running(tmp_path, listen=listen) as broker:
        assert (await ask(broker, "GET", "/v1/clock")).status == 200
        (warning,) = warnings()
        assert broker.addresses.http_bound is not None
        bound = f"{listen.removesuffix('0')}{broker.addresses.http_bound.port}"
        assert warning.startswith(f"HTTP is open to every client that reaches {bound}")
        assert "can read metrics, status, certificates" in warning
        assert "diamant.http.token.file" in warning
        assert (await ask(broker, "GET", "/v1/status")).json["http_address"] == bound


async def test_a_missing_token_file_opens_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A missing token file has the same effect."""
    async with running(tmp_path, diamant_http_token_file=str(tmp_path / "none")) as broker:
        assert (await ask(broker, "POST", "/v1/clock/advance", ADVANCE)).status == 403
    assert "No such file" in caplog.text


async def test_a_token_that_others_can_read_is_warned_of(
    tmp_path: Path, token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Startup warns of a readable token file and uses it; mode 0600 gives no warning."""
    async with running(tmp_path, diamant_http_token_file=str(token_file)):
        assert "chmod 600" not in caplog.text
    os.chmod(token_file, 0o644)
    async with running(tmp_path, diamant_http_token_file=str(token_file)) as broker:
        assert "has mode 0644" in caplog.text
        assert (await ask(broker, "POST", "/v1/clock/advance", ADVANCE, headers=bearer(TOKEN))).status == 200
    assert TOKEN not in caplog.text


async def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison is the library's, never ==."""
    compared: list[tuple[bytes, bytes]] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return False

    monkeypatch.setattr(hmac, "compare_digest", compare)
    check = TokenCheck(is_needed=True, tokens=[Token(TOKEN.encode())])
    assert check.refusal(f"Bearer {TOKEN}") is not None
    assert compared == [(TOKEN.encode(), TOKEN.encode())]


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        *((host, True) for host in ("127.0.0.1", "127.8.9.1", "::1", "localhost")),
        *((host, False) for host in ("", "0.0.0.0", "::", "10.0.0.1", "example.org", "127.0.0.1.example.org")),
    ],
)
def test_loopback_is_only_this_machine(host: str, is_loopback: bool) -> None:
    """Loopback is what only this machine can reach: not all interfaces, other addresses, or any names."""
    assert Listener("HTTP", host, 0).is_loopback == is_loopback


# -- what is checked -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"by_ms": "1"},
        {"by_ms": 1.5},
        {"by_ms": True},
        {"by_ms": -1},
        {"by_ms": 1 << 70},
        {"by": 5},
        {"by": "8 parsecs"},
        {"by": "1d", "by_ms": 1},
        {},
        {"by_ms": 1, "sessions": "yes"},
        {"by_ms": 1, "unknown": 1},
        {"by_ms": 1, "timeout": "soon"},
    ],
    ids=str,
)
async def test_fields_are_checked(broker: Broker, fields: dict[str, Any]) -> None:
    """A wrong type, range or name gets 400 with the field, and has no effect."""
    ahead_ms = broker.clock.state().to_fields()["ahead_ms"]
    answer = await ask(broker, "POST", "/v1/clock/advance", fields)
    assert (answer.status, answer.json["code"]) == (400, "bad-argument")
    assert abs(broker.clock.state().to_fields()["ahead_ms"] - ahead_ms) <= 1


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ("", 400, "the body is not JSON"),
        ("{", 400, "the body is not JSON"),
        ("\x00", 400, "the body is not JSON"),
        ("[" * 50_000, 400, "the body is not JSON"),
        ('{"a": {"b": 1, "b": 2}}', 400, "the body is not JSON: a name is given twice in an object"),
        ("[1]", 400, "the body is not a JSON object but list"),
        ("null", 400, "the body is not a JSON object but NoneType"),
        (" " * (MAX_BODY_BYTES + 1), 413, f"expected at most {MAX_BODY_BYTES}"),
    ],
)
async def test_a_body_is_an_object(broker: Broker, body: str, status: int, message: str) -> None:
    """Any other, and one beyond the limit, is refused with a sentence in JSON."""
    answer = await ask(broker, "POST", "/v1/compact", body)
    assert (answer.status, message in answer.json["error"]) == (status, True)


async def test_a_body_without_a_length_is_bounded(broker: Broker) -> None:
    """Chunked bodies are read only up to the limit."""
    reader, writer = await connect(broker)
    head = b"POST /v1/faults HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    chunks = (b"4000\r\n" + b" " * 0x4000 + b"\r\n") * 5
    writer.write(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
    async with asyncio.timeout(TIMEOUT_S):
        assert b" 413 " in await reader.readline()
    writer.close()


async def test_a_body_that_ends_early_leaves_no_trace(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """A peer that disconnects early is not even in the log."""
    assert (await ask(broker, "GET", "/health")).status == 200
    _, writer = await connect(broker)
    head = (
        "POST /v1/faults HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    )
    writer.write(head.encode())
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await ask(broker, "GET", "/v1/faults")).json["faults"] == []
    assert not caplog.records


async def test_a_body_may_be_left_out(broker: Broker) -> None:
    """A request without required fields needs no body."""
    assert (await ask(broker, "POST", "/v1/clock/freeze")).json["is_frozen"] is True
    assert (await ask(broker, "POST", "/v1/clock/resume", {})).json["is_frozen"] is False


# -- the document --------------------------------------------------------------------------------------------------------


async def documented_routes(broker: Broker) -> list[Route]:
    """Return all routes except the page's."""
    routes = Routes(broker.services, 0.0, TokenCheck(is_needed=False))
    return [row for row in await routes.table.load_all() if row.refuse is None]


async def test_every_route_is_in_the_document(broker: Broker) -> None:
    """The document has exactly the served paths, methods and parameters, and its references resolve."""
    found = (await ask(broker, "GET", "/v1/openapi.json")).json
    assert found["openapi"].startswith("3.1.")
    rows = await documented_routes(broker)
    expected = {(row.path, row.method.lower()) for row in rows}
    assert {(path, method) for path, methods in found["paths"].items() for method in methods} == expected
    assert {"/metrics", "/health", "/v1/clock", "/v1/clock/advance", "/v1/jobs/{id}", "/v1/faults/{id}"} <= set(
        found["paths"]
    )
    for row in rows:
        operation = found["paths"][row.path][row.method.lower()]
        names = {parameter["name"] for parameter in operation["parameters"]}
        steps = {step[1:-1] for step in row.path.split("/") if step.startswith("{")}
        assert names == steps | {param.name for param in row.query} | ({"wait_ms"} if row.is_job else set())
        if row.fields:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            assert set(schema["properties"]) == {param.name for param in row.fields}
        assert ("security" in operation) == row.changes_data
        assert ("202" in operation["responses"]) == row.is_job
    ids = [operation["operationId"] for methods in found["paths"].values() for operation in methods.values()]
    assert len(set(ids)) == len(ids)
    text = json.dumps(found)
    for schema in ("Error", "Job", "Key"):
        assert f"#/components/schemas/{schema}" in text or schema == "Key"
        assert schema in found["components"]["schemas"]


async def test_every_route_is_in_the_pages(broker: Broker) -> None:
    """docs/reference/http.md has each method and path."""
    page = (Path(__file__).parents[3] / "docs" / "reference" / "http.md").read_text()
    rows = await documented_routes(broker)
    assert [f"{row.method} {row.path}" for row in rows if f"`{row.method} {row.path}`" not in page] == []


async def test_every_route_lies_below_its_modules_path(broker: Broker) -> None:
    """A route that lay elsewhere would be found only after another import. Routes that change data are not GET."""
    routes = Routes(broker.services, 0.0, TokenCheck(is_needed=False))
    for row in await routes.table.load_all():
        module = routes.table._module_of(row.path)
        assert module is None or row.operation is not None or row in routes.table._modules[module].ROUTES
        assert not (row.changes_data and row.method == "GET" and row.refuse is None)


def test_a_token_that_is_needed_is_in_the_document() -> None:
    """The document says whether a verb needs a token."""
    routes = [route_of(OPERATIONS[name]) for name in ("clock", "clock.advance")]
    cases: list[tuple[bool, list[dict[str, list[str]]]]] = [(True, [{"token": []}]), (False, [{"token": []}, {}])]
    for needs_token, expected in cases:
        found = document(routes, needs_token=needs_token)
        assert found["paths"]["/v1/clock/advance"]["post"]["security"] == expected
        assert "security" not in found["paths"]["/v1/clock"]["get"]
