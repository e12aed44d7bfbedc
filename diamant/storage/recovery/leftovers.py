"""Handles leftovers of a crash or a copy in a partition directory: temporary files, unfinished swaps and stale segments.

Source: the first two steps of LogLoader.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from diamant.storage import names
from diamant.storage.env.env import Env
from diamant.storage.errors import CorruptLog
from diamant.storage.recovery.segment_recovery import checked_batches
from diamant.storage.segments.segment import Segment, floor_position, scan_headers


def remove_temporary_files(env: Env, path: str) -> None:
    """Delete `.deleted` and `.cleaned` files, and `.swap` files of an unfinished swap (LogLoader, step 1).

    Also deletes the staging locations of cleaning rounds in other processes.
    """
    entries = env.list_dir(path)
    for name in entries:
        if name.startswith(names.STAGING_PREFIX) and env.is_dir(f"{path}/{name}"):
            env.remove_tree(f"{path}/{name}")
    cleaned = [name for name in entries if name.endswith(names.CLEANED_SUFFIX)]
    # Swaps are renamed in descending order of offset: a .cleaned file below a .swap shows that the set is incomplete.
    smallest = min((offset for name in cleaned if (offset := offset_of(name)) >= 0), default=None)
    unfinished = [name for name in _swap_files(entries) if smallest is not None and offset_of(name) >= smallest]
    deleted = [name for name in entries if name.endswith(names.DELETED_SUFFIX)]
    # Delete the .cleaned files last: without them, a start after a crash here would treat the .swap files as complete.
    for name in [*deleted, *unfinished, *cleaned]:
        env.remove(f"{path}/{name}")


def complete_swaps(env: Env, path: str) -> None:
    """Finish a swap whose `.swap` files are complete: remove the replaced segments, then drop the suffix (step 2).

    `segment_swap` lists the steps that may have been taken. Every step here is idempotent. Differences from Kafka:

    * A segment at a `.swap` file's own base offset is removed with all its indexes, even if the `.swap` is empty.
    * If the lowest `.swap` is empty or torn and no segment was removed yet, all `.swap` files are removed and the old segments
      stay, since that file no longer shows which segments it replaces.
    * An empty `.swap` that is not the lowest is the end mark of `segment_swap`, and is removed.
    * The `.log` files are renamed first, so that a `.log` without suffix never has another segment's indexes.
    """
    entries = env.list_dir(path)
    swaps = _swap_files(entries)
    logs = sorted(offset_of(name) for name in swaps if name.endswith(names.LOG_SUFFIX + names.SWAP_SUFFIX))
    if logs:
        inspected = [_inspect_swap(env, names.log_file(path, offset) + names.SWAP_SUFFIX, offset) for offset in logs]
        is_untouched = env.exists(names.log_file(path, logs[0]))
        if is_untouched and not (inspected[0].is_whole and inspected[0].size):
            # In reverse order: after a crash here, the lowest .log.swap, which comes last, makes the next start continue.
            for name in reversed(swaps):
                env.remove(f"{path}/{name}")
            return
        end = max(swap.end_offset for swap in inspected)
        for name in entries:
            parsed = names.parse_segment_file(name)
            if parsed is None or parsed.stage or not (logs[0] <= parsed.offset < end or parsed.offset in logs):
                continue
            # The producer state at the start of a segment does not depend on the segment's contents.
            if parsed.suffix != names.SNAPSHOT_SUFFIX or parsed.offset not in logs:
                env.remove(f"{path}/{name}")
        marks = [offset for offset, swap in zip(logs[1:], inspected[1:], strict=True) if not swap.size]
        for name in [name for name in swaps if offset_of(name) in marks]:
            env.remove(f"{path}/{name}")
            swaps.remove(name)
    for name in swaps:
        env.rename(f"{path}/{name}", f"{path}/{name.removesuffix(names.SWAP_SUFFIX)}")
    if swaps:
        env.sync_dir(path)


def _swap_files(entries: list[str]) -> list[str]:
    """Return the `.swap` files of segments, `.log` files first."""
    swaps = [
        name for name in entries if name.endswith(names.SWAP_SUFFIX) and names.parse_segment_file(name) is not None
    ]
    return sorted(swaps, key=lambda name: not name.endswith(names.LOG_SUFFIX + names.SWAP_SUFFIX))


class _Swap(NamedTuple):
    """A `.log.swap` file. `end_offset` is the offset after its last batch, or its base offset if it has no batch."""

    size: int
    end_offset: int
    is_whole: bool


def _inspect_swap(env: Env, path: str, base_offset: int) -> _Swap:
    file = env.open(path, read_only=True)
    try:
        end_offset = base_offset
        position = 0
        try:
            for start, header in scan_headers(file, 0, file.size()):
                end_offset = header.next_offset
                position = start + header.size
        except CorruptLog:
            pass  # `position` then shows that the file is not whole
        return _Swap(file.size(), end_offset, position == file.size())
    finally:
        file.close()


def offset_of(name: str) -> int:
    """Return the base offset in the name of a segment's file; -1 for other names."""
    parsed = names.parse_segment_file(name)
    return -1 if parsed is None else parsed.offset


