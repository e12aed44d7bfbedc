"""Divides a segment whose offsets exceed the 31 bits of its indexes. Brokers before Kafka 2.0 left such segments (KAFKA-6264).

The parts are written as `.cleaned` files and become `.swap` files in descending order; the next `complete_swaps` puts them in the
segment's place. So a crash leaves the segment or all of its parts. The first part keeps the segment's base offset; the base
offset of every other part is that of its first batch. If even the first batch is too far above the segment's base, the segment
is first renamed to the base offset of that batch. A torn end stays at the end of the last part. Recovery rebuilds the indexes.

Source: LocalLog.splitOverflowedSegment. Kafka divides a segment when recovery or the cleaner finds the overflow, and always
takes the base offset of the first part from its first batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from diamant.protocol.batches.header import MAX_OFFSET
from diamant.storage import names
from diamant.storage.env.env import Env
from diamant.storage.errors import CorruptLog
from diamant.storage.recovery.segment_recovery import (
    MisplacedBatch,
    RefusedLog,
    SegmentOverflow,
    SyncedDamage,
    checked_batches,
)
from diamant.storage.segments.segment import MAX_RELATIVE_OFFSET, Segment

COPY_BYTES = 1024 * 1024


class _Part(NamedTuple):
    """A part of the segment: its base offset, and the position at which it begins."""

    base_offset: int
    position: int


def refuse_overflow(segments: Sequence[Segment], log_end_offset: int | None) -> None:
    """Raise SegmentOverflow for the first segment in which a cheap check finds an offset beyond the range of its indexes.

    Reads the end of a closed segment only if its successor begins beyond that range. The last segment ends at `log_end_offset`;
    it is not checked if that is None, because recovery will scan it.
    """
    ends = [following.base_offset for following in segments[1:]] + [log_end_offset]
    for segment, end in zip(segments, ends, strict=False):
        if end is not None and _exceeds(segment, end) and (segment is segments[-1] or _reaches_beyond(segment)):
            raise SegmentOverflow(segment)


def _exceeds(segment: Segment, end_offset: int) -> bool:
    return end_offset - 1 - segment.base_offset > MAX_RELATIVE_OFFSET


def _reaches_beyond(segment: Segment) -> bool:
    try:
        return _exceeds(segment, segment.next_offset())
    except CorruptLog:
        return False  # a reader reports it


def split_segment(env: Env, segment: Segment) -> list[int]:
    """Write the parts of a segment as synced `.swap` files; return their base offsets. Holds a batch or `COPY_BYTES` in memory.

    If the segment must be renamed, only renames it. Raises MisplacedBatch or SyncedDamage if it cannot be divided; the segment is
    then unchanged, as after OSError.
    """
    parts = _parts(segment, _following_base(env, segment))
    if not parts[1].position:
        _rename(env, segment, parts[1].base_offset)
        return [parts[1].base_offset]
    ends = [part.position for part in parts[1:]] + [segment.size]
    modified_ms = env.mtime_ms(segment.path)
    logs = [names.log_file(segment.directory, part.base_offset) for part in parts]
    try:
        for log, part, end in zip(logs, parts, ends, strict=True):
            _copy(env, segment, part.position, end, log + names.CLEANED_SUFFIX)
            env.set_mtime_ms(log + names.CLEANED_SUFFIX, modified_ms)
        segment.close()
        env.sync_dir(segment.directory)
        for log in reversed(logs):
            env.rename(log + names.CLEANED_SUFFIX, log + names.SWAP_SUFFIX)
    except OSError:
        # Remove the .swap files first: while a .cleaned file exists, the next start drops them.
        for suffix in (names.SWAP_SUFFIX, names.CLEANED_SUFFIX):
            for log in logs:
                with suppress(OSError):
                    env.remove(log + suffix, missing_ok=True)
        raise
    env.sync_dir(segment.directory)
    return [part.base_offset for part in parts]


def _rename(env: Env, segment: Segment, base_offset: int) -> None:
    """Rename a `.log` file to the base offset of its first batch, and remove its indexes."""
    segment.close()
    for path in segment.file_paths()[1:]:
        env.remove(path, missing_ok=True)
    env.rename(segment.path, names.log_file(segment.directory, base_offset))
    env.sync_dir(segment.directory)


def _following_base(env: Env, segment: Segment) -> int:
    file_names = (names.parse_segment_file(name) for name in env.list_dir(segment.directory))
    logs = (
        name.offset for name in file_names if name is not None and name.suffix == names.LOG_SUFFIX and not name.stage
    )
    return min((base for base in logs if base > segment.base_offset), default=MAX_OFFSET)


def _parts(segment: Segment, following_base: int) -> list[_Part]:
    parts = [_Part(segment.base_offset, 0)]
    next_offset = segment.base_offset
    try:
        for position, header, _ in checked_batches(segment):
            if header.last_offset >= following_base:
                reason = f"offset {header.last_offset} is not below {following_base}, where the next segment begins"
                raise MisplacedBatch(segment.path, position, reason, next_offset)
            if header.last_offset - parts[-1].base_offset > MAX_RELATIVE_OFFSET:
                if header.base_offset < next_offset or header.last_offset - header.base_offset > MAX_RELATIVE_OFFSET:
                    reason = f"offsets {header.base_offset} to {header.last_offset} cannot begin a segment"
                    raise MisplacedBatch(segment.path, position, reason, next_offset)
                parts.append(_Part(header.base_offset, position))
            next_offset = header.next_offset
    except RefusedLog:
        raise
    except CorruptLog as error:
        if len(parts) == 1:
            raise SyncedDamage(error.path, error.position, error.reason, next_offset) from error
    return parts


def _copy(env: Env, segment: Segment, start: int, end: int, path: str) -> None:
    part = env.create_new(path)
    try:
        for position in range(start, end, COPY_BYTES):
            part.append(segment.file.pread(min(COPY_BYTES, end - position), position))
        part.sync()
    finally:
        part.close()
