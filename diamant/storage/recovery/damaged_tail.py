"""Distinguishes a torn end of a `.log` file from damage that whole batches follow.

A power failure, or copying during an append, may cut a file off anywhere, but then no readable batch follows. Whole batches that
follow the damage, in contrast, may have been acknowledged.

Only batches of the current format (magic 2) are recognized after the damage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from struct import Struct

from diamant.protocol.batches.batch import crc_is_valid
from diamant.protocol.batches.header import (
    ATTRIBUTES,
    BATCH_LENGTH,
    CURRENT_MAGIC,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
)
from diamant.storage import names
from diamant.storage.env.env import Env
from diamant.storage.segments.segment import Segment

WINDOW_BYTES = 1024 * 1024
MAX_SEARCHED_BYTES = 64 * 1024 * 1024
"""Maximum number of bytes to search (a few seconds), not counting zeros. A torn end is one batch, seldom more."""
MAX_CHECKED_BYTES = 1024 * 1024 * 1024
"""Maximum number of bytes to checksum, which takes half a second. In noise, one position in four million looks like a batch."""

_LENGTH = Struct(">i")
# Matches the magic byte and the upper byte of the attributes, which has no flags and is zero. Nothing is assumed about offsets,
# because no checksum covers them, and a whole batch is never cut off because of its offset.
_BEGINS = re.compile(b"(?=.{%d}%b.{4}\0)" % (MAGIC, re.escape(bytes((CURRENT_MAGIC,)))), re.DOTALL)


def is_torn_end(segment: Segment, position: int) -> bool:
    """Return True if certainly no whole batch with a valid checksum begins at or after `position`. Any thread may call it."""
    file, end = segment.file, segment.size
    searched = checked = 0
    start = position
    while start < end:
        data = file.pread(min(WINDOW_BYTES + ATTRIBUTES, end - start), start)
        if not data:
            break
        if data.count(0) < len(data):
            searched += len(data)
            for match in _BEGINS.finditer(data):
                at = start + match.start()
                size = _LENGTH.unpack_from(data, match.start() + BATCH_LENGTH)[0] + LOG_OVERHEAD
                checked += HEADER_SIZE
                if HEADER_SIZE <= size <= end - at:
                    checked += size
                    if size > MAX_SEARCHED_BYTES or crc_is_valid(file.pread(size, at), 0, size):
                        return False
                if checked > MAX_CHECKED_BYTES:
                    return False
            if searched > MAX_SEARCHED_BYTES:
                return False
        start += WINDOW_BYTES
    return True


def keep_aside(env: Env, segment: Segment, position: int, next_offset: int) -> str | None:
    """Copy the bytes from `position` on to a synced file next to the segment; return its path, or None if all are zero.

    The broker never reads or removes such a file; an operator may. An earlier start's copy of the same bytes is overwritten, so
    starts that fail repeatedly, for example on a full disk, leave only one file. Uses `WINDOW_BYTES` of memory.
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
    """Return whether a file is a complete or partial copy of the bytes from `position` on."""
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
    """Yield paths for data that is set aside from `offset` on: one for that offset, then higher ones in case a path is taken."""
    return (names.log_file(directory, higher) + names.ASIDE_SUFFIX for higher in count(offset))
