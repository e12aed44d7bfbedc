"""The time index (TimeIndexTest)."""

from __future__ import annotations

import bisect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diamant.storage.errors import CorruptLog
from diamant.storage.segments.time_index import TimeIndex
from tests.memory_env import MemoryEnv

BASE = 345
PATH = "/00000000000000000345.timeindex"


def make_index(env: MemoryEnv | None = None, max_bytes: int = 12 * 200) -> TimeIndex:
    return TimeIndex(MemoryEnv() if env is None else env, PATH, BASE, max_bytes)


def filled(count: int = 10, env: MemoryEnv | None = None, max_bytes: int = 12 * 200) -> TimeIndex:
    index = make_index(env, max_bytes)
    for number in range(count):
        index.maybe_append(number * 10 + 10, BASE + number * 10 + 10)
    return index


@given(
    st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**31 - 1)), max_size=60),
    st.lists(st.integers(-5, 2**62 + 5), max_size=20),
    st.booleans(),
)
def test_lookup_is_floor(pairs: list[tuple[int, int]], targets: list[int], is_closed: bool) -> None:
    """Lookup gives the last entry at or before the target, from the heap and from the file alike."""
    timestamps = sorted({timestamp for timestamp, _ in pairs})
    offsets = sorted(offset for _, offset in pairs)[: len(timestamps)]
    env = MemoryEnv()
    index = make_index(env)
    for timestamp, offset in zip(timestamps, offsets, strict=True):
        index.maybe_append(timestamp, BASE + offset)
    if is_closed:
        index.file.trim_to_valid_size()
        index = make_index(env)
    entries = [(timestamp, BASE + offset) for timestamp, offset in zip(timestamps, offsets, strict=True)]
    assert [index.entry(number) for number in range(index.file.entries)] == entries
    with pytest.raises(IndexError):
        index.entry(len(entries))
    for target in [*targets, *timestamps]:
        at = bisect.bisect_right(timestamps, target) - 1
        assert index.lookup(target) == (entries[at] if at >= 0 else (-1, BASE))


def test_append_only_newer_timestamps() -> None:
    """An equal timestamp is no entry; one without timestamp (-1) neither; going back is an error."""
    index = make_index()
    index.maybe_append(-1, BASE)
    assert index.file.entries == 0
    assert index.last_entry == (-1, BASE)
    index.maybe_append(10, BASE + 1)
    index.maybe_append(10, BASE + 2)
    assert index.file.entries == 1
    assert index.last_entry == (10, BASE + 1)
    with pytest.raises(ValueError, match="timestamp of at least 10"):
        index.maybe_append(9, BASE + 2)
    with pytest.raises(ValueError, match="offset from"):
        index.maybe_append(11, BASE)
    with pytest.raises(ValueError, match="offset from"):
        index.maybe_append(11, BASE + 2**31)
    assert index.last_entry == (10, BASE + 1)


def test_one_slot_is_kept_for_the_final_entry() -> None:
    """The index is full one entry early; the entry at roll may take the last slot."""
    index = make_index(max_bytes=12 * 3 + 5)
    index.maybe_append(1, BASE + 1)
    assert not index.is_full
    index.maybe_append(2, BASE + 2)
    assert index.is_full
    with pytest.raises(ValueError, match="full"):
        index.maybe_append(3, BASE + 3)
    index.maybe_append(3, BASE + 3, skip_full_check=True)
    assert index.last_entry == (3, BASE + 3)
    index.file.trim_to_valid_size()
    assert index.is_full


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize(("relative", "kept"), [(0, 0), (10, 0), (11, 1), (55, 5), (100, 9), (101, 10)])
def test_truncation_drops_entries_at_or_above_the_offset(
    memory: MemoryEnv, relative: int, kept: int, is_closed: bool
) -> None:
    """Truncation drops entries at or above the offset, and the last entry is right afterwards."""
    index = filled(10, memory)
    if is_closed:
        index.file.trim_to_valid_size()
    index.truncate_to(BASE + relative)
    assert index.file.entries == kept
    assert index.last_entry == ((kept * 10, BASE + kept * 10) if kept else (-1, BASE))
    index.file.trim_to_valid_size()
    assert memory.file_size(PATH) == kept * 12
    assert make_index(memory).last_entry == index.last_entry


def test_bytes_on_disk(memory: MemoryEnv) -> None:
    """Entries are a 64-bit and a 32-bit number, big-endian."""
    index = make_index(memory)
    index.maybe_append(0x0102030405060708, BASE + 9)
    index.file.flush()
    index.maybe_append(0x0102030405060709, BASE + 0x7FFFFFFF)
    index.file.trim_to_valid_size()
    assert memory.read_bytes(PATH) == bytes.fromhex("010203040506070800000009 01020304050607097fffffff")
    again = make_index(memory)
    again.maybe_append(0x010203040506070A, BASE + 0x7FFFFFFF)
    assert again.entry(1) == (0x0102030405060709, BASE + 0x7FFFFFFF)


@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_zero_padding_is_no_entry(memory: MemoryEnv, count: int) -> None:
    """A file that Kafka had preallocated is read up to the zeros, and loses them when it is flushed, even untouched."""
    filled(count, memory).file.trim_to_valid_size()
    memory.open(PATH, create=True).append(bytes(12 * 300 - count * 12))
    index = make_index(memory)
    assert index.file.entries == count
    assert index.last_entry == ((count * 10, BASE + count * 10) if count else (-1, BASE))
    index.file.flush()
    assert memory.file_size(PATH) == count * 12


def test_a_first_entry_of_zeros_is_an_entry(memory: MemoryEnv) -> None:
    """Timestamp 0 at the base offset is legal, alone or before others, and not taken for padding."""
    index = make_index(memory)
    index.maybe_append(0, BASE)
    index.file.trim_to_valid_size()
    assert make_index(memory).last_entry == (0, BASE)
    again = make_index(memory)
    again.maybe_append(5, BASE + 1)
    again.file.trim_to_valid_size()
    memory.open(PATH).append(bytes(12 * 7))
    assert make_index(memory).file.entries == 2


def test_a_last_time_before_the_first_is_corrupt() -> None:
    """A last entry before the first or below the base, or a broken length, is a corrupt file."""
    for patch, position, message in (
        ((5).to_bytes(8, "big"), 9 * 12, "expected timestamps from 10, got 5"),
        ((-7).to_bytes(4, "big", signed=True), 9 * 12 + 8, "expected offsets from 345, got 338"),
        (b"x", 10 * 12, "multiple of 12"),
    ):
        env = MemoryEnv()
        index = filled(10, env)
        index.file.trim_to_valid_size()
        index.sanity_check()
        env.open(PATH).pwrite(patch, position)
        with pytest.raises(CorruptLog, match=message):
            make_index(env).sanity_check()
    empty = make_index()
    empty.file.flush()
    empty.sanity_check()
