"""Damaged offset indexes of closed segments are rebuilt while the broker runs, and reads are always correct."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.node.index_repair import IndexRepair
from diamant.cleaner.service.round_requests import RoundRequest
from diamant.protocol.batches.header import parse_header
from diamant.storage.env.env import RealEnv
from diamant.storage.log.log import Log
from diamant.storage.log.segment_removal import delete_oldest
from diamant.storage.segments import segment as segment_module
from diamant.storage.segments.offset_index import ENTRY_SIZE
from tests.broker.compacted import SMALL, config, fill, read
from tests.broker.configurations import TOPIC, alter
from tests.broker.request_fields import SET
from tests.broker.wire import WireClient
from tests.storage.conftest import START_MS
from tests.storage.logs import batch, make_log, values
from tests.storage.recovery import test_loader
from tests.storage.recovery.test_damaged_index import check_reads
from tests.waiting import PATIENCE_S, wait_until

COUNT = 60


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Three closed segments with an index entry for each batch, all of them wrong, and an active one."""
    log = make_log(RealEnv(), tmp_path, index_interval_bytes=0)
    for number in range(COUNT):
        if number in (20, 40, 58):
            log.roll()
        log.append_as_leader(batch(b"%d" % number, b"x" * 20))
    log.close()
    for segment in log.segments[:-1]:
        spoil(Path(segment.offset_index.file.path))
    log.env = RealEnv()
    return test_loader.load(log, is_clean=True, recovery_point=2 * COUNT)[0]


def spoil(file: Path) -> None:
    """Make each entry point into the batch before its own."""
    data = bytearray(file.read_bytes())
    for at in range(0, len(data), ENTRY_SIZE):
        position = int.from_bytes(data[at + 4 : at + 8], "big") - 1
        data[at + 4 : at + 8] = position.to_bytes(4, "big")
    file.write_bytes(data)


def seek(log: Log, offset: int) -> bytes | None:
    """Return the first value of the batch at an offset, found by the index."""
    log.reader._positions.clear()
    return values(log.read(offset, 1, isolation_level=0, min_one_message=True))[0]


def headers_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the positions of headers parsed from now on in a segment."""
    seen: list[int] = []

    def parse(buffer: Any, at: int = 0) -> Any:
        seen.append(at)
        return parse_header(buffer, at)

    monkeypatch.setattr(segment_module, "parse_header", parse)
    return seen


async def test_an_index_is_repaired_once_a_read_has_met_it(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first read, a seek reads one header; the files do not change, not even at a clean stop."""
    repair = IndexRepair()
    log.on_index_damaged = repair.request
    files = [Path(segment.offset_index.file.path) for segment in log.segments[:-1]]
    before = [file.read_bytes() for file in files]
    seen = headers_of(monkeypatch)
    assert seek(log, 38) == b"19"
    assert len(seen) > 19  # from the beginning on
    await repair.settled()
    seen.clear()
    assert seek(log, 38) == b"19"
    assert len(seen) < 6
    assert seek(log, 2 * 39) == b"39"
    await repair.settled()
    check_reads(log, COUNT)
    log.close()
    assert [file.read_bytes() for file in files] == before


