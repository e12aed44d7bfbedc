"""The progress of a compaction while its round is held, as shown by the job, the terminal, status and metrics."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from diamant import progress as progress_module
from diamant.broker.broker import Broker
from diamant.broker.cli import main
from diamant.broker.commands.terminal.progress_text import progress_text
from diamant.broker.config.broker_config import BrokerConfig
from diamant.cleaner.service.cleaner_slot import CleanerSlot
from diamant.progress import Progress
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from tests.broker.http_asking import ask
from tests.broker.metrics.test_metrics import scrape, value
from tests.broker.operations.compacting import fill
from tests.broker.wire import WireClient
from tests.cleaner.held_runner import HeldRunner
from tests.waiting import wait_until


class Terminal(io.StringIO):
    """The output written to a terminal."""

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        """Return the output without colours and cursor movements."""
        return re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", self.getvalue())


@asynccontextmanager
async def holding(path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Broker, WireClient, HeldRunner]]:
    """A broker whose rounds are held until released."""
    monkeypatch.setattr(progress_module, "SHORTEST_S", 0.0)
    config = BrokerConfig(
        listen="127.0.0.1:0",
        data_dir=path,
        diamant_http_listen="127.0.0.1:0",
        properties={"log.cleaner.min.cleanable.ratio": "1"},  # what is not asked for is not cleaned
    )
    async with Broker(config) as broker, WireClient(broker.bootstrap_servers) as wire:
        held = HeldRunner(broker.env)
        monkeypatch.setattr(CleanerSlot, "runner_for", lambda *_, **__: held)
        yield broker, wire, held
        held.go_on.set()


def one_record(key: bytes) -> memoryview:
    """Return a batch."""
    return memoryview(bytearray(build_batch([Record(0, 1, key, b"v" * 100)])))


async def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[Terminal, asyncio.Task[Any]]:
    """Run a command in a thread, at a terminal."""
    err = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("diamant.broker.client.admin.JOB_PROGRESS_MS", 10)

    def work() -> Any:
        with redirect_stderr(err), redirect_stdout(io.StringIO()):
            try:
                main(arguments, standalone_mode=False)
            except SystemExit as end:  # it would end the loop
                return end.code

    return err, asyncio.create_task(asyncio.to_thread(work))


async def test_a_round_of_one_partition_is_shown_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Terminal and job show percent, bytes, rate and time left, the metrics bytes and time left."""
    async with holding(tmp_path, monkeypatch) as (broker, wire, held):
        await fill(wire)
        err, command = await run(monkeypatch, "compact", "t", "-b", broker.bootstrap_servers)
        await wait_until(lambda: bool(held.plans))
        size = held.plans[0].segments[0].size
        assert progress_text((await ask(broker, "GET", "/v1/jobs/2")).json["progress"]) == "t: cleaning ..."
        held.progress_bytes = 3 * size // 2
        pattern = re.compile(rf"t: cleaning (49|50) %, {size // 2} B of {size} B, [\d.]+ \w+/s, \d\w+ (\d\w+ )?left")
        await wait_until(lambda: pattern.search(err.text) is not None)
        # The half takes as long as it has taken until now, which is nothing in tenths of a second at first.
        while not (job := (await ask(broker, "GET", "/v1/jobs/2")).json["progress"])["left_s"]:
            pass
        assert (job["done"], job["total"], job["unit"]) == (size // 2, size, "bytes")
        assert job["rate_per_s"] > 0
        [one] = (await ask(broker, "GET", "/v1/status")).json["cleaner"]["in_progress"]
        assert (one["progress"]["done"], one["progress"]["total"]) == (size // 2, size)
        found = await scrape(broker)
        labels = {"topic": "t", "partition": "0", "runner": "held"}
        assert value(found, "diamant_cleaner_round_log_bytes", **labels) == size
        assert value(found, "diamant_cleaner_round_log_done_bytes", **labels) == size // 2
        assert value(found, "diamant_cleaner_round_left_seconds", **labels) > 0
        held.go_on.set()
        assert await command == 0, err.text
        job = (await ask(broker, "GET", "/v1/jobs/2")).json["progress"]
        assert (job["done"], job["total"]) == (size, size)


async def test_several_partitions_are_one_amount_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished ones count in full, the running one by its progress, and those without work not at all."""
    async with holding(tmp_path, monkeypatch) as (broker, wire, held):
        await fill(wire)
        held.go_on.set()
        await broker.compact("t")
        held.go_on.clear()
        await wire.create("u", 3, cleanup_policy="compact")
        logs = [broker.node.topics.log("u", index) for index in range(3)]
        for log, count in zip(logs, (0, 10, 30), strict=True):
            for number in range(count):
                log.append_as_leader(one_record(b"k%d" % (number % 3)))
        progress, sizes = Progress(), [log.size for log in logs]
        held.plans.clear()
        held.is_one_by_one = True
        call = asyncio.create_task(broker.compact("u", progress=progress))
        await wait_until(lambda: len(held.plans) == 1)
        held.progress_bytes = 3 * sizes[1]
        fields = progress.to_fields()
        assert (fields["stage"], fields["done"], fields["total"]) == ("compacting u", sizes[1], sum(sizes))
        held.go_on.set()
        await wait_until(lambda: len(held.plans) == 2)
        held.progress_bytes = 0
        assert progress.to_fields()["done"] == sizes[1]
        held.progress_bytes = 3 * sizes[2] // 2
        # The first one is over when what it left is counted.
        await wait_until(
            lambda: progress.to_fields()["done"] in (sizes[1] + sizes[2] // 2 - 1, sizes[1] + sizes[2] // 2)
        )
        held.go_on.set()
        await call
        assert (progress.done, progress.total) == (sum(sizes), sum(sizes))
        again = Progress()
        await broker.compact("u", progress=again)
        assert (again.done, again.total) == (0, 0)


async def test_an_erasure_tells_how_much_is_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """During its compaction, an erasure reports the bytes as a compaction does."""
    async with holding(tmp_path, monkeypatch) as (broker, wire, held):
        await fill(wire)
        arguments = ("erase", "t", "--key", "a", "--reason", "asked for", "-b", broker.bootstrap_servers)
        err, command = await run(monkeypatch, *arguments)
        await wait_until(lambda: bool(held.plans) or command.done())
        held.progress_bytes = held.plans[0].segments[0].size
        await wait_until(lambda: re.search(r"compacting \d\d %, \d+ B of \d+ B, [\d.]+ \w+/s, ", err.text) is not None)
        held.go_on.set()
        assert await command == 0, err.text
