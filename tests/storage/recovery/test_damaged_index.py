"""Offset indexes damaged between an orderly stop and the next start: no read skips a record.

Kafka believes an index, and goes on behind the records that a wrong entry passes over.
"""

from __future__ import annotations

import logging
import random
from functools import partial
from pathlib import Path

import pytest

from diamant.protocol.batches.batch import iter_headers
from diamant.storage.env.env import RealEnv
from diamant.storage.errors import CorruptLog
from diamant.storage.log.log import Log
from diamant.storage.recovery.open_log import is_time_index_whole
from diamant.storage.segments.offset_index import ENTRY_SIZE
from diamant.storage.segments.segment import Segment
from tests.cleaner.cleaner_log import CleanerLog
from tests.storage.logs import batch, make_log, read_all, reopen, values
from tests.storage.recovery import test_loader

COUNT = 80


@pytest.fixture
def log(env: RealEnv, tmp_path: Path) -> Log:
    """A log of three closed segments and an active one, with many index entries in each but the last."""
    log = make_log(env, tmp_path, index_interval_bytes=100)
    for number in range(COUNT):
        if number % 25 == 24:
            log.roll()
        log.append_as_leader(batch(b"%d" % number, b"x" * (number % 7 * 10)))
    return log


def index_file(log: Log, segment: int) -> Path:
    return Path(log.segments[segment].offset_index.file.path)


load = partial(test_loader.load, is_clean=True)
"""Start after an orderly stop."""


def change(log: Log, segment: int, entry: int, *, offset: int | None = None, position: int | None = None) -> Log:
    """Stop, write another relative offset or position into an entry (negative: from the end), and start."""
    log.close()
    file = index_file(log, segment)
    data = bytearray(file.read_bytes())
    at = entry * ENTRY_SIZE % len(data)
    if offset is not None:
        data[at : at + 4] = offset.to_bytes(4, "big", signed=True)
    if position is not None:
        data[at + 4 : at + 8] = position.to_bytes(4, "big", signed=True)
    file.write_bytes(data)
    return load(log)[0]


