"""The files of an output segment."""

from __future__ import annotations

from struct import iter_unpack
from typing import Any

import pytest
from crc32c import crc32c

from diamant.cleaner.engines.output_sync import OutputSync
from diamant.cleaner.rules.result import OutputOverflow, no_output
from diamant.cleaner.segments.segment_writer import SegmentWriter
from diamant.storage.env.clocks import SettableClock
from diamant.storage.segments.txn_index import AbortedTxn
from tests.memory_env import MemoryEnv

PREFIX = "/log/00000000000000000100."


@pytest.fixture
def env() -> MemoryEnv:
    """A file system with a durable, empty directory."""
    env = MemoryEnv(SettableClock(1_000_000))
    env.make_dirs("/log")
    env.sync_dir("/")
    return env


def make_writer(env: MemoryEnv, **fields: Any) -> SegmentWriter:
    """Return a writer at base offset 100 with an index entry per 10 bytes."""
    fields = {"index_interval_bytes": 9, "segment_index_bytes": 1024, "is_strict": True} | fields
    return SegmentWriter(env, "/log", 100, **fields)


def offsets(env: MemoryEnv) -> list[tuple[int, int]]:
    """Entries of the offset index: (relative offset, position)."""
    return list(iter_unpack(">ii", env.read_bytes(PREFIX + "index.cleaned")))


def times(env: MemoryEnv) -> list[tuple[int, int]]:
    """Entries of the time index: (timestamp, relative offset)."""
    return list(iter_unpack(">qi", env.read_bytes(PREFIX + "timeindex.cleaned")))


def test_batches_are_written_as_they_are(env: MemoryEnv) -> None:
    """They are adjacent, and the result has size, checksum, sources and time of the log file."""
    writer = make_writer(env)
    writer.append(b"a" * 10, 101, 5)
    writer.append(b"b" * 10, 103, 6)
    writer.append(b"c" * 7, 105, 7)
    output = writer.finish(777, (100, 104))
    content = b"a" * 10 + b"b" * 10 + b"c" * 7
    assert env.read_bytes(PREFIX + "log.cleaned") == content
    assert (output.base_offset, output.size, output.crc32c) == (100, 27, crc32c(content))
    assert (output.source_base_offsets, output.modified_ms, output.has_txn_index) == ((100, 104), 777, False)
    assert {env.mtime_ms(PREFIX + name + ".cleaned") for name in ("log", "index", "timeindex")} == {777}
    assert not env.exists(PREFIX + "txnindex.cleaned")


def test_an_index_entry_comes_after_more_than_the_interval(env: MemoryEnv) -> None:
    """The first batch has none; the offset is the batch's last one, the position its start."""
    writer = make_writer(env, index_interval_bytes=10)
    for index in range(5):
        writer.append(bytes(6), 101 + index, 1000 + index)
    writer.finish(0, (100,))
    assert offsets(env) == [(3, 12), (5, 24)]
    assert times(env) == [(1002, 3), (1004, 5)]


def test_the_time_index_ascends(env: MemoryEnv) -> None:
    """An entry has the greatest timestamp so far, the first of equal ones, and is omitted if that is not greater."""
    writer = make_writer(env)
    for last, stamp in ((101, 50), (102, 40), (103, 50), (104, 60)):
        writer.append(bytes(10), last, stamp)
    writer.finish(0, (100,))
    assert offsets(env) == [(2, 10), (3, 20), (4, 30)]
    assert times(env) == [(50, 1), (60, 4)]


def test_batches_without_timestamps_have_no_time_entry(env: MemoryEnv) -> None:
    """-1 is no time."""
    writer = make_writer(env)
    writer.append(bytes(10), 101, -1)
    writer.append(bytes(10), 102, -1)
    writer.finish(0, (100,))
    assert times(env) == []


def test_an_empty_output_has_empty_files(env: MemoryEnv) -> None:
    """Log and both indexes are there, and readable by a start."""
    output = make_writer(env).finish(5, (100,))
    assert (output.size, output.crc32c) == (0, 0)
    assert [env.file_size(PREFIX + name + ".cleaned") for name in ("log", "index", "timeindex")] == [0, 0, 0]


def test_aborted_transactions_get_an_index(env: MemoryEnv) -> None:
    """The file exists only if there are any."""
    writer = make_writer(env)
    writer.append(bytes(10), 101, 0)
    writer.add_aborted(AbortedTxn(7, 100, 101, 102))
    assert writer.finish(0, (100,)).has_txn_index
    assert AbortedTxn.from_bytes(env.read_bytes(PREFIX + "txnindex.cleaned")) == AbortedTxn(7, 100, 101, 102)


@pytest.mark.parametrize("limit", [40, 24])
def test_a_full_index_fails_or_gets_coarser(env: MemoryEnv, limit: int) -> None:
    """With `is_strict` it fails as in Kafka, which keeps one slot of the time index free; otherwise the entry is omitted.

    40 bytes are five offset entries but only three time entries with one to spare; 24 bytes one time entry.
    """
    room = limit // 12 - 1
    writer = make_writer(env, segment_index_bytes=limit)
    for index in range(room + 1):
        writer.append(bytes(10), 101 + index, index)
    with pytest.raises(OutputOverflow, match="full with"):
        writer.append(bytes(10), 190, 99)
    writer.abandon()
    writer = make_writer(env, segment_index_bytes=limit, is_strict=False)
    for index in range(9):
        writer.append(bytes(10), 101 + index, index)
    assert writer.finish(0, (100,)).size == 90
    assert len(offsets(env)) == room
    assert times(env)[-1] == (8, 9)


def test_offsets_beyond_31_bits_are_refused(env: MemoryEnv) -> None:
    """The index could not hold them."""
    writer = make_writer(env)
    writer.append(bytes(10), 100 + 2**31 - 1, 0)
    with pytest.raises(OutputOverflow, match="31 bits"):
        writer.append(bytes(10), 100 + 2**31, 0)


def test_abandoning_leaves_nothing(env: MemoryEnv) -> None:
    """A writer can be abandoned before or after its end, and twice, and leaves nothing."""
    writer = make_writer(env)
    writer.append(bytes(10), 101, 0)
    writer.abandon()
    writer = make_writer(env)
    writer.add_aborted(AbortedTxn(7, 100, 101, 102))
    writer.finish(0, (100,))
    writer.abandon()
    writer.abandon()
    assert env.list_dir("/log") == []


def test_leftovers_of_an_earlier_attempt_are_removed(env: MemoryEnv) -> None:
    """A round that crashed left files of the same names."""
    first = make_writer(env)
    first.append(b"old", 101, 0)
    first.add_aborted(AbortedTxn(7, 100, 101, 102))
    first.finish(0, (100,))
    writer = make_writer(env)
    writer.append(b"new", 101, 0)
    writer.finish(0, (100,))
    assert env.read_bytes(PREFIX + "log.cleaned") == b"new"
    assert not env.exists(PREFIX + "txnindex.cleaned")


def test_a_finished_output_survives_a_crash(env: MemoryEnv) -> None:
    """The contents are synced; the swap syncs the directory."""
    writer = make_writer(env)
    writer.append(b"x" * 20, 101, 1)
    writer.append(b"y" * 20, 102, 2)
    with OutputSync(env, "/log", no_output, 0) as sync:
        sync.add(writer.finish(0, (100,)))
    env.sync_dir("/log")
    env.crash()
    assert env.read_bytes(PREFIX + "log.cleaned") == b"x" * 20 + b"y" * 20
    assert (len(offsets(env)), len(times(env))) == (1, 1)
