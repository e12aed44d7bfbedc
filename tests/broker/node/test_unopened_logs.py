"""A broker one of whose logs cannot be opened at a start: what is known of it is there when it can be opened again."""

from __future__ import annotations

from pathlib import Path

from diamant.broker.broker import Broker
from diamant.protocol.errors import ErrorCode
from tests.broker.node.test_cleaning import SMALL, checkpoint, config, fill, produce, read
from tests.broker.wire import DELETE_TOPICS, WireClient


async def prepare(path: Path) -> dict[tuple[str, int], int]:
    """Run a broker that cleans its topic, and stop it; then have that log not open. What the cleaner's checkpoint says."""
    async with Broker(config(path)) as broker, WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t", **SMALL)
        await wire.create("other")
        await fill(wire, "t", 100)
        await (await broker.services.cleaning.service()).settled()
    (path / "t-0" / "leader-epoch-checkpoint").rename(path / "kept")
    (path / "t-0" / "leader-epoch-checkpoint").write_text("not one")
    return checkpoint(path)


async def test_the_cleaner_keeps_its_checkpoint(tmp_path: Path) -> None:
    """What is clean is not dirty again, and the others are served meanwhile."""
    before = await prepare(tmp_path)
    assert before["t", 0] > 0
    async with Broker(config(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as wire:
        assert broker.node.directory.unopened == {("t", 0)}
        await (await broker.services.cleaning.service()).settled()
        await produce(wire, "other", "k=v")
    assert checkpoint(tmp_path) == before
    (tmp_path / "kept").rename(tmp_path / "t-0" / "leader-epoch-checkpoint")
    async with Broker(config(tmp_path)) as broker:
        assert not broker.node.directory.failures
        assert (await broker.services.cleaning.service()).states.checkpoint(("t", 0)) == before["t", 0]


async def test_its_topic_can_be_deleted_and_made_anew(tmp_path: Path) -> None:
    """The new one has nothing of the old one."""
    await prepare(tmp_path)
    async with Broker(config(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as wire:
        answer = await wire.call(DELETE_TOPICS, 5, {"topic_names": ["t"], "timeout_ms": 1000})
        assert answer.responses[0].error_code == ErrorCode.NONE
        assert not broker.node.directory.failures
        assert (await wire.create("t", **SMALL)).error_code == ErrorCode.NONE
        await produce(wire, "t", "k=new")
        assert await read(wire, "t") == [(0, "k", "new")]
    async with Broker(config(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as wire:
        assert broker.node.directory.was_clean
        assert await read(wire, "t") == [(0, "k", "new")]
