"""`/v1/faults`: faults for tests in any language. Safety of all paths: tests/broker/http/test_http_safety.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.faults.installed_faults import MAX_FAULTS
from diamant.protocol.errors import ErrorCode
from tests.broker.http_asking import ask
from tests.broker.wire import METADATA, PRODUCE, WireClient, batch_of, produce_fields

DROP = {"drop": True, "client_id": "nobody"}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with HTTP."""
    async with Broker(data_dir=tmp_path, diamant_http_listen="127.0.0.1:0") as running:
        yield running


async def test_the_life_of_a_fault(broker: Broker, wire: WireClient) -> None:
    """A fault is added, listed, fired, read with its firings, and removed, all in JSON."""
    await wire.create("t")
    wanted = {"api": "Produce", "topic": "t", "error": "not_leader_or_follower", "times": 1}
    added = await ask(broker, "POST", "/v1/faults", wanted)
    shown = {**wanted, "error": "NOT_LEADER_OR_FOLLOWER", "id": 1, "matched": 0, "count": 0, "held": 0, "fired": []}
    assert (added.status, added.headers["location"], added.json) == (201, "/v1/faults/1", shown)
    assert (await ask(broker, "GET", "/v1/faults")).json == {"faults": [shown], "max_faults": 1000}
    assert (await wire.produce("t", [b"v"])).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await wire.produce("t", [b"v"])).error_code == ErrorCode.NONE
    found = (await ask(broker, "GET", "/v1/faults/1")).json
    assert (found["count"], found["matched"]) == (1, 2)
    (firing,) = found["fired"]
    assert (firing["api"], firing["client_id"], firing["parts"]) == ("Produce", "wire", ["t-0"])
    removed = await ask(broker, "DELETE", "/v1/faults/1")
    assert (removed.status, removed.json["count"]) == (200, 1)
    assert (await ask(broker, "DELETE", "/v1/faults/1")).status == 404


async def test_all_faults_are_removed_at_once(broker: Broker) -> None:
    """DELETE removes all, even if there are none. Beyond the limit, 409."""
    assert (await ask(broker, "DELETE", "/v1/faults")).json == {"removed": 0}
    for _ in range(MAX_FAULTS - 1):
        broker.faults.add("Fetch", topic="none", drop=True)
    assert (await ask(broker, "POST", "/v1/faults", DROP)).status == 201
    answer = await ask(broker, "POST", "/v1/faults", DROP)
    assert (answer.status, answer.json["error"]) == (409, f"{MAX_FAULTS} faults are installed, remove some first")
    assert (await ask(broker, "DELETE", "/v1/faults")).json == {"removed": MAX_FAULTS}
    assert (await ask(broker, "GET", "/v1/faults")).json["faults"] == []


async def test_a_test_can_wait_for_a_fault_to_fire(broker: Broker, wire: WireClient) -> None:
    """The response follows the firing, or is 504 after the timeout."""
    await ask(broker, "POST", "/v1/faults", {"api": "Metadata", "throttle_time_ms": 1})
    late = await ask(broker, "GET", "/v1/faults/1?wait_fired=1&timeout=10ms")
    assert late.status == 504
    assert "has fired 0 times within 0.01 s, expected 1" in late.json["error"]
    waiting = asyncio.create_task(ask(broker, "GET", "/v1/faults/1?wait_fired=1"))
    await wire.call(METADATA, 4, {"topics": []})
    assert (await waiting).json["count"] == 1


async def test_held_requests_are_released(broker: Broker, wire: WireClient) -> None:
    """POST to `release` answers held requests; the fault stays."""
    await ask(broker, "POST", "/v1/faults", {"api": 0, "hold": True})
    await wire.create("t")
    sent = wire.send(PRODUCE, 9, produce_fields("t", 0, batch_of([b"v"])))
    assert (await ask(broker, "GET", "/v1/faults/1?wait_fired=1")).json["held"] == 1
    assert (await ask(broker, "POST", "/v1/faults/1/release")).json == {"released": 1}
    assert (await wire.receive(PRODUCE, 9, sent)).responses
    assert (await ask(broker, "GET", "/v1/faults/1")).json["held"] == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{}", "the fault has no effect"),
        ('{"errr": 1}', "unknown fields in the body: errr"),
        ('{"error": {"a": 1}}', "error: {'a': 1} is unknown"),
        ('{"api": {"a": 1}, "drop": true}', "api: {'a': 1} is unknown"),
        ('{"api": [[]], "drop": true}', "api: [] is unknown"),
        ('{"delay_ms": 1e9}', "delay_ms: expected"),
        ('{"delay_ms": 99999999999999999999}', "delay_ms: expected"),
        ('{"drop": true, "probability": NaN}', "NaN is not allowed as a number"),
        ('{"self": 1}', "unknown fields in the body: self"),
    ],
)
async def test_bad_fields_are_told_what_is_wrong(broker: Broker, body: str, message: str) -> None:
    """The error is a sentence in JSON, and nothing is installed."""
    answer = await ask(broker, "POST", "/v1/faults", body)
    assert (answer.status, message in answer.json["error"]) == (400, True)
    assert broker.services.faults.made is None or not len(broker.faults)


async def test_other_paths_and_methods(broker: Broker) -> None:
    """An unknown path gets 404, another method 405, an invalid query 400, each with its reason."""
    await ask(broker, "POST", "/v1/faults", DROP)
    for method, path, status in (
        ("PUT", "/v1/faults", 405),
        ("POST", "/v1/faults/1", 405),
        ("GET", "/v1/faults/1/release", 405),
        *(("GET", f"/v1/faults/{one}", 404) for one in ("2", "x", "-1", "%D9%A3", "9" * 5000, "", "1/2")),
        ("GET", "/v1/faults/1?wait_fired=x", 400),
        ("GET", "/v1/faults/1?wait_fired=1&timeout=99", 400),
    ):
        answer = await ask(broker, method, path)
        assert answer.status == status, path
        assert answer.json["error"]
