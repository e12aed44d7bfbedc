"""Snapshots are those of the real data directory, by whatever name the broker was started."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from diamant.broker.broker import Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.operation_errors import NotPossible
from tests.broker.snapshots.copied import config
from tests.broker.wire import WireClient


def link(path: Path) -> str:
    """Return a link to the data directory in another directory."""
    (path / "elsewhere").mkdir()
    (path / "elsewhere/link").symlink_to(path / "data")
    return str(path / "elsewhere/link")


def link_of_link(path: Path) -> str:
    """Return a link to a link, relative."""
    link(path)
    (path / "second").symlink_to("elsewhere/link")
    return str(path / "second")


def linked_parent(path: Path) -> str:
    """Return a path through a link to the parent."""
    (path / "up").symlink_to(".")
    return str(path / "up/data")


def with_dots(path: Path) -> str:
    """Return a path with `..` behind a link, where the text alone leads elsewhere."""
    (path / "deep/er").mkdir(parents=True)
    (path / "short").symlink_to("deep/er")
    return str(path / "short/../../data")


def relative(path: Path) -> str:
    """Return a relative path."""
    return os.path.relpath(path / "data")


def slashes(path: Path) -> str:
    """Return a path with superfluous slashes and dots."""
    return f"{path}//./data/"


@asynccontextmanager
async def started(path: Path, data_dir: str) -> AsyncIterator[Broker]:
    """A broker that was started with this name of its directory."""
    properties = {"diamant.certificate.key.file": str(path / "keys/certificate.key")}
    async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=data_dir, properties=properties)) as broker:
        yield broker


async def make_topic(broker: Broker) -> None:
    async with WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t", cleanup_policy="compact")


NAMES = pytest.mark.parametrize("name", [link, link_of_link, linked_parent, with_dots, relative, slashes])


@NAMES
async def test_snapshots_are_found_by_every_name(tmp_path: Path, name: Callable[[Path], str]) -> None:
    """One that was made under the real name is listed, deleted, and keeps keys from being erased, under any other name."""
    async with Broker(config(tmp_path)) as broker:
        await make_topic(broker)
        snapshot = await broker.snapshot()
    async with started(tmp_path, name(tmp_path)) as broker:
        assert [one.id for one in await broker.services.snapshots().list()] == [snapshot.id]
        with pytest.raises(NotPossible, match=snapshot.id):
            await broker.erase(b"key", "t", reason="test")
        await broker.services.snapshots().delete(snapshot.id)
        certificate = (await broker.erase(b"key", "t", reason="test")).certificate
    assert f"{tmp_path / 'data'}.snapshots" in certificate["coverage"]["snapshots_looked_for"]


@NAMES
async def test_snapshots_made_under_another_name_are_found(tmp_path: Path, name: Callable[[Path], str]) -> None:
    """Snapshots lie beside the real directory, whatever name the broker was started with."""
    async with Broker(config(tmp_path)) as broker:
        await make_topic(broker)
    async with started(tmp_path, name(tmp_path)) as broker:
        snapshot = await broker.snapshot()
    async with Broker(config(tmp_path)) as broker:
        with pytest.raises(NotPossible, match=snapshot.id):
            await broker.erase(b"key", "t", reason="test")


async def test_snapshots_of_a_moved_directory_are_found(tmp_path: Path) -> None:
    """Snapshots stay where the directory was, and the error names that place; a copy of the directory has none."""
    async with Broker(config(tmp_path)) as broker:
        await make_topic(broker)
        snapshot = await broker.snapshot()
    (tmp_path / "data").rename(tmp_path / "moved")
    async with started(tmp_path, str(tmp_path / "moved")) as broker:
        with pytest.raises(NotPossible, match=re.escape(str(tmp_path / "data.snapshots" / snapshot.id))):
            await broker.erase(b"key", "t", reason="test")
        (tmp_path / "data").mkdir()
        (tmp_path / "data/meta.properties").touch()
        assert (await broker.erase(b"key", "t", reason="test")).state == "nothing-matched"


async def test_snapshots_beside_a_link_are_found(tmp_path: Path) -> None:
    """Earlier versions put them beside the name that the broker was started with."""
    async with Broker(config(tmp_path)) as broker:
        await make_topic(broker)
        snapshot = await broker.snapshot()
    name = link(tmp_path)
    (tmp_path / "data.snapshots").rename(f"{name}.snapshots")
    async with started(tmp_path, name) as broker:
        with pytest.raises(NotPossible, match=snapshot.id):
            await broker.erase(b"key", "t", reason="test")


async def test_a_snapshot_that_comes_to_be_during_an_erasure_keeps_it_from_being_certified(tmp_path: Path) -> None:
    """The certificate names the snapshot, whoever made it."""
    async with started(tmp_path, str(tmp_path / "data")) as broker:
        await make_topic(broker)
        async with broker.services.erasures().queue.attempts.lock:
            asking = broker.loop.create_task(broker.erase(b"key", "t", reason="test"))
            while not broker.services.erasures().queue.attempts.waiting:
                await asyncio.sleep(0)
            (tmp_path / "data.snapshots/1-abc").mkdir(parents=True)
        asked = await asking
    problems = [one for claim in asked.certificate["not_certified"] for one in claim["problems"]]
    assert (asked.state, {one["file"] for one in problems}) == ("not-certified", {f"{tmp_path}/data.snapshots/1-abc"})
