"""The index of aborted transactions (TransactionIndexTest)."""

from __future__ import annotations

from pathlib import Path

import pytest

from diamant.storage.env.env import RealEnv
from diamant.storage.errors import CorruptLog
from diamant.storage.segments.txn_index import ENTRY_SIZE, AbortedTxn, TransactionIndex
from tests.memory_env import MemoryEnv

PATH = "/00000000000000000000.txnindex"
ENTRIES = [AbortedTxn(0, 0, 10, 11), AbortedTxn(1, 5, 15, 13), AbortedTxn(2, 18, 35, 25), AbortedTxn(3, 32, 50, 40)]


def make_index(env: MemoryEnv | None = None, base_offset: int = 0) -> TransactionIndex:
    return TransactionIndex(MemoryEnv() if env is None else env, PATH, base_offset)


def filled(env: MemoryEnv | None = None) -> TransactionIndex:
    index = make_index(env)
    for aborted in ENTRIES:
        index.append(aborted)
    return index


def test_bytes_of_an_entry() -> None:
    """An entry has the bytes that Kafka writes for it."""
    aborted = AbortedTxn(1000, 5, 7, 8)
    data = bytes.fromhex("000000000000000003e8000000000000000500000000000000070000000000000008")
    assert aborted.to_bytes() == data
    assert AbortedTxn.from_bytes(data) == aborted
    env = MemoryEnv()
    make_index(env).append(aborted)
    assert env.read_bytes(PATH) == data


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize(
    ("start", "end", "expected", "is_complete"),
    [
        (0, 100, ENTRIES, False),
        (0, 32, ENTRIES[:3], True),
        (0, 35, ENTRIES, True),
        (10, 35, ENTRIES, True),
        (11, 35, ENTRIES[1:], True),
        (20, 41, ENTRIES[2:], False),
        (51, 100, [], False),
    ],
)
def test_transactions_that_overlap_a_range_are_found(
    start: int, end: int, expected: list[AbortedTxn], is_complete: bool, is_closed: bool
) -> None:
    """The transactions that overlap a range are found, and whether later segments need be asked."""
    index = filled()
    if is_closed:
        index.trim_to_valid_size()
    assert index.collect(start, end) == (expected, is_complete)


def test_no_file_until_the_first_entry(memory: MemoryEnv) -> None:
    """Nothing is created by looking, flushing, syncing or truncating; most segments never have the file."""
    index = make_index(memory)
    index.flush()
    index.sync()
    index.sanity_check()
    index.truncate_to(0)
    index.reset()
    index.trim_to_valid_size()
    index.rename("/other.txnindex")
    assert index.collect(0, 100) == ([], False)
    assert index.last_offset is None
    assert memory.list_dir("/") == []
    index.append(ENTRIES[0])
    assert memory.list_dir("/") == ["other.txnindex"]
    index.rename(PATH)
    assert memory.list_dir("/") == [PATH[1:]]


@pytest.mark.parametrize("kept", [0, 1, None])
def test_entries_that_another_program_cut_off_are_written_again(memory: MemoryEnv, kept: int | None) -> None:
    """The next entry puts those back that the file lacks: a gap of zeros would be read as transactions of producer 0."""
    index = make_index(memory)
    for aborted in ENTRIES[:-1]:
        index.append(aborted)
    if kept is None:
        memory.remove(PATH)
    else:
        memory.open(PATH).truncate(kept * ENTRY_SIZE)
    index.append(ENTRIES[-1])
    assert index.all() == make_index(memory).all() == ENTRIES


def test_last_offsets_must_rise() -> None:
    """An entry that does not end after the last one is refused."""
    index = make_index()
    index.append(AbortedTxn(0, 0, 10, 11))
    for last_offset in (10, 9):
        with pytest.raises(ValueError, match="above 10"):
            index.append(AbortedTxn(1, 5, last_offset, 12))
    assert index.all() == [AbortedTxn(0, 0, 10, 11)]


def test_reopen_appends_after_what_is_there(memory: MemoryEnv) -> None:
    """A reopened index goes on after its old entries and drops a trailing part of one."""
    filled(memory).trim_to_valid_size()
    memory.open(PATH).append(b"\0" * 20)
    again = make_index(memory)
    assert again.entries == 4
    assert again.last_offset == 50
    later = AbortedTxn(9, 60, 70, 71)
    again.append(later)
    assert make_index(memory).all() == [*ENTRIES, later]
    assert memory.file_size(PATH) == 5 * 34


@pytest.mark.parametrize("is_closed", [False, True])
def test_truncation_cuts_at_the_first_transaction_that_ends_above(memory: MemoryEnv, is_closed: bool) -> None:
    """The file is cut at the first transaction that ends at or above the offset."""
    index = filled(memory)
    for offset, kept in ((51, 4), (50, 3), (16, 2), (0, 0)):
        if is_closed:
            index.trim_to_valid_size()
        index.truncate_to(offset)
        assert index.all() == ENTRIES[:kept]
        assert memory.file_size(PATH) == kept * 34
    index.append(ENTRIES[0])
    index.reset()
    assert index.all() == []
    assert memory.file_size(PATH) == 0


def test_an_entry_below_the_base_offset_is_corrupt(memory: MemoryEnv) -> None:
    """An entry that ends below the segment's base offset is corrupt."""
    filled(memory).sanity_check()
    with pytest.raises(CorruptLog, match="expected last offsets from 100"):
        make_index(memory, base_offset=100).sanity_check()


def test_appended_entries_are_durable_after_a_sync(memory: MemoryEnv) -> None:
    """What was appended is durable after a sync, and not before."""
    index = make_index(memory)
    index.append(ENTRIES[0])
    index.sync()
    memory.sync_dir("/")
    index.append(ENTRIES[1])
    memory.crash()
    assert make_index(memory).all() == ENTRIES[:1]


@pytest.mark.usefixtures("short_reads")
def test_short_reads_lose_no_entry(tmp_path: Path) -> None:
    """An index that is read by halves after a start has all its entries, and keeps them when the next one is added."""
    path, env = str(tmp_path / "00000000000000000000.txnindex"), RealEnv()
    for aborted in ENTRIES[:-1]:
        TransactionIndex(env, path, 0).append(aborted)
    reopened = TransactionIndex(RealEnv(), path, 0)
    assert reopened.all() == ENTRIES[:-1]
    reopened.append(ENTRIES[-1])
    assert (tmp_path / "00000000000000000000.txnindex").read_bytes() == b"".join(map(AbortedTxn.to_bytes, ENTRIES))
