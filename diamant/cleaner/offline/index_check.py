"""Reads the index files of a segment and checks them. Layouts: offset_index.py, time_index.py, txn_index.py.

Zeros after the last entry, with which Kafka preallocates an index, are not entries. Memory: the file, at most
`segment.index.bytes` long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from struct import Struct

from diamant.cleaner.segments.tolerant_reader import Problem, SegmentFile
from diamant.storage import names
from diamant.storage.env.env import MAX_LOG_FILE, Env
from diamant.storage.segments import offset_index, time_index, txn_index
from diamant.storage.segments.index_file import stored_entries
from diamant.storage.segments.txn_index import AbortedTxn

_OFFSET_ENTRY = Struct(">ii")
_TIME_ENTRY = Struct(">qi")
_ENTRY_SIZES = {
    names.INDEX_SUFFIX: offset_index.ENTRY_SIZE,
    names.TIME_INDEX_SUFFIX: time_index.ENTRY_SIZE,
    names.TXN_INDEX_SUFFIX: txn_index.ENTRY_SIZE,
}


@dataclass(slots=True)
class CheckedIndexes:
    """The indexes of a segment. An index is None if its file is missing or cannot be read."""

    offsets: list[tuple[int, int]] | None = None
    times: list[tuple[int, int]] | None = None
    aborted: list[AbortedTxn] | None = None
    missing: list[str] = field(default_factory=list)
    """Paths of the files that do not exist."""
    problems: list[Problem] = field(default_factory=list)


def check_indexes(env: Env, segment: SegmentFile) -> CheckedIndexes:
    """Read and check the indexes of a segment. An unreadable index is a problem that ends the check."""
    found, base_offset, path = CheckedIndexes(), segment.base_offset, ""
    try:
        for suffix, entry_size in _ENTRY_SIZES.items():
            path = segment.path.removesuffix(names.LOG_SUFFIX) + suffix
            if not env.exists(path):
                found.missing.append(path)
                continue
            faults = [check_length(env, path, entry_size)]
            if suffix == names.INDEX_SUFFIX:
                found.offsets = list(read_offset_index(env, path, base_offset))
                faults.append(check_offset_index(path, found.offsets, base_offset, segment.size))
            elif suffix == names.TIME_INDEX_SUFFIX:
                found.times = list(read_time_index(env, path, base_offset))
                faults.append(check_time_index(path, found.times, base_offset))
            else:
                found.aborted = read_txn_index(env, path)
            found.problems += [fault for fault in faults if fault is not None]
    except OSError as error:
        found.problems.append(Problem(path, None, f"cannot be read: {error.strerror or error}"))
    return found


def read_offset_index(env: Env, path: str, base_offset: int) -> Iterator[tuple[int, int]]:
    """Return the `(offset, position)` entries of an `.index` file. Raises OSError if it cannot be read."""
    data = _entries(env, path, offset_index.ENTRY_SIZE)
    return ((base_offset + relative, position) for relative, position in _OFFSET_ENTRY.iter_unpack(data))


def read_time_index(env: Env, path: str, base_offset: int) -> Iterator[tuple[int, int]]:
    """Return the `(timestamp, offset)` entries of a `.timeindex` file. Raises OSError if it cannot be read."""
    data = _entries(env, path, time_index.ENTRY_SIZE)
    return ((timestamp, base_offset + relative) for timestamp, relative in _TIME_ENTRY.iter_unpack(data))


def read_txn_index(env: Env, path: str) -> list[AbortedTxn]:
    """Return the aborted transactions of a `.txnindex` file. Raises OSError if it cannot be read."""
    data = env.read_bytes(path, MAX_LOG_FILE)
    return [
        AbortedTxn.from_bytes(bytearray(data), position)
        for position in range(0, len(data) - txn_index.ENTRY_SIZE + 1, txn_index.ENTRY_SIZE)
    ]


def _entries(env: Env, path: str, entry_size: int) -> bytes:
    count = stored_entries(env, path, entry_size).entries
    return env.read_bytes(path, MAX_LOG_FILE)[: count * entry_size]


def check_length(env: Env, path: str, entry_size: int) -> Problem | None:
    """Return a problem if a file's length is not a multiple of the entry size."""
    size = env.file_size(path)
    return Problem(path, None, f"has {size} bytes, expected a multiple of {entry_size}") if size % entry_size else None


def check_offset_index(
    path: str, entries: Iterable[tuple[int, int]], base_offset: int, log_size: int
) -> Problem | None:
    """Return the first fault of an offset index: offsets and positions must ascend, and lie in the segment."""
    last_offset, last_position = base_offset - 1, -1
    for number, (offset, position) in enumerate(entries):
        at = number * offset_index.ENTRY_SIZE
        if offset <= last_offset or position <= last_position:
            return Problem(
                path,
                at,
                f"entry {offset} -> {position} after {last_offset} -> {last_position}, expected both to ascend",
            )
        if position >= log_size:
            return Problem(
                path, at, f"the index places offset {offset} at {position}, but the segment has {log_size} bytes"
            )
        last_offset, last_position = offset, position
    return None


def check_time_index(path: str, entries: Iterable[tuple[int, int]], base_offset: int) -> Problem | None:
    """Return the first fault of a time index: timestamps must ascend, and offsets must not descend."""
    last_timestamp, last_offset = -(1 << 63), base_offset
    for number, (timestamp, offset) in enumerate(entries):
        if timestamp <= last_timestamp or offset < last_offset:
            return Problem(
                path,
                number * time_index.ENTRY_SIZE,
                f"entry {timestamp} -> {offset} after {last_timestamp} -> {last_offset}, expected both to ascend",
            )
        last_timestamp, last_offset = timestamp, offset
    return None