MIN_BATCHES = 2
"""Minimum number of batches that the new segment must have in the range of old ones to be recognized as their replacement. A
single batch might just have a damaged base offset, which no checksum covers."""


class Stale(NamedTuple):
    """A segment that a cleaning round has already replaced, and the segment into which it was cleaned.

    A broker's own directory never holds such segments, thanks to `segment_swap`, but a copy made while a broker ran may: the
    program lists a directory once and then copies file after file, perhaps an old segment before a round, and the new one, which
    covers the same offsets, after the round. The old segment then hides records, because a lookup uses the last segment that
    begins at or below an offset.
    """

    segment: Segment
    cleaned_into: Segment


def find_stale(segments: Sequence[Segment]) -> list[Stale]:
    """Return the segments that an earlier segment certainly covers.

    This is certain if the earlier segment is whole, and each of its batches in the covered range also exists in the covered
    segments (a cleaned batch keeps its last offset and producer). An old segment may extend beyond the new one's end if the
    round removed its last records; if it is the last segment, it is then kept, since the log would end earlier without it. Empty
    segments, such as end marks of `segment_swap`, are stale too. Reads the end of each segment, and overlapping segments
    completely, but keeps only the ends in memory; changes nothing.
    """
    all_ends = [_end(segment) for segment in segments]
    empty = {
        index: segments[index - 1]
        for index in range(1, len(segments) - 1)
        if not segments[index].size and all_ends[index - 1] > segments[index].base_offset
    }
    stale_segments = [Stale(segments[index], before) for index, before in empty.items()]
    segments = [segment for index, segment in enumerate(segments) if index not in empty]
    ends = [end for index, end in enumerate(all_ends) if index not in empty]
    index = 0
    while index < len(segments):
        following = index + 1
        while following < len(segments) and segments[following].base_offset < ends[index]:
            if ends[following] > ends[index] and following + 1 == len(segments):
                break
            following += 1
        covered = segments[index + 1 : following]
        if covered and _is_newer(segments[index], covered, ends[index + 1 : following]):
            stale_segments += [Stale(segment, segments[index]) for segment in covered]
            index = following
        else:
            index += 1
    return stale_segments


def _end(segment: Segment) -> int:
    try:
        return segment.next_offset()
    except CorruptLog:
        return segment.base_offset  # the segment covers nothing; recovery handles it
    finally:
        segment.close()  # a log may have more segments than the process may have open files


def _is_newer(newer: Segment, older: Sequence[Segment], ends: Sequence[int]) -> bool:
    first = older[0].base_offset
    try:
        batches = sum(header.last_offset >= first for _, header, _ in checked_batches(newer))
        return batches >= MIN_BATCHES and all(
            _has_all_batches_of(newer, segment, end) for segment, end in zip(older, ends, strict=True)
        )
    except CorruptLog:
        return False


def _has_all_batches_of(newer: Segment, older: Segment, end: int) -> bool:
    """Return whether `older` contains all batches of `newer` from the start of `older` up to offset `end`."""
    theirs = chain((header for _, header in scan_headers(older.file, 0, older.size)), (None,))
    own = next(theirs)
    for _, header in scan_headers(newer.file, floor_position(newer, older.base_offset), newer.size):
        if header.last_offset < older.base_offset:
            continue
        if header.last_offset >= end:
            break
        while own is not None and own.last_offset < header.last_offset:
            own = next(theirs)
        if own is None or (own.last_offset, own.producer_id, own.producer_epoch) != (
            header.last_offset,
            header.producer_id,
            header.producer_epoch,
        ):
            return False
    return True
