"""`broker.compact`: from its loop, another loop and a thread, over HTTP and on the command line; and its outcomes."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.config.virtual_topic_table import ROWS
from diamant.broker.operation_errors import BadArgument, BrokerStopping, NotFound, NotPossible, TimedOut, TooMany
from diamant.broker.operations.compactions import compact_by_config as compact_config
from diamant.broker.operations.compactions import compactions as compaction
from diamant.broker.operations.compactions.compactions import MAX_CALLS, CompactionFailed
from diamant.progress import Progress
from diamant.storage.env.clocks import SettableClock
from tests.broker.compacted import produce, read
from tests.broker.held_rounds import Gate, gate
from tests.broker.operations.compacting import DAY_MS, START_MS, broker, clock, fill
from tests.broker.wire import DELETE_TOPICS, WireClient
from tests.waiting import wait_until

__all__ = ["broker", "clock", "gate"]


async def test_compact_and_read(broker: Broker, wire: WireClient) -> None:
    """After the call, a consumer reads the last values only; the report adds up, as JSON too."""
    await fill(wire)
    progress = Progress()
    report = await broker.compact("t", progress=progress)
    assert await read(wire, "t") == [(2, "a", "3")]
    assert report.is_clean
    assert report.is_reached
    assert report.removed == {"superseded": 2}
    assert (progress.done, progress.unit) == (progress.total, "bytes")
    assert progress.done > 0
    fields = json.loads(json.dumps(report.to_fields()))
    assert fields["is_clean"] is True
    assert fields["partitions"][0]["kept"] == {"live": 1, "tombstones": 0, "markers": 0}
    assert fields["partitions"][0]["runners"] == ["inline"]


async def test_all_partitions_or_one(broker: Broker, wire: WireClient) -> None:
    """Without a partition all are compacted, each with its report; with one, only that one."""
    await wire.create("t", 3, cleanup_policy="compact")
    report = await broker.compact("t")
    assert [one.partition for one in report.partitions] == [0, 1, 2]
    assert [one.partition for one in (await broker.compact("t", 1)).partitions] == [1]


async def test_an_internal_topic(broker: Broker, wire: WireClient) -> None:
    """__consumer_offsets is compacted like any other topic."""
    await broker.create_topic("__consumer_offsets", 2, compact=True)
    report = await broker.compact("__consumer_offsets")
    assert report.is_clean
    assert len(report.partitions) == 2


async def test_compactions_of_invalid_subjects_are_refused(broker: Broker, wire: WireClient) -> None:
    """Unknown topics and partitions, a delete-only topic, and invalid arguments are refused, each with the problem."""
    await wire.create("d")
    with pytest.raises(NotFound, match="there is no topic 'absent'"):
        await broker.compact("absent")
    with pytest.raises(NotFound, match="topic 'd' has no partition 7: it has only partition 0"):
        await broker.compact("d", 7)
    with pytest.raises(
        NotPossible, match=r"its cleanup.policy is delete. Set cleanup.policy=compact or compact,delete"
    ):
        await broker.compact("d")
    with pytest.raises(BadArgument, match="expected one of clean, tombstones-gone"):
        await broker.compact("d", until="tomorrow")  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="timeout: expected 0 to 31622400 seconds, got -1"):
        await broker.compact("d", timeout=-1)


async def test_a_timeout_leaves_the_round_to_the_next_call(broker: Broker, wire: WireClient, gate: Gate) -> None:
    """The call ends at its timeout; the round continues, and the next call joins it."""
    await fill(wire)
    with pytest.raises(TimedOut, match=r"t was not compacted within 0\.05 s"):
        await broker.compact("t", timeout=0.05)
    again = asyncio.ensure_future(broker.compact("t"))
    gate.opened.set()
    report = await again
    assert report.partitions[0].rounds == 1
    assert await read(wire, "t") == [(2, "a", "3")]


async def test_a_topic_deleted_while_it_is_compacted(broker: Broker, wire: WireClient, gate: Gate) -> None:
    """The call ends with an error that says so, and its report."""
    await fill(wire)
    call = asyncio.ensure_future(broker.compact("t"))
    await wait_until(gate.begun.is_set)
    await wire.call(DELETE_TOPICS, 5, {"topic_names": ["t"], "timeout_ms": 1000})
    gate.opened.set()
    with pytest.raises(CompactionFailed, match="t-0 was deleted") as caught:
        await call
    assert (caught.value.code, caught.value.status) == ("deleted", 404)
    assert len(caught.value.report.failed) == 1


async def test_a_broker_that_stops(tmp_path: Path, gate: Gate) -> None:
    """Calls end at once when the broker stops, and do not delay the stop."""
    async with Broker(BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path)) as broker:
        async with WireClient(broker.bootstrap_servers) as wire:
            await fill(wire)
            call = asyncio.ensure_future(broker.compact("t"))
            await wait_until(gate.begun.is_set)
            stopping = asyncio.ensure_future(broker.stop())
            with pytest.raises(BrokerStopping):
                await call
            with pytest.raises(BrokerStopping):
                await broker.compact("t")
            gate.opened.set()
            await stopping


async def test_a_cleaner_that_stops_before_its_callers(broker: Broker, wire: WireClient, gate: Gate) -> None:
    """A caller that was not cancelled in time gets the error of a broker that stops, not that of a failed compaction."""
    await fill(wire)
    call = asyncio.ensure_future(broker.compact("t"))
    await wait_until(gate.begun.is_set)
    stopping = asyncio.ensure_future(broker.services.cleaning.stop())
    gate.opened.set()
    with pytest.raises(BrokerStopping):
        await call
    await stopping


async def test_no_more_calls_than_are_allowed(broker: Broker, wire: WireClient, gate: Gate) -> None:
    """Beyond the limit a call is refused, and accepted again when others have ended."""
    await fill(wire)
    calls = [asyncio.ensure_future(broker.compact("t")) for _ in range(MAX_CALLS + 1)]
    refused, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    with pytest.raises(TooMany, match=f"{MAX_CALLS} calls are waiting"):
        await asyncio.gather(*refused)
    gate.opened.set()
    await asyncio.gather(*waiting)
    await broker.compact("t")


async def test_tombstones_gone_by_the_clock(broker: Broker, wire: WireClient, clock: SettableClock) -> None:
    """The horizon is returned at once if requested; otherwise the call returns when the clock has passed it."""
    await wire.create("t", cleanup_policy="compact", delete_retention_ms=str(DAY_MS))
    await produce(wire, "t", "a=1", timestamp=START_MS)
    await produce(wire, "t", "a=", timestamp=START_MS)
    report = await broker.compact("t", until="tombstones-gone", wait=False)
    assert (report.horizon_ms, report.is_clean, report.is_reached) == (START_MS + DAY_MS, True, False)
    call = asyncio.ensure_future(broker.compact("t", until="tombstones-gone"))
    with pytest.raises(TimedOut):
        await broker.compact("t", until="tombstones-gone", timeout="20ms")
    clock.advance_ms(DAY_MS)
    report = await call
    assert report.is_reached
    assert await read(wire, "t") == []


# -- from elsewhere ----------------------------------------------------------------------------------------------------


@pytest.fixture
def other_broker(tmp_path: Path) -> Iterator[BlockingBroker]:
    """A broker in its own thread, with HTTP."""
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path, diamant_http_listen="127.0.0.1:0")
    with Broker(config) as running:
        yield running


def test_from_a_thread_and_from_another_loop(other_broker: BlockingBroker) -> None:
    """`broker.call(broker.compact(...))` and `asyncio.run(broker.awaited.compact(...))` do the same."""

    async def prepare() -> None:
        async with WireClient(other_broker.bootstrap_servers) as wire:
            await fill(wire)

    asyncio.run(prepare())
    assert other_broker.call(other_broker.compact("t")).removed == {"superseded": 2}
    assert asyncio.run(other_broker.awaited.compact("t")).removed == {}
    with pytest.raises(NotFound):
        asyncio.run(other_broker.awaited.compact("absent"))


def test_over_http_and_on_the_command_line(other_broker: Broker) -> None:
    """Client, table and JSON have the same report; the exit codes are 0 clean, 3 held back, 2 no such topic, 1 not possible."""
    from diamant.broker.cli import main
    from diamant.broker.client.admin import Admin, AdminError

    async def prepare() -> None:
        async with WireClient(other_broker.bootstrap_servers) as wire:
            await fill(wire)
            await fill(wire, "young", min_compaction_lag_ms=str(10**15))
            await wire.create("d")

    asyncio.run(prepare())
    report = Admin(other_broker.bootstrap_servers).compact("t")
    assert report["removed"] == {"superseded": 2}
    with pytest.raises(AdminError) as caught:
        Admin(other_broker.bootstrap_servers).compact("d")
    assert (caught.value.status, caught.value.code) == (409, "not-possible")

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(main, ["compact", "-b", other_broker.bootstrap_servers, *arguments])

    result = run("t")
    assert result.exit_code == 0, result.output
    assert "t: clean after" in result.output
    assert "1 live" in result.output
    result = run("t", "--json")
    assert json.loads(result.output)["is_clean"] is True
    result = run("young")
    assert result.exit_code == 3
    assert "min.compaction.lag.ms keeps offsets 0 to 2 of young-0 (210 bytes) from" in " ".join(result.output.split())
    assert run("young", "--force").exit_code == 0
    assert run("absent").exit_code == 2
    result = run("d")
    assert result.exit_code == 2
    assert "cleanup.policy is delete" in result.output
    assert run("t", "--until", "never").exit_code == 2


ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/how-to/compact-on-demand.md").read_text()


@pytest.mark.slow
def test_the_examples_of_the_guide(tmp_path: Path) -> None:
    """The examples of the guide are run as tests."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "test_guide.py").write_text("\n\n".join(blocks))
    command = [sys.executable, "-m", "pytest", "-q", *("-p", "no:cacheprovider", "-p", "no:xdist"), "test_guide.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_the_guide_is_complete() -> None:
    """Each entry of DescribeConfigs and each error code has its row; limits equal those of the code."""
    assert set(re.findall(r"^\| `(diamant\.[a-z.]+)` \|", PAGE, re.MULTILINE)) == set(ROWS)
    for code in {*compact_config._CODES.values(), "KAFKA_STORAGE_ERROR"}:
        name = code if isinstance(code, str) else code.name
        assert f"| {name} |" in PAGE
    assert (compact_config.RATE_PER_S, compact_config.BURST, compaction.MAX_CALLS) == (10.0, 20, 256)