async def test_a_log_works_while_its_indexes_are_rebuilt(log: Log) -> None:
    """Reads, appends and a roll continue; a segment removed before its rebuild is skipped, the next one is not."""
    begun, opened = threading.Event(), threading.Event()

    def entries(*arguments: Any) -> Any:
        begun.set()
        assert opened.wait(PATIENCE_S)
        return segment_module.offset_entries(*arguments)

    repair = IndexRepair(entries)
    log.on_index_damaged = repair.request
    first, second = log.segments[:2]
    for _ in range(3):
        assert (seek(log, 38), seek(log, 2 * 39)) == (b"19", b"39")
    await wait_until(begun.is_set)
    assert len(repair._waiting) == 1
    for number in range(COUNT, COUNT + 5):
        log.append_as_leader(batch(b"%d" % number, b"x" * 20, timestamp=START_MS + number))
    log.roll()
    delete_oldest(log, 1)
    opened.set()
    await repair.settled()
    assert not first.offset_index.file.has_stand_in
    assert second.offset_index.file.has_stand_in
    for offset in range(40, 2 * COUNT + 10, 2):
        assert seek(log, offset) == b"%d" % (offset // 2)


async def test_no_more_indexes_than_the_bound_are_rebuilt_at_once(log: Log) -> None:
    """At most as many indexes as the bound are rebuilt at once, and none after the stop; every segment is readable."""
    repair = IndexRepair(most=1)
    log.on_index_damaged = repair.request
    check_reads(log, COUNT)
    await repair.settled()
    assert [segment.offset_index.file.has_stand_in for segment in log.segments] == [True, False, False, False]
    delete_oldest(log, 1)
    assert seek(log, 2 * 39) == b"39"
    await repair.stop()
    assert not any(segment.offset_index.file.has_stand_in for segment in log.segments)
    assert seek(log, 2 * 39) == b"39"


async def test_a_file_that_cannot_be_read_is_tried_again(log: Log) -> None:
    """The next read of that segment tries the file again."""
    errors = [OSError(24, "Too many open files")]

    def entries(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return segment_module.offset_entries(*arguments)

    repair = IndexRepair(entries)
    log.on_index_damaged = repair.request
    for is_repaired in (False, True):
        assert seek(log, 38) == b"19"
        await repair.settled()
        assert log.segments[0].offset_index.file.has_stand_in is is_repaired


async def test_a_broker_repairs_and_cleans_such_a_segment(tmp_path: Path) -> None:
    """A client's fetches trigger the rebuild; a round of the cleaner replaces the files by valid ones."""
    async with Broker(config(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as wire:
        await wire.create("t", **{**SMALL, "cleanup_policy": "delete"}, index_interval_bytes="0")
        last = await fill(wire, "t", 100)
        expected = await read(wire, "t")
    for file in sorted((tmp_path / "t-0").glob("*.index"))[:-1]:
        spoil(file)
    async with Broker(config(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as wire:
        assert len(broker.node.index_repair) == 0
        log = broker.node.topics.log("t", 0)
        for offset in (3, 95, 50, 51, 7):
            assert (await read(wire, "t", offset)) == expected[offset:]
        assert len(broker.node.index_repair) > 0
        await broker.node.index_repair.settled()
        assert sum(segment.offset_index.file.has_stand_in for segment in log.segments) > 2
        assert await read(wire, "t") == expected
        await alter(wire, TOPIC, "t", ("cleanup.policy", SET, "compact"))
        cleaner = await broker.services.cleaning.service()
        report = await cleaner.request(("t", 0), RoundRequest(force=True))
        assert report.error is None
        found = await read(wire, "t")
        assert {key: value for _, key, value in found} == last


@pytest.mark.parametrize("delta", [7, 1 << 40], ids=["near", "far"])
async def test_a_damaged_batch_is_not_taken_for_a_damaged_index(
    delta: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The offset of an indexed batch is wrong, which no CRC covers: the old index is kept, as in Kafka, since it leads to the
    batches after it; the log names the file.
    """
    log = make_log(RealEnv(), tmp_path, index_interval_bytes=0)
    for number in range(COUNT):
        log.append_as_leader(batch(b"%d" % number, b"x" * 20))
    log.roll()
    segment = log.segments[0]
    offset, position = segment.offset_index.lookup(30)
    segment.file.pwrite((offset - 1 + delta).to_bytes(8, "big"), position)
    # Who looks for the next batch comes by the entry for the damaged one.
    unharmed = [one for one in range(0, 2 * COUNT, 2) if not offset - 1 <= one <= offset + 2]
    before = {one: seek(log, one) for one in unharmed}
    assert all(value == b"%d" % (one // 2) for one, value in before.items() if one > offset)
    repair = IndexRepair()
    log.on_index_damaged = repair.request
    for _ in range(3):
        for one in range(offset - 1, offset + 3):
            seek(log, one)
        await repair.settled()
    assert {one: seek(log, one) for one in unharmed} == before
    assert not segment.offset_index.file.has_stand_in
    assert caplog.text.count(f"stays as it is, since the .log file is damaged: {segment.path} at") == 1
