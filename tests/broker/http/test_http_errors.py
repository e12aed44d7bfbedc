"""Error responses of all HTTP paths: one shape, with a code of `operation_errors.KINDS` and its status."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.operation_errors import KINDS, no_group, no_partition, no_topic
from diamant.protocol.errors import KafkaError
from release.reference.pages import routes
from tests.broker.http_asking import ask

JSON = {"Content-Type": "application/json"}
OTHER_STATUSES = {415: "bad-argument", 408: "timed-out"}
PATHS = sorted({(row.method, row.path) for row in routes() if row.path != "/metrics"})
TAKES_ANY_QUERY = {row.path for row in routes() if row.takes_any_query}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with HTTP and a topic."""
    async with Broker(data_dir=tmp_path, diamant_http_listen="127.0.0.1:0", auto_create_topics_enable=False) as running:
        await running.create_topic("users", compact=True)
        yield running


def check(status: int, found: Mapping[str, Any]) -> None:
    """Check the shape of an error."""
    assert {*found} >= {"error", "code"}, found
    assert status == KINDS[found["code"]].status or OTHER_STATUSES.get(status) == found["code"], (status, found)


async def test_every_path_refuses_in_one_shape(broker: Broker) -> None:
    """What is not there, is not declared as JSON, or has an unknown parameter or field."""
    refused = 0
    for method, template in PATHS:
        path = re.sub(r"\{\w+\}", "no-such", template)
        requests: list[tuple[str, str, object, dict[str, str | None] | None]] = [
            (method, f"{path}?no-such=1", {} if method in ("POST", "PUT") else None, None)
        ]
        if method in ("POST", "PUT"):
            requests += [(method, path, {"no-such": 1}, None), (method, path, "[", JSON), (method, path, "x", {})]
        for one in requests:
            answer = await ask(broker, one[0], one[1], one[2], headers=one[3])
            if answer.status < 400:
                assert template in TAKES_ANY_QUERY, one
                continue
            check(answer.status, answer.json)
            refused += 1
        other = await ask(broker, "PATCH", path, None)
        check(other.status, other.json)
    assert refused > len(PATHS)
    check(404, (await ask(broker, "GET", "/v1/no-such")).json)


async def test_missing_subjects_have_one_wording(broker: Broker) -> None:
    """A missing topic, partition or group is described in the same words over HTTP, on the page and in Python."""
    topic = no_topic("none")
    for path, fields in (
        ("/v1/compact", {}),
        ("/v1/count", {}),
        ("/v1/roll", {}),
        ("/v1/latest", {}),
        ("/v1/configs", {"set": {}}),
        ("/v1/produce", {"value": "v"}),
        ("/v1/segments", {}),
        ("/v1/redact", {"where": "key exists", "reason": "r"}),
        ("/v1/explain", {}),
    ):
        assert (await ask(broker, "POST", path, {"topic": "none", **fields})).json["error"] == topic, path
        if path not in ("/v1/configs", "/v1/redact"):
            found = (await ask(broker, "POST", path, {"topic": "users", "partition": 7, **fields})).json
            assert found["error"] == no_partition("users", 7, 1), path
    erased = await ask(broker, "POST", "/v1/erase", {"topics": ["none"], "key": "k", "reason": "r"})
    assert erased.json["error"] == topic
    reset = await ask(broker, "POST", "/v1/groups/none/offsets", {"topic": "users", "to": "start"})
    assert reset.json["error"] == no_group("none")
    for path, said in (("/topics/none", topic), ("/groups/none", no_group("none"))):
        assert said.partition(":")[0].replace("'", "&#39;") in (await ask(broker, "GET", path)).body.decode()
    for work in (broker.produce("none", "v", key="k"), broker.compact("none"), broker.count("none")):
        with pytest.raises(Exception, match="there is no topic 'none': `diamant topic list` lists"):
            await asyncio.wait_for(work, 60)
    with pytest.raises(KafkaError, match="topic 'users' has no partition 7: it has only partition 0"):
        await broker.produce("users", "v", key="k", partition=7)
