"""The states of share partitions as brokers ask each other for them: as Kafka's, and for holders of CLUSTER_ACTION."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from diamant.protocol.errors import ErrorCode
from tests.broker.groups.share.share_cases import FIRST
from tests.broker.groups.share.share_requests import RELEASE, acquired, code
from tests.broker.groups.share.state_cases import WRITE, state_answers
from tests.broker.groups.share.test_share_wire import ONE_STATE_PARTITION, member, sharing
from tests.broker.running import running
from tests.broker.wire import FIND_COORDINATOR
from tests.memory_env import MemoryEnv

GOLDEN = Path(__file__).parents[3] / "golden" / "groups" / "share_states_4.3.1.json"
KAFKAS: dict[str, object] = json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def ours() -> dict[str, object]:
    """Our answers to all cases."""

    async def ask() -> dict[str, object]:
        async with running(MemoryEnv(), **ONE_STATE_PARTITION) as (_, wire):
            return await state_answers(wire)

    return asyncio.run(ask())


@pytest.mark.parametrize("name", KAFKAS)
def test_the_state_is_answered_as_by_kafka(ours: dict[str, object], name: str) -> None:
    """Epochs, offsets, batches, error codes and messages are those of Kafka 4.3.1."""
    assert ours[name] == KAFKAS[name]


async def test_a_write_from_outside_takes_effect_under_the_members() -> None:
    """What they hold is dropped, and the next fetch follows the written state; it survives a start."""
    env = MemoryEnv()
    async with sharing(env) as (broker, wire):
        one = member(broker, wire)
        await wire.produce("t", [b"v"] * 5)
        await one.wait_until_assigned()
        assert acquired(await one.fetch()) == [[0, 4, 1]]
        assert code(await one.acknowledge([(4, 4, [RELEASE])])) == 0
        batch = {"first_offset": 1, "last_offset": 2, "delivery_state": 2, "delivery_count": 1}
        epochs = {"state_epoch": -1, "leader_epoch": -1, "start_offset": 1, "delivery_complete_count": 2}
        partitions = [{"partition": 0, **epochs, "state_batches": [batch]}]
        topics = [{"topic_id": one.topic_id, "partitions": partitions}]
        answer = await wire.call(WRITE, 1, {"group_id": "g", "topics": topics})
        assert int(answer.results[0].partitions[0].error_code) == 0
        assert acquired(await one.fetch(adds=False)) == [[3, 3, 1], [4, 4, 2]]
    async with running(env, **ONE_STATE_PARTITION) as (broker, wire):
        await broker.services.groups().loaded()
        two = member(broker, wire, FIRST)
        assert acquired(await two.fetch())[0][:2] == [3, 3]


@pytest.mark.parametrize("key", ["g:t:0", "g", ":AAAAAAAAAAAAAAAAAAAAAQ:0", "g:AAAAAAAAAAAAAAAAAAAAAQ:x", ""])
async def test_a_coordinator_is_of_a_share_partition(key: str) -> None:
    """FindCoordinator of type 2 wants a group, a topic's id and a partition; other keys are INVALID_REQUEST, as in Kafka."""
    async with sharing(MemoryEnv()) as (_, wire):
        known = "g:AAAAAAAAAAAAAAAAAAAAAQ:0"
        answer = await wire.call(FIND_COORDINATOR, 6, {"key_type": 2, "coordinator_keys": [key, known]})
        codes = [int(one.error_code) for one in answer.coordinators]
        assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
