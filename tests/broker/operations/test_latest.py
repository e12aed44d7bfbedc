"""The compacted view of a topic: the latest committed record of each key. tests/cleaner/queries has it of any partition."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from diamant.broker import cli
from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.client.admin import Admin, AdminError
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.operation_errors import NotFound, NotPossible, TooMany
from diamant.broker.operations.records import records_operation
from diamant.cleaner.queries.latest_records import latest_records
from diamant.protocol.batches.header import Record
from diamant.storage.errors import CorruptLog
from tests.broker.compacted import keyed, produce
from tests.broker.operations.explain.explained import START_MS, stage
from tests.broker.operations.explain.test_explain import flip
from tests.broker.wire import PRODUCE, WireClient, produce_fields


async def view(broker: BlockingBroker, **options: Any) -> list[tuple[int, str, str | None]]:
    """Return offsets, keys and values of partition 0, in order."""
    found = []
    async for partition, record in broker.latest("t", **options):
        assert partition == 0
        assert record.key is not None
        found.append((record.offset, record.key.decode(), None if record.value is None else record.value.decode()))
    return found


async def test_a_view_is_of_what_is_committed_and_not_deleted(tmp_path: Path) -> None:
    """The view goes from the log start to the last stable offset, with tombstones if asked for; a compaction changes nothing."""
    async with stage(tmp_path, min_cleanable_dirty_ratio="1") as at:
        await at.play("a=1 b=1 c=1 d=1 | roll | a=2 b=")
        at.log.delete_records(3)
        at.put_transactional("e")
        at.end_transaction(is_commit=False)
        at.put_transactional("f", 6)
        await at.put("d=2")
        for _ in range(2):
            assert await view(at.broker) == [(3, "d", "1"), (4, "a", "2")]
            assert await view(at.broker, tombstones=True) == [(3, "d", "1"), (4, "a", "2"), (5, "b", None)]
            await at.broker.compact("t")


async def test_a_map_that_spills_finds_the_same(tmp_path: Path) -> None:
    """With memory for a few dozen keys, from files that a compaction replaces at the same time."""
    async with stage(tmp_path) as at:
        for turn in range(3):
            await at.put(*(f"k{index}={turn}" for index in range(3000)))
            await at.roll()
        taken, files = await at.broker.services.explain().open(at.log)
        with files:
            await at.broker.compact("t")
            records = await asyncio.to_thread(
                lambda: list(latest_records(files.present, taken.outcomes, 0, 1 << 60, map_bytes=24 * 100))
            )
        assert [record.offset for record in records] == [*range(6000, 9000)]
        assert {record.value for record in records} == {b"2"}


async def test_a_reader_holds_nobody_back_and_may_end_early(tmp_path: Path) -> None:
    """Pages are read on demand; concurrent readers are bounded; one that leaves frees its place."""
    count = 3 * records_operation.PAGE_RECORDS
    async with stage(tmp_path) as at:
        await at.put(*(f"k{index}=1" for index in range(count)))
        readers = [at.broker.latest("t") for _ in range(records_operation.MAX_AT_ONCE)]
        for reader in readers:
            assert (await anext(reader))[1].key == b"k0"
        with pytest.raises(TooMany):
            await anext(at.broker.latest("t"))
        await at.put("k3=2")
        await at.broker.compact("t")
        assert [record.offset async for _, record in readers[0]] == [*range(1, count)], (
            "of the moment at which it began"
        )
        async with aclosing(readers[1]):
            pass
        assert len(await view(at.broker)) == count
        with pytest.raises(NotFound):
            await anext(at.broker.latest("absent"))


async def test_a_damaged_log_has_no_view(tmp_path: Path) -> None:
    """The latest record cannot be determined: the error names the file."""
    async with stage(tmp_path) as at:
        await at.put("k=1")
        path = at.log.active.path
        await at.play("roll | k=2")
        flip(path, 1000)
        with pytest.raises(NotPossible, match=r"00000000000000000000\.log at 0"):
            await view(at.broker)


def test_over_http_and_from_a_thread(tmp_path: Path) -> None:
    """The answer is JSON lines with partition, key and value; a refusal is an error; any event loop works."""
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path, diamant_http_listen="127.0.0.1:0")
    with Broker(config) as broker:

        async def make() -> list[tuple[int, bytes | None]]:
            async with WireClient(broker.bootstrap_servers) as wire:
                await wire.create("t", 2, cleanup_policy="compact")
                for partition in range(2):
                    batch = keyed(("a=1", "b="), START_MS)
                    await wire.call(PRODUCE, 12, produce_fields("t", partition, batch))
            return [(partition, record.key) async for partition, record in broker.awaited.latest("t", tombstones=True)]

        assert asyncio.run(make()) == [(0, b"a"), (0, b"b"), (1, b"a"), (1, b"b")]
        admin = Admin(broker.bootstrap_servers)
        record = {"timestamp": START_MS, "key": {"text": "a"}, "value": {"text": "1"}, "headers": []}
        assert list(admin.latest("t")) == [{"partition": one, "offset": 0, **record} for one in range(2)]
        assert [one["value"] for one in admin.latest("t", 1, tombstones=True)] == [{"text": "1"}, None]
        with pytest.raises(AdminError, match="absent"):
            list(admin.latest("absent"))
        reading = admin.latest("t")
        next(reading)
        reading.close()
        assert len(list(admin.latest("t"))) == 2, "who went away holds nothing"


def test_an_answer_that_breaks_off_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partial view is not taken for a complete one; earlier records are returned, on the command line, too."""
    pages: list[int] = []
    whole = records_operation._page

    def page(records: Iterator[Record]) -> tuple[Record, ...]:
        pages.append(1)
        if len(pages) % 2 == 0:
            raise CorruptLog("t-0/0.log", 7, "the batch's CRC is wrong")
        return whole(records)

    monkeypatch.setattr(records_operation, "_page", page)
    config = BrokerConfig(listen="127.0.0.1:0", data_dir=tmp_path, diamant_http_listen="127.0.0.1:0")
    with Broker(config) as broker:

        async def make() -> None:
            async with WireClient(broker.bootstrap_servers) as wire:
                await wire.create("t", cleanup_policy="compact")
                await produce(wire, "t", "a=1", timestamp=START_MS)

        asyncio.run(make())
        reading = Admin(broker.bootstrap_servers).latest("t")
        assert next(reading)["key"] == {"text": "a"}
        with pytest.raises(AdminError, match="went away"):
            next(reading)
        printed = CliRunner().invoke(cli.main, ["latest", "t", "-b", broker.bootstrap_servers])
        assert (printed.exit_code, '"a"' in printed.stdout) == (1, True)
        counted = CliRunner().invoke(cli.main, ["count", "t", "-b", broker.bootstrap_servers, "--exact", "--json"])
        assert json.loads(counted.stdout)["live"] == {"least": 1, "most": 1}
