"""Requests that name thousands of topics, partitions or resources are answered as small ones, and others do not wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kio.serial import entity_reader

from diamant.broker.handlers.configs.describe_configs import MAX_JOINED_BYTES
from diamant.broker.network.turns import SLICE_S, in_slices
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.schemas import response_class
from tests.broker.wire import API_VERSIONS, DESCRIBE_CONFIGS, LIST_OFFSETS, METADATA, WireClient

MANY = 20_000


def list_offsets(count: int) -> dict[str, Any]:
    """Return a request for partitions of `t`, of which there is one."""
    partitions = [{"partition_index": number, "timestamp": -1} for number in range(count)]
    return {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": partitions}]}


def metadata(count: int) -> dict[str, Any]:
    """Return a request for `t` and for topics that do not exist."""
    names = ["t", *(f"missing-{number}" for number in range(count - 1))]
    return {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": False}


@pytest.mark.parametrize(("key", "version", "fields"), [(LIST_OFFSETS, 5, list_offsets), (METADATA, 8, metadata)])
async def test_others_do_not_wait_for_a_large_request(wire: WireClient, key: int, version: int, fields: Any) -> None:
    """Another client's request is answered first; then each part of the large one, as in a small one."""
    await wire.create("t")
    small = await wire.call(key, version, fields(2))
    address = f"{wire._host}:{wire._port}"
    async with WireClient(address) as other:
        answered: list[str] = []

        async def ask_much() -> Any:
            answer = await wire.call(key, version, fields(MANY))
            answered.append("large")
            return answer

        async def ask_little() -> None:
            await other.call(API_VERSIONS, 2, {})
            answered.append("small")

        large, _ = await asyncio.gather(ask_much(), ask_little())
    assert answered == ["small", "large"]
    if key == METADATA:
        assert large.topics[0] == small.topics[0]
        assert [str(topic.name) for topic in large.topics[1:]] == [f"missing-{number}" for number in range(MANY - 1)]
        assert {topic.error_code for topic in large.topics[1:]} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    else:
        assert large.topics[0].partitions[:2] == small.topics[0].partitions
        assert [part.partition_index for part in large.topics[0].partitions] == [*range(MANY)]


@pytest.mark.parametrize("in_parts", [False, True])
async def test_many_resources_are_described_as_one_is(wire: WireClient, in_parts: bool) -> None:
    """Each resource of a large DescribeConfigs is described as in a request of its own, whether or not it is sent in parts."""
    await wire.create("t")
    await wire.create("compacted", cleanup_policy="compact")
    resources = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": None}
        for kind, name in ((2, "t"), (2, "compacted"), (2, "missing"), (4, "1"))
    ]
    fields = {"include_synonyms": True, "include_documentation": in_parts}
    single = [
        (await wire.call(DESCRIBE_CONFIGS, 4, fields | {"resources": [resource]})).results[0] for resource in resources
    ]
    count = 16 if in_parts else 2
    wire.send(DESCRIBE_CONFIGS, 4, fields | {"resources": resources * count})
    _, body = await wire.receive_frame()
    assert (len(body) > MAX_JOINED_BYTES) is in_parts
    many, _ = entity_reader(response_class(DESCRIBE_CONFIGS, 4))(body, 1)
    assert [*many.results] == single * count


async def test_slices_give_way() -> None:
    """After each slice of time others have their turn."""
    turns, is_over = 0, False

    async def others() -> None:
        nonlocal turns
        while not is_over:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    loop = asyncio.get_running_loop()
    async for _ in in_slices(range(5)):
        until_s = loop.time() + 2 * SLICE_S
        while loop.time() < until_s:
            pass
    is_over = True
    await beside
    assert turns >= 5
