"""A recreated topic: the checkpoints of the deleted one do not apply to it."""

from __future__ import annotations

import shutil
from pathlib import Path

from diamant.broker.broker import Broker
from diamant.protocol.errors import ErrorCode
from diamant.storage.checkpoints.checkpoints import read_offset_checkpoint
from tests.broker.compacted import config, produce, read
from tests.broker.wire import DELETE_TOPICS, WireClient


async def test_a_kill_soon_after_it(tmp_path: Path) -> None:
    """The old log began at offset 20; recovery does not empty a new one that ends before that."""
    path, left = tmp_path / "data", tmp_path / "left"
    async with Broker(config(path)) as broker, WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t")
        for number in range(30):
            await produce(wire, "t", f"k={number}")
        log = broker.node.topics.log("t", 0)
        log.delete_records(20)
        log.flush()
        await broker.services.housekeeping.write_checkpoints()
        checkpoint = f"{path}/log-start-offset-checkpoint"
        assert read_offset_checkpoint(broker.env, checkpoint) == {("t", 0): 20}
        answer = await wire.call(DELETE_TOPICS, 5, {"topic_names": ["t"], "timeout_ms": 1000})
        assert answer.responses[0].error_code == ErrorCode.NONE
        assert (await wire.create("t")).error_code == ErrorCode.NONE
        await produce(wire, "t", "k=new")
        # As a kill leaves it.
        shutil.copytree(path, left, ignore=shutil.ignore_patterns(".lock"))
    async with Broker(config(left)) as broker, WireClient(broker.bootstrap_servers) as wire:
        assert not broker.node.directory.was_clean
        assert await read(wire, "t") == [(0, "k", "new")]
