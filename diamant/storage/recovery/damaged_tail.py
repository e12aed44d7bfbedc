"""Distinguishes a torn end of a `.log` file from damage that whole batches follow.

A loss of power, or a copy during an append, may cut a file off anywhere; no readable batch follows then. Whole batches behind
the damage, in contrast, were acknowledged.

Only batches of the current format (magic 2) are recognized behind the damage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count

from diamant.protocol.batches.batch import crc_is_valid
from diamant.protocol.batches.header import CURRENT_MAGIC, HEADER_SIZE, LOG_OVERHEAD, MAGIC, MIN_BATCH_LENGTH
from diamant.storage import names
from diamant.storage.env.env import Env, File
from diamant.storage.segments.segment import MAX_RELATIVE_OFFSET, Segment

WINDOW_BYTES = 1024 * 1024
MAX_SEARCHED_BYTES = 64 * 1024 * 1024
"""Limit of the search in non-zero bytes: a few seconds. A torn end is one batch, seldom more."""

_LENGTH = slice(8, 12)


def is_torn_end(segment: Segment, position: int, next_offset: int) -> bool:
    """True if no whole batch of the segment begins at or after `position`; any thread.

    A whole batch has a valid checksum and, after `position`, an offset of at least `next_offset`.
    """
    file, end = segment.file, segment.size
    if _is_whole(file, position, end):
        return False
    last = segment.base_offset + MAX_RELATIVE_OFFSET
    highs = {offset.to_bytes(8, "big")[:4] for offset in (next_offset, last)}
    # A batch begins wherever the first half of its base offset is right and the magic byte is in its place.
    begins = re.compile(
        b"(?=(?:" + b"|".join(map(re.escape, sorted(highs))) + b").{12}" + bytes((CURRENT_MAGIC,)) + b")", re.DOTALL
    )
    searched = 0
    start = position + 1
    while start < end:
        data = file.pread(min(WINDOW_BYTES + MAGIC, end - start), start)
        if not data:
            break
        if data.count(0) < len(data):
            searched += len(data)
            if searched > MAX_SEARCHED_BYTES:
                return False
            for found in begins.finditer(data):
                at = found.start()
                if next_offset <= int.from_bytes(data[at : at + 8], "big") <= last and _is_whole(file, start + at, end):
                    return False
        start += WINDOW_BYTES
    return True


def _is_whole(file: File, position: int, end: int) -> bool:
    header = file.pread(min(HEADER_SIZE, end - position), position)
    if len(header) < HEADER_SIZE or header[MAGIC] != CURRENT_MAGIC:
        return False
    length = int.from_bytes(header[_LENGTH], "big", signed=True)
    size = length + LOG_OVERHEAD
    if length < MIN_BATCH_LENGTH or position + size > end:
        return False
    if size > MAX_SEARCHED_BYTES:
        return True
    return crc_is_valid(file.pread(size, position), 0, size)


def keep_aside(env: Env, segment: Segment, position: int, next_offset: int) -> str | None:
    """Copy the bytes from `position` on to a synced file beside the segment; return its path, None if all bytes are zero.

    The broker never reads or removes such a file; an operator may. An earlier start's copy of the same bytes is
    overwritten, so repeatedly failing starts, as on a full disk, leave one file. Memory: `WINDOW_BYTES`.
    """
    source = segment.file
    pieces = range(position, segment.size, WINDOW_BYTES)
    if not any(any(source.pread(min(WINDOW_BYTES, segment.size - start), start)) for start in pieces):
        return None
    paths = aside_paths(segment.directory, next_offset)
    path = next(path for path in paths if not env.exists(path) or _is_begun(env, path, segment, position))
    kept = env.open(path, create=True)
    try:
        kept.truncate(0)
        for start in pieces:
            kept.append(source.pread(min(WINDOW_BYTES, segment.size - start), start))
        kept.sync()
    finally:
        kept.close()
    env.sync_dir(segment.directory)
    return path


def _is_begun(env: Env, path: str, segment: Segment, position: int) -> bool:
    """True if a file is a complete or partial copy of the bytes from `position` on."""
    kept = env.open(path, read_only=True)
    try:
        size = kept.size()
        return size <= segment.size - position and all(
            kept.pread(length, start) == segment.file.pread(length, position + start)
            for start in range(0, size, WINDOW_BYTES)
            for length in (min(WINDOW_BYTES, size - start),)
        )
    finally:
        kept.close()


def aside_paths(directory: str, offset: int) -> Iterator[str]:
    """Yield paths for data set aside from `offset` on. Later ones, used if a path is taken, have higher offsets."""
    return (names.log_file(directory, higher) + names.ASIDE_SUFFIX for higher in count(offset))