def check_reads(log: Log, count: int = COUNT) -> None:
    """Check that every offset is found in its batch, whatever the size limit."""
    assert log.log_end_offset == 2 * count
    for offset in range(0, 2 * count, 2):
        for max_bytes in (1, 500):
            log.reader._positions.clear()
            found = values(log.read(offset, max_bytes, isolation_level=0, min_one_message=True))
            assert found[0] == b"%d" % (offset // 2)
            assert len(found) % 2 == 0
    assert read_all(log)[::2] == [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("segment", [1, 3], ids=["middle", "active"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("position", value) for value in (-7, 1, 777, 2**31 - 1)),
        *(("offset", value) for value in (-1, 0, 3, 40, 2**31 - 1)),
    ],
)
def test_a_wrong_entry(log: Log, segment: int, field: str, value: int) -> None:
    """For a position where no batch begins an earlier entry is used; an offset may be wrong even if entries are out of order."""
    for entry in (0, 4, -1):
        log = change(log, segment, entry, **{field: value})
        check_reads(log)


@pytest.mark.parametrize("segment", [1, 3], ids=["middle", "active"])
def test_a_position_of_another_batch(log: Log, segment: int) -> None:
    """The position of an earlier batch only costs time; that of a later one would skip records."""
    positions = [at for at, _ in iter_headers(Path(log.segments[segment].path).read_bytes())]
    for position in positions[::3]:
        log = change(log, segment, 4, position=position)
        check_reads(log)


def test_the_active_time_index_is_made_again_if_its_last_entry_lies_before_the_segment(log: Log) -> None:
    """After an orderly stop, too: otherwise the next stop could not add its last entry, and would fail."""
    log.close()
    Path(log.active.time_index.file.path).write_bytes((2**60).to_bytes(8, "big") + (-5).to_bytes(4, "big", signed=True))
    log = load(log)[0]
    check_reads(log)
    log.append_as_leader(batch(b"%d" % COUNT, b""))
    log.close()
    check_reads(load(log)[0], COUNT + 1)


@pytest.mark.parametrize("segment", [1, 3], ids=["middle", "active"])
def test_a_rebuilt_time_index_keeps_nothing_of_a_damaged_one(log: Log, segment: int) -> None:
    """After a crash indexes are made again, whatever is in their files: an entry before the segment is gone, too."""
    log.close()
    file = Path(log.segments[segment].time_index.file.path)
    file.write_bytes((2**60).to_bytes(8, "big") + (-5).to_bytes(4, "big", signed=True))
    log = test_loader.load(log)[0]
    check_reads(log)
    timestamps, offsets = [], []
    for entry in range(log.segments[segment].time_index.file.entries):
        timestamp, offset = log.segments[segment].time_index.entry(entry)
        timestamps.append(timestamp)
        offsets.append(offset)
    assert offsets[0] >= log.segments[segment].base_offset
    assert max(timestamps) < 2**60


@pytest.mark.parametrize("seed", range(8))
def test_any_bytes(log: Log, seed: int) -> None:
    """Reads are right even if the whole index is garbage."""
    log.close()
    rng = random.Random(seed)
    for segment in range(len(log.segments)):
        file = index_file(log, segment)
        data = bytearray(file.read_bytes())
        for _ in range(rng.choice([1, 4, len(data)])):
            data[rng.randrange(len(data))] = rng.choice([0, 1, 255, rng.randrange(256)])
        file.write_bytes(data)
    check_reads(load(log)[0])


def test_a_damaged_index_is_logged_once_for_each_segment(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """One warning per segment names the file, the entry and the remedy."""
    log = change(log, 1, 4, position=777)
    with caplog.at_level(logging.WARNING):
        check_reads(log)
    (record,) = caplog.records
    assert str(index_file(log, 1)) in record.getMessage()
    assert "position 777" in record.getMessage()


def test_a_whole_index_is_never_told_of(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """A whole index causes no warning and no second scan."""
    with caplog.at_level(logging.WARNING):
        check_reads(log)
        check_reads(reopen(log))
    assert caplog.records == []


def test_a_damaged_log_file_is_not_blamed_on_its_index(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """The error names the `.log` file and its first invalid position."""
    _, position = log.segments[1].offset_index.entry(4)
    offset, _ = log.segments[1].offset_index.entry(5)
    path = Path(log.segments[1].path)
    data = path.read_bytes()
    path.write_bytes(data[:position] + b"\xff" * 20 + data[position + 20 :])
    with caplog.at_level(logging.WARNING), pytest.raises(CorruptLog) as caught:
        reopen(log).read(log.segments[1].offset_index.entry(4)[0], 100, isolation_level=0, min_one_message=True)
    assert (caught.value.path, caught.value.position) == (str(path), position)
    assert read_all(log, offset)
    assert caplog.records == []


def test_appends_continue_behind_a_damaged_index(log: Log) -> None:
    """A last entry far above the end would refuse appends: the start rebuilds the active segment's indexes."""
    for suffix in (".index", ".timeindex"):
        log.active.flush_indexes()
        log.close()
        file = index_file(log, 3).with_suffix(suffix)
        data = file.read_bytes()
        file.write_bytes(data[:-8] + b"\x7f" * 8 if suffix == ".index" else data[:-4] + b"\x7f" * 4)
        log, (message,) = load(log)
        assert "rebuilt" in message
        assert log.log_end_offset == 2 * COUNT
    for number in range(COUNT, COUNT + 20):
        log.append_as_leader(batch(b"%d" % number, b"y" * 50, timestamp=1_700_000_000_000 + number))
    check_reads(log, COUNT + 20)


def test_a_time_entry_that_lost_its_offset_is_incomplete(env: RealEnv, tmp_path: Path) -> None:
    """A loss of power may leave zeros at the end of the entry that a roll has added; the start then rebuilds the index."""
    log = make_log(env, tmp_path)
    for number in range(3):
        log.append_as_leader(batch(b"k", b"v", timestamp=1_700_000_000_000 + number))
    log.roll()
    assert is_time_index_whole(log.segments[0])
    file = Path(log.segments[0].time_index.file.path)
    file.write_bytes(file.read_bytes()[:-4] + bytes(4))
    assert not is_time_index_whole(Segment(env, log.path, 0, log.config))


def test_gaps_of_compaction_are_no_damage(caplog: pytest.LogCaptureFixture) -> None:
    """A read at a compacted offset gets the next one, with whole and with damaged indexes."""
    log = CleanerLog(index_interval_bytes=0)
    for number in range(60):
        log.data(f"k{number % 40 if number % 3 else number}", "same")
    log.write("roll | end")
    log.clean()
    lasts = log.lasts()

    def check() -> None:
        for offset in range(log.log.log_end_offset):
            log.log.reader._positions.clear()
            result = log.log.read(offset, 1, isolation_level=0, min_one_message=True)
            (header,) = [header for part in result.slices for _, header in iter_headers(part.read())]
            assert header.last_offset == next(last for last in lasts if last >= offset)

    index = f"{log.log.segments[0].offset_index.file.path}"
    with caplog.at_level(logging.WARNING):
        check()
        log.reload()
        check()
    assert caplog.records == []
    data = log.env.read_bytes(index)
    for at in range(4, len(data), 5 * ENTRY_SIZE):
        log.log.close()
        changed = data[:at] + (int.from_bytes(data[at : at + 4], "big") + 61).to_bytes(4, "big") + data[at + 4 :]
        log.env.write_atomically(index, changed)
        log.reload()
        check()


def test_entries_of_several_batches_are_none_either(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """Entries of older Kafka versions, with position of the first and offset of the last of several batches, are valid."""
    positions = [at for at, _ in iter_headers(Path(log.segments[1].path).read_bytes())]
    before = positions[positions.index(log.segments[1].offset_index.entry(4)[1]) - 2]
    log = change(log, 1, 4, position=before)
    with caplog.at_level(logging.WARNING):
        check_reads(log)
    assert caplog.records == []


def test_a_round_that_begins_inside_of_a_segment_misses_no_key() -> None:
    """The map must not start behind the first dirty offset, or older records of the skipped keys would stay."""
    log = CleanerLog(index_interval_bytes=0)
    for number in range(20):
        log.data(f"k{number % 10}")
    log.roll()
    index = log.log.segments[0].offset_index
    data = log.env.read_bytes(index.file.path)
    at = next(at for at in range(index.file.entries) if index.entry(at)[0] == 10) * ENTRY_SIZE
    log.log.close()
    log.env.write_atomically(index.file.path, data[: at + 4] + data[at + 28 : at + 32] + data[at + 8 :])
    log.reload()
    log.first_dirty = 10
    log.clean()
    assert log.keys() == [f"k{number}" for number in range(10)]
