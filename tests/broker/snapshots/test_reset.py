"""Snapshots, and resets of a running broker to them."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from diamant.broker.broker import Broker
from diamant.broker.cli import main
from diamant.broker.operation_errors import NotFound, NotPossible, OperationError
from tests.broker.http_asking import ask
from tests.broker.snapshots.copied import LARGE, beside, config, fill, produce, values
from tests.broker.wire import WireClient
from tests.effort import some
from tests.memory_env import MemoryEnv
from tests.waiting import wait_until


async def test_a_reset_puts_topics_records_and_offsets_back(tmp_path: Path) -> None:
    """Later records, topics and configurations are gone. Ports are unchanged, and the broker accepts records."""
    async with Broker(config(tmp_path)) as broker:
        await fill(broker)
        snapshot = await broker.snapshot()
        address = broker.bootstrap_servers
        for _ in range(2):
            await produce(broker, b"later")
            await produce(broker, LARGE)
            async with WireClient(broker.bootstrap_servers) as wire:
                await wire.create("another")
                before = await wire.produce("another", [b"x"])
                assert before.error_code == 0
            await broker.reset(snapshot)
            assert broker.bootstrap_servers == address
            assert await values(broker) == [LARGE, b"tail"]
            assert list(broker.node.topics.by_name) == ["t"]
            assert broker.node.topics.log("t", 0).epochs.entries == [(0, 0)]
        await produce(broker, b"continued")
    async with Broker(config(tmp_path)) as broker:
        assert await values(broker) == [LARGE, b"tail", b"continued"]


@pytest.mark.parametrize("seamless", [False, True])
async def test_connections_at_a_reset(tmp_path: Path, seamless: bool) -> None:
    """Without `seamless`, connections are closed, as by a restart; with it they stay open, and the next response is from the
    new state.
    """
    async with Broker(config(tmp_path)) as broker:
        await fill(broker)
        snapshot = await broker.snapshot()
        async with WireClient(broker.bootstrap_servers) as wire:
            assert (await wire.produce("t", [b"later"])).base_offset == 2
            await broker.reset(snapshot, seamless=seamless)
            if seamless:
                assert (await wire.produce("t", [b"again"])).base_offset == 2
            else:
                assert await wire.is_closed()


async def test_the_manual_clock_goes_back(tmp_path: Path) -> None:
    """A frozen clock returns to its earlier position."""
    async with Broker(config(tmp_path, diamant_clock="manual")) as broker:
        await broker.clock.freeze()
        before_ms = broker.clock.state().now_ms
        snapshot = await broker.snapshot()
        await broker.clock.advance("8d")
        await broker.reset(snapshot)
        assert broker.clock.state().now_ms == before_ms
        assert broker.clock.state().is_frozen


async def test_snapshots_stay_until_they_are_deleted(tmp_path: Path) -> None:
    """Snapshots are listed after a restart. An unknown id is refused. Deleting the last one removes the directory."""
    async with Broker(config(tmp_path)) as broker:
        await fill(broker)
        first, second = await broker.snapshot(), await broker.snapshot()
        assert first.size_bytes > len(LARGE)
    async with Broker(config(tmp_path)) as broker:
        snapshots = broker.services.snapshots()
        assert await snapshots.list() == sorted([first, second], key=lambda one: one.id)
        with pytest.raises(NotFound, match=r"no snapshot '\.\./data'"):
            await broker.reset("../data")
        await snapshots.delete(first.id)
        await broker.reset(second)
        await broker.services.snapshots().delete(second.id)
        await wait_until(lambda: beside(tmp_path) == [])


async def test_nothing_is_erased_while_there_are_snapshots(tmp_path: Path) -> None:
    """Snapshots keep the value, so no certificate is possible. The error names them and the command that deletes them."""
    async with Broker(config(tmp_path)) as broker:
        async with WireClient(broker.bootstrap_servers) as wire:
            await wire.create("t", cleanup_policy="compact")
        snapshot = await broker.snapshot()
        with pytest.raises(NotPossible, match=f"{snapshot.id}.*`diamant snapshot delete ID`"):
            await broker.erase(b"key", "t", reason="test")
        with pytest.raises(NotPossible, match=snapshot.id):
            await broker.redact("t", where='key == "a"', reason="test")


async def test_a_reset_that_is_killed_is_finished_by_the_next_start() -> None:
    """Killed at any change, it leaves either the old state or the new one after the next start."""
    env = MemoryEnv()
    copies: list[MemoryEnv] = []
    async with Broker(config(Path("/")), env=env) as broker:
        await fill(broker)
        snapshot = await broker.snapshot()
        await produce(broker, b"later")
        env.before_change = lambda: copies.append(env.copy())
        await broker.reset(snapshot)
        env.before_change = None
    found = []
    for copy in [*copies[:3], *some(copies[3:], every=8)]:
        async with Broker(config(Path("/")), env=copy) as again:
            found.append(len(await values(again)))
            snapshots = again.services.snapshots().files
            assert copy.list_dir(snapshots.path) == [snapshot.id]
    assert found[0] == 3
    assert found[-1] == 2
    assert found == sorted(found, reverse=True)


async def test_a_disk_that_is_full_at_a_reset() -> None:
    """The error says that the next start retries the reset, and it does."""
    env = MemoryEnv()
    async with Broker(config(Path("/")), env=env) as broker:
        await fill(broker)
        snapshot = await broker.snapshot()
        await produce(broker, b"later")
        fault = env.fail("create", "/data/t-0/*", errno.ENOSPC)
        with pytest.raises(
            OperationError, match=r"No space left on device.*Stop the broker; its next start tries again"
        ):
            await broker.reset(snapshot)
        fault.clear()
    async with Broker(config(Path("/")), env=env) as broker:
        assert await values(broker) == [LARGE, b"tail"]


async def test_a_thread_that_the_system_refuses_at_a_reset() -> None:
    """The same: connections end, and the next start retries the reset."""

    def refuse() -> None:
        raise RuntimeError("can't start new thread")

    env = MemoryEnv()
    async with Broker(config(Path("/")), env=env) as broker:
        await fill(broker)
        snapshot = await broker.snapshot()
        await produce(broker, b"later")
        env.before("create", "/data/t-0/*", refuse)
        async with WireClient(broker.bootstrap_servers) as wire:
            with pytest.raises(OperationError, match=r"new thread\. Stop the broker; its next start tries again"):
                await broker.reset(snapshot, seamless=True)
            assert await wire.is_closed()
    async with Broker(config(Path("/")), env=env) as broker:
        assert await values(broker) == [LARGE, b"tail"]


async def test_a_cleaner_that_the_system_refuses_at_a_reset() -> None:
    """The reset is done, and the jobs that follow the clock run."""
    env = MemoryEnv()
    async with Broker(config(Path("/")), env=env) as broker:
        await broker.create_topic("c", compact=True)
        await broker.compact("c")
        await fill(broker)
        snapshot = await broker.snapshot()
        await produce(broker, b"later")
        fault = env.fail("pread", "*/cleaner-offset-checkpoint", errno.EMFILE, times=1)
        with suppress(OperationError):
            await broker.reset(snapshot)
        assert fault.hits == 1
        assert await values(broker) == [LARGE, b"tail"]
        assert await broker.node.scheduler.settled() == []


@pytest.mark.parametrize("refusal", [errno.EPERM, errno.EXDEV, errno.ENOTSUP, errno.EMLINK])
async def test_without_hard_links(refusal: int) -> None:
    """All data is copied, to the snapshot and back."""
    env = MemoryEnv()
    env.fail("link", "*", refusal)
    async with Broker(config(Path("/")), env=env) as broker:
        await fill(broker)
        snapshot = await broker.snapshot()
        await produce(broker, b"later")
        await broker.reset(snapshot)
        assert await values(broker) == [LARGE, b"tail"]


async def test_a_data_directory_that_is_a_mount_point() -> None:
    """A volume of its own, as in a container: nothing can be linked or moved to what lies beside it, and a reset works."""
    env = MemoryEnv()
    env.fail("link", "*", errno.EXDEV)
    env.fail("rename", "/data.snapshots/*.trash/*", errno.EXDEV)
    async with Broker(config(Path("/")), env=env) as broker:
        await fill(broker)
        snapshot = await broker.snapshot()
        await produce(broker, b"later")
        await broker.reset(snapshot)
        assert await values(broker) == [LARGE, b"tail"]


@pytest.mark.parametrize("has_links", [True, False])
async def test_a_disk_too_full_for_a_snapshot(has_links: bool) -> None:
    """The error names the file and nothing is left behind. With free space, the snapshot succeeds."""
    env = MemoryEnv()
    if not has_links:
        env.fail("link", "*", errno.EPERM)
    async with Broker(config(Path("/")), env=env) as broker:
        await fill(broker)
        fault = env.fail("append", f"*.making/t-0/{0 if not has_links else 1:020}.log", errno.ENOSPC, partial_bytes=3)
        with pytest.raises(OperationError, match=r"t-0/.*: No space left on device. Nothing was left there"):
            await broker.snapshot()
        assert env.list_dir("/") == ["data"]
        fault.clear()
        snapshot = await broker.snapshot()
        await broker.reset(snapshot)
        assert await values(broker) == [LARGE, b"tail"]


async def test_snapshots_over_http(tmp_path: Path) -> None:
    """Clients in other languages can create, list, use and delete snapshots. The request for a reset gets its response."""
    async with Broker(config(tmp_path, diamant_http_listen="127.0.0.1:0")) as broker:
        await fill(broker)
        made = (await ask(broker, "POST", "/v1/snapshots")).json
        assert (await ask(broker, "GET", "/v1/snapshots")).json == {"snapshots": [made]}
        await produce(broker, b"later")
        answer = await ask(broker, "POST", "/v1/reset", {"snapshot": made["id"]})
        assert (answer.status, answer.json) == (200, {"id": made["id"]})
        assert await values(broker) == [LARGE, b"tail"]
        assert (await ask(broker, "POST", "/v1/reset", {"snapshot": "none"})).status == 404
        assert (await ask(broker, "DELETE", f"/v1/snapshots/{made['id']}")).status == 200
        assert (await ask(broker, "GET", "/v1/snapshots")).json == {"snapshots": []}


def test_commands_take_snapshots_and_reset(tmp_path: Path) -> None:
    """`diamant snapshot` and `diamant reset` do the same. `create` prints only the id, for scripts."""
    with Broker(config(tmp_path, diamant_http_listen="127.0.0.1:0")) as broker:

        def run(*arguments: str) -> str:
            result = CliRunner().invoke(main, [*arguments, "-b", broker.bootstrap_servers])
            assert result.exit_code == 0, result.output
            return result.output

        snapshot_id = run("snapshot", "create").strip()
        broker.create_topic("later")
        assert snapshot_id in run("snapshot", "list")
        run("reset", snapshot_id, "--seamless")
        assert "later" not in broker.node.topics.by_name
        run("snapshot", "delete", snapshot_id)
        assert "no snapshots" in run("snapshot", "list")
