"""Removes files of a log: the oldest segments, replaced segments and producer snapshots.

Files are renamed to `.deleted` and removed after `file.delete.delay.ms`. Source: LocalLog.deleteSegmentFiles.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from diamant.storage import names
from diamant.storage.log.log import Log
from diamant.storage.segments.segment import Segment


def delete_oldest(log: Log, count: int) -> int:
    """Remove the `count` oldest segments, rolling first if those are all; return the bytes freed.

    The log start offset advances accordingly. Raises OSError if a rename fails; that segment and later ones stay in the log, as
    the next start would load them anyway. While segments are being exchanged, nothing is removed, and the next retention check
    retries.
    """
    if count <= 0 or log.is_exchanging:
        return 0
    failure: OSError | None = None
    if count >= len(log.segments):
        try:
            log.roll()
        except OSError as error:
            failure = error  # if the disk is full, removing the segments before the active one makes room
        count = min(count, len(log.segments) - 1)
    oldest = log.segments[:count]
    try:
        remove_segment_files(log, oldest)
    finally:
        freed = _begin_behind_removed(log, oldest)
    if failure is not None:
        raise failure
    return freed


def remove_segment_files(log: Log, segments: Sequence[Segment]) -> None:
    """Hide segments from readers, and remove their files.

    Writes nothing, since the disk may be full. A missing `.log` file counts as removed. Raises OSError at the first failed
    rename; the next start removes the indexes of segments whose `.log` file was already renamed.
    """
    log.unsynced.name_changes += 1
    log.hide(segments)
    removed: list[str] = []
    try:
        for segment in segments:
            segment.change_suffix(names.DELETED_SUFFIX, missing_ok=True)
            removed += [path for path in segment.file_paths() if log.env.exists(path)]
    finally:
        remove_later(log, removed)


def remove_snapshots(log: Log, offsets: Collection[int]) -> None:
    """Remove the producer snapshots at `offsets`, if there are any."""
    log.producers.snapshots.forget(offsets)
    removed = []
    for offset in offsets:
        path = names.snapshot_file(log.path, offset)
        if log.env.exists(path):
            log.env.rename(path, path + names.DELETED_SUFFIX)
            removed.append(path + names.DELETED_SUFFIX)
    remove_later(log, removed)


def _begin_behind_removed(log: Log, oldest: Sequence[Segment]) -> int:
    """Drop from the log the oldest segments whose `.log` files have been renamed; return the bytes freed."""
    removed = [segment for segment in oldest if segment.path.endswith(names.DELETED_SUFFIX)]
    for segment in oldest[len(removed) :]:
        segment.is_deleted = False
    log.begin_behind(len(removed))
    remove_snapshots(log, {segment.base_offset for segment in removed})
    return sum(segment.size for segment in removed)


def remove_later(log: Log, paths: list[str]) -> None:
    """Queue renamed files for removal after `file.delete.delay.ms`; missing files are skipped."""
    log.unsynced.name_changes += 1
    if log.on_files_removed is not None:
        log.on_files_removed(paths, log.config.file_delete_delay_ms)
    else:
        for path in paths:
            log.env.remove(path, missing_ok=True)
