"""A broker that is killed while topics are created or deleted: a start on a copy of the disk made before each change."""

from __future__ import annotations

import pytest

from tests import effort
from tests.broker.running import running
from tests.broker.wire import DELETE_TOPICS, WireClient
from tests.memory_env import Loss, MemoryEnv

DATA = "/data"


async def cuts_of(*, deletes: bool) -> list[MemoryEnv]:
    """Create a topic and delete it, with a copy of the disk before every change of one of the two."""
    env = MemoryEnv()
    cuts: list[MemoryEnv] = []
    async with running(env, log_segment_delete_delay_ms=0) as (_, wire):
        env.before_change = None if deletes else lambda: cuts.append(env.copy())
        await wire.create("t", 2)
        await wire.produce("t", [b"of t"])
        env.before_change = (lambda: cuts.append(env.copy())) if deletes else None
        await delete(wire)
        env.before_change = None
    return cuts


async def delete(wire: WireClient) -> None:
    """Delete the topic."""
    await wire.call(DELETE_TOPICS, 6, {"topics": [{"name": "t", "topic_id": None}], "timeout_ms": 1000})


@pytest.mark.parametrize("loss", [None, Loss(1, 0), Loss(0.5, 0.5)], ids=["killed", "content lost", "half lost"])
@pytest.mark.parametrize("deletes", [False, True], ids=["created", "deleted"])
async def test_nothing_is_set_aside(deletes: bool, loss: Loss | None) -> None:
    """The topic is there with both partitions or is not, and no directory of it stays behind: it would hold up every
    certificate of a topic of that name. So it is after a loss of power.
    """
    cuts = await cuts_of(deletes=deletes)
    assert len(cuts) > 5
    for env in effort.some(cuts, every=5):
        if loss is not None:
            env.crash(loss)
        async with running(env, log_segment_delete_delay_ms=0) as (broker, _):
            there = [log.partition for log in broker.node.directory.logs.values() if log.topic == "t"]
            assert sorted(there) in ([], [0, 1])
            assert [name for name in env.list_dir(DATA) if name.endswith("-stray")] == []
