"""The offset index (OffsetIndexTest)."""

from __future__ import annotations

import bisect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diamant.storage.env.env import Env
from diamant.storage.errors import CorruptLog
from diamant.storage.segments.offset_index import OffsetIndex
from tests.memory_env import MemoryEnv

BASE = 45
PATH = "/00000000000000000045.index"


def make_index(env: Env | None = None, max_bytes: int = 30 * 8) -> OffsetIndex:
    return OffsetIndex(MemoryEnv() if env is None else env, PATH, BASE, max_bytes)


@given(
    st.lists(st.integers(1, 2**31 - 1), unique=True, max_size=60).map(sorted),
    st.lists(st.integers(-5, 2**31 + 10), max_size=20),
    st.booleans(),
)
def test_lookup_is_floor(relatives: list[int], targets: list[int], is_closed: bool) -> None:
    """Lookup gives the last entry at or below the target, from the heap and from the file alike; none means the base."""
    index = make_index(max_bytes=1000)
    for number, relative in enumerate(relatives):
        index.append(BASE + relative, number * 10)
    if is_closed:
        index.file.trim_to_valid_size()
    entries = [(BASE + relative, number * 10) for number, relative in enumerate(relatives)]
    assert [index.entry(number) for number in range(index.file.entries)] == entries
    with pytest.raises(IndexError):
        index.entry(len(entries))
    assert index.last_entry == [(BASE, 0), *entries][-1]
    assert index.last_offset == index.last_entry[0]
    for target in [*targets, *relatives]:
        at = bisect.bisect_right(relatives, target)
        assert index.lookup(BASE + target) == (entries[at - 1] if at else (BASE, 0))
    for position in range(0, len(relatives) * 10 + 5, 7):
        at = min(position // 10, len(relatives) - 1)
        assert index.lookup_position(position) == (entries[at] if entries else (BASE, 0))


def test_append_too_many() -> None:
    """A full index reports it and refuses entries."""
    index = make_index(max_bytes=3 * 8 + 7)
    for number in range(3):
        assert not index.is_full
        index.append(BASE + number + 1, number)
    assert index.is_full
    with pytest.raises(ValueError, match="full"):
        index.append(BASE + 10, 10)
    assert index.file.entries == 3


@pytest.mark.parametrize("offset", [BASE + 50, BASE + 51, BASE - 1, BASE + 2**31])
def test_append_out_of_order(offset: int) -> None:
    """Offsets must ascend and stay within 31 bits of the base; a refused entry leaves no trace."""
    index = make_index()
    index.append(BASE + 51, 0)
    with pytest.raises(ValueError, match=str(offset)):
        index.append(offset, 1)
    assert index.file.entries == 1
    with pytest.raises(OverflowError):
        index.append(BASE + 52, 2**31)
    index.append(BASE + 52, 7)
    assert index.lookup(BASE + 52) == (BASE + 52, 7)


@pytest.mark.parametrize("is_closed", [False, True])
def test_the_bound_of_a_range_is_the_entry_at_its_end(is_closed: bool) -> None:
    """The bound for a fetched range is the first entry at or after its end."""
    index = make_index()
    assert index.upper_bound(0, 10) is None
    for offset, position in ((1, 0), (2, 10), (3, 23), (4, 37)):
        index.append(BASE + offset, position)
    if is_closed:
        index.file.trim_to_valid_size()
    assert index.upper_bound(0, 5) == BASE + 2
    assert index.upper_bound(0, 10) == BASE + 2
    assert index.upper_bound(0, 22) == BASE + 3
    assert index.upper_bound(0, 23) == BASE + 3
    assert index.upper_bound(10, 24) == BASE + 4
    assert index.upper_bound(0, 38) is None
    assert index.upper_bound(37, 30) is None


def test_bytes_on_disk(memory: MemoryEnv) -> None:
    """Entries are two big-endian 32-bit numbers, and the file is no longer than they are."""
    index = make_index(memory)
    index.append(BASE + 1, 2)
    index.append(BASE + 0x01020304, 0x7FFFFFFF)
    assert not memory.exists(PATH)
    index.file.trim_to_valid_size()
    assert memory.read_bytes(PATH) == bytes.fromhex("0000000100000002 010203047fffffff")


def test_reopen_and_continue(memory: MemoryEnv) -> None:
    """Flushed entries are found by the next process, which appends after them."""
    index = make_index(memory)
    index.append(BASE + 1, 10)
    index.file.flush()
    index.append(BASE + 2, 20)
    index.file.trim_to_valid_size()
    again = make_index(memory, max_bytes=16)
    assert again.last_entry == (BASE + 2, 20)
    assert again.is_full
    wider = make_index(memory)
    wider.append(BASE + 3, 30)
    wider.file.flush()
    assert memory.file_size(PATH) == 24
    assert make_index(memory).lookup(BASE + 9) == (BASE + 3, 30)


def test_an_empty_index_has_a_file_after_flush(memory: MemoryEnv) -> None:
    """Kafka expects an index file beside every segment of a closed log, also an empty one."""
    make_index(memory).file.flush()
    assert memory.file_size(PATH) == 0
    changes = memory.change_count
    again = make_index(memory)
    again.file.flush()
    again.file.flush()
    assert memory.change_count == changes


@pytest.mark.parametrize("count", [0, 1, 2, 3, 100])
def test_zero_padding_is_no_entry(memory: MemoryEnv, count: int) -> None:
    """A file that Kafka had preallocated is read up to the zeros, and loses them when it is written."""
    index = make_index(memory, max_bytes=10_000)
    for number in range(count):
        index.append(BASE + number + 1, number * 10 + 1)
    index.file.trim_to_valid_size()
    file = memory.open(PATH, create=True)
    file.append(bytes(8 * 1000 - count * 8))
    again = make_index(memory, max_bytes=10_000)
    assert again.file.entries == count
    assert again.last_offset == BASE + count
    assert not again.is_full
    again.append(BASE + count + 5, 5000)
    again.file.flush()
    assert memory.file_size(PATH) == (count + 1) * 8
    flushed = make_index(memory, max_bytes=10_000)
    flushed.file.flush()
    assert flushed.file.entries == count + 1


def test_a_last_offset_below_the_base_is_corrupt(memory: MemoryEnv) -> None:
    """A last entry at the base offset is fine; one below it, or a broken length, is a corrupt file."""
    index = make_index(memory)
    index.append(BASE, 0)
    index.file.trim_to_valid_size()
    index.sanity_check()
    memory.open(PATH).pwrite((-1).to_bytes(4, "big", signed=True), 0)
    with pytest.raises(CorruptLog, match="expected offsets from 45, got 44") as caught:
        make_index(memory).sanity_check()
    assert caught.value.path == PATH
    memory.open(PATH).append(b"x")
    with pytest.raises(CorruptLog, match="multiple of 8"):
        make_index(memory).sanity_check()


def test_renaming_works_before_there_is_a_file(memory: MemoryEnv) -> None:
    """Renaming works before there is a file, which then gets the new name."""
    index = make_index(memory)
    index.file.rename("/other.index")
    assert memory.list_dir("/") == []
    index.append(BASE + 1, 1)
    index.file.flush()
    assert memory.list_dir("/") == ["other.index"]
    index.file.rename("/third.index")
    assert memory.list_dir("/") == ["third.index"]
    assert index.file.path == "/third.index"


def test_sync_makes_durable_once(memory: MemoryEnv) -> None:
    """A sync writes and syncs; without a change it does nothing; entries appended later need another one."""
    index = make_index(memory)
    index.append(BASE + 1, 10)
    index.file.sync()
    memory.sync_dir("/")
    syncs = memory.sync_count
    index.file.sync()
    assert memory.sync_count == syncs
    index.append(BASE + 2, 20)
    index.file.flush()
    memory.crash()
    assert make_index(memory).file.entries == 1


def test_a_closed_index_keeps_no_entries_in_memory() -> None:
    """After trimming, lookups read the file; an append loads it again."""
    index = make_index()
    index.append(BASE + 1, 10)
    index.file.trim_to_valid_size()
    assert index.file.heap is None
    assert index.lookup(BASE + 3) == (BASE + 1, 10)
    assert index.file.heap is None
    index.append(BASE + 2, 20)
    assert index.file.entries == 2
