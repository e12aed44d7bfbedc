"""Changes of a topic over HTTP, and searches of its records."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from diamant.broker.broker import Broker


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with a topic of two partitions, which no cleaner cleans when its turn comes."""
    settings: dict[str, Any] = {"diamant_http_listen": "127.0.0.1:0", "log_cleaner_enable": False}
    async with Broker(data_dir=str(tmp_path / "data"), listen="127.0.0.1:0", **settings) as running:
        await running.create_topic("users", 2, compact=True)
        for number in range(40):
            await running.produce("users", f'{{"city": "c{number % 4}"}}', key=f"k{number % 10}", partition=number % 2)
        yield running


async def post(broker: Broker, path: str, **fields: Any) -> tuple[int, Any]:
    """Send a request; return the status, and the JSON of each line."""
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{broker.http_url}{path}", json=fields) as answer:
            found = [json.loads(line) for line in (await answer.text()).splitlines()]
            return answer.status, found if answer.content_type == "application/x-ndjson" else found[0]


def damage(path: Path) -> None:
    """Overwrite bytes of the first batch."""
    data = path.read_bytes()
    path.write_bytes(data[:40] + b"\xff\xff" + data[42:])


async def test_configurations_are_changed_all_or_none(broker: Broker) -> None:
    """Null resets one; a refused change has no effect, nor does validation."""
    config = broker.node.topics.by_name["users"].logs[0]
    status, found = await post(broker, "/v1/configs", topic="users", set={"retention.ms": "60000"})
    assert (status, found["is_changed"], config.config.retention_ms) == (200, True, 60_000)
    status, _ = await post(broker, "/v1/configs", topic="users", set={"retention.ms": "1000"}, validate_only=True)
    assert (status, config.config.retention_ms) == (200, 60_000)
    for wrong in (
        {"retention.ms": "soon"},
        {"retention.ms": 5},
        {"no.such": "1"},
        {"no.such": None},
        {"diamant.compact": "now"},
    ):
        status, found = await post(broker, "/v1/configs", topic="users", set={"segment.ms": "5", **wrong})
        assert (status, "error" in found) == (400, True)
    assert config.config.segment_ms == 604_800_000
    for is_changed in (True, False):  # the second time nothing is set
        status, found = await post(broker, "/v1/configs", topic="users", set={"retention.ms": None})
        assert (status, found["is_changed"]) == (200, is_changed)
    assert config.config.retention_ms == 604_800_000
    assert (await post(broker, "/v1/configs", topic="none", set={}))[0] == 404


async def test_roll_closes_active_segments(broker: Broker) -> None:
    """A roll closes the active segment of one partition or of all; an empty one stays active."""
    expected = {"topic": "users", "rolled": [{"partition": 1, "active_segment": 20}]}
    assert await post(broker, "/v1/roll", topic="users", partition=1) == (200, expected)
    expected["rolled"] = [{"partition": 0, "active_segment": 20}]
    assert await post(broker, "/v1/roll", topic="users") == (200, expected)
    assert await post(broker, "/v1/roll", topic="users") == (200, {"topic": "users", "rolled": []})
    assert (await post(broker, "/v1/roll", topic="users", partition=2))[0] == 404


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"key": {"text": "k3"}}, [(1, 16), (1, 11), (1, 6), (1, 1)]),
        ({"text": "c2"}, [(0, offset) for offset in range(19, 0, -2)]),
        ({"where": 'value.city == "c0"', "partition": 0, "limit": 3}, [(0, 18), (0, 16), (0, 14)]),
        ({"text": "nowhere"}, []),
    ],
)
async def test_records_are_found(broker: Broker, fields: dict[str, Any], found: list[tuple[int, int]]) -> None:
    """A search goes by key, text or condition, in one partition or all, newest first; a last line ends the search."""
    status, lines = await post(broker, "/v1/find", topic="users", **fields)
    assert (status, [(one["partition"], one["offset"]) for one in lines if "offset" in one]) == (200, found)
    expected = {"is_done": True, "found": len(found), "is_cut": "limit" in fields, "problems": []}
    assert lines[-1] == expected
    assert any(one.get("read_bytes") for one in lines)


async def test_a_search_takes_one_description(broker: Broker) -> None:
    """Two or invalid criteria are refused, none wants all records; long values are cut."""
    assert (await post(broker, "/v1/find", topic="users"))[1][-1]["found"] == 40
    for fields in ({"text": ""}, {"text": "a", "where": "key exists"}, {"where": "value ="}):
        assert (await post(broker, "/v1/find", topic="users", **fields))[0] == 400
    await broker.produce("users", "ü" * 4000, key="long", partition=0)
    _, lines = await post(broker, "/v1/find", topic="users", key={"text": "long"})
    [record] = [one for one in lines if "offset" in one]
    assert (record["value"], record["value_bytes"]) == ({"text": "ü" * 512}, 8000)


async def test_a_damaged_batch_is_reported_and_the_others_are_searched(broker: Broker) -> None:
    """The last line has the offsets that could not be read."""
    log = broker.node.topics.by_name["users"].logs[0]
    await post(broker, "/v1/roll", topic="users", partition=0)
    await broker.produce("users", "after", key="k0", partition=0)
    damage(Path(log.segments[0].path))
    _, lines = await post(broker, "/v1/find", topic="users", key={"text": "k0"})
    assert [(one["partition"], one["offset"]) for one in lines if "offset" in one] == [
        (0, 20),
        (0, 15),
        (0, 10),
        (0, 5),
    ]
    [problem] = lines[-1]["problems"]
    assert problem.startswith("users-0: offset 0 cannot be read, consumers stop here: the checksum of a batch is wrong")
