"""Reads over HTTP: each has a line in the audit file, and none in the log of a broker."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from tests.broker.http_asking import ask

READS = [
    ("POST", "/v1/find", {"topic": "t", "text": "v"}),
    ("POST", "/v1/latest", {"topic": "t"}),
    ("POST", "/v1/explain", {"topic": "t", "key": {"text": "k"}}),
    ("POST", "/v1/ghosts", {"topic": "t"}),
    ("GET", "/topics/t/0", None),
    ("GET", "/topics/t/0/0", None),
]
UNAUDITED = [
    ("GET", "/v1/status", None),
    ("POST", "/v1/count", {"topic": "t"}),
    ("POST", "/v1/explain", {"topic": "t"}),
]


async def test_a_read_leaves_no_line_in_the_log_of_a_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At INFO, the default, the log has changes alone: pages and tests that poll do not fill it."""
    file = tmp_path / "audit.log"
    settings = {"diamant_http_listen": "127.0.0.1:0", "diamant_audit_file": str(file)}
    async with Broker(data_dir=tmp_path / "data", **settings) as broker:
        await broker.create_topic("t")
        await broker.produce("t", "v", key="k")
        with caplog.at_level(logging.INFO):
            for method, path, fields in [*READS, *UNAUDITED, ("POST", "/v1/roll", {"topic": "t"})]:
                answer = await ask(broker, method, path, fields)
                assert answer.status == 200, (path, answer.body)
        logged = [json.loads(one.message)["what"] for one in caplog.records if one.name == "diamant.audit"]
    assert logged == ["POST /v1/roll"]
    written = {json.loads(line)["what"] for line in file.read_text().splitlines()}
    assert written == {
        "POST /v1/find",
        "POST /v1/latest",
        "POST /v1/explain",
        "POST /v1/ghosts",
        "GET /topics/{topic}/{partition}",
        "GET /topics/{topic}/{partition}/{offset}",
        "POST /v1/roll",
    }
