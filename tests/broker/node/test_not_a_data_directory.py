"""Starts on foreign directories, and with logs that cannot be opened, lose nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.cannot_start import CannotStart
from diamant.broker.config.broker_config import BrokerConfig
from diamant.protocol.errors import ErrorCode
from tests.broker.compacted import SMALL, checkpoint, config, fill, produce, read
from tests.broker.wire import DELETE_TOPICS, WireClient


def contents(place: Path) -> dict[str, bytes | None]:
    """Return every file and directory below a place."""
    return {
        str(path.relative_to(place)): path.read_bytes() if path.is_file() else None for path in sorted(place.rglob("*"))
    }


def refusal(place: Path) -> str:
    """Return the error of a start."""

    async def start() -> None:
        async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=place)):
            raise AssertionError("it started")

    with pytest.raises(CannotStart) as raised:
        asyncio.run(start())
    return str(raised.value)


@pytest.mark.parametrize("foreign", [".git", "src", "photos-2024", "to-delete", "mail-1.old-delete", "x-stray"])
def test_somebody_s_own_directory_is_left_as_it_is(tmp_path: Path, foreign: str) -> None:
    """Whatever its directories are called: none is set aside or removed, and nothing is added."""
    (tmp_path / foreign).mkdir()
    (tmp_path / foreign / "a.txt").write_text("mine")
    (tmp_path / "README").write_text("mine")
    before = contents(tmp_path)
    wanted = f"{tmp_path}: not a data directory, it holds {foreign!r}; choose an empty or a new directory. Nothing was changed"
    assert refusal(tmp_path) == wanted
    assert contents(tmp_path) == before


@pytest.mark.parametrize("foreign", ["lost+found", "to-delete"])
async def test_a_data_directory_with_something_else_in_it(tmp_path: Path, foreign: str) -> None:
    """Such a directory is refused, as in Kafka, with a remedy, and unchanged, including its clean shutdown file."""
    async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path)):
        pass
    (tmp_path / foreign).mkdir()
    before = contents(tmp_path)
    said = await asyncio.to_thread(refusal, tmp_path)
    assert said.startswith(f"{tmp_path}/{foreign}: directory {foreign!r}: expected topic-partition")
    assert said.endswith("; move it out of the log directory")
    assert contents(tmp_path) == before


async def prepare(path: Path) -> dict[tuple[str, int], int]:
    """Run a broker that cleans its topic, and stop it; make that log unreadable. Return the cleaner's checkpoint."""
    async with Broker(config(path)) as broker, WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t", **SMALL)
        await wire.create("other")
        await fill(wire, "t", 100)
        await (await broker.services.cleaning.service()).settled()
    (path / "t-0" / "leader-epoch-checkpoint").rename(path / "kept")
    (path / "t-0" / "leader-epoch-checkpoint").write_text("not one")
    return checkpoint(path)


async def test_the_cleaner_keeps_its_checkpoint(tmp_path: Path) -> None:
    """The clean part stays clean, and the other logs are served."""
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


async def test_the_topic_can_be_deleted_and_created_again(tmp_path: Path) -> None:
    """The new one is empty."""
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
