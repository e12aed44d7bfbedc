"""Removal of a log's files: its oldest segments, segments that were replaced, and producer snapshots.

Files are renamed to `.deleted` and removed after `file.delete.delay.ms`. Source: LocalLog.deleteSegmentFiles.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from diamant.storage import names
from diamant.storage.log.log import Log
from diamant.storage.segments.segment import Segment


def delete_oldest(log: Log, count: int) -> int:
    """Remove the `count` oldest segments (rolling first if that is all of them); bytes freed.

    The log start moves up with them. OSError if one keeps its name: that segment and those behind it stay in the log, where
    the next start would have them anyway. Nothing happens while segments are being exchanged: the next look of retention
    finds them again.
    """
    if count <= 0 or log.is_exchanging:
        return 0
    failure: OSError | None = None
    if count >= len(log.segments):
        try:
            log.roll()
        except OSError as error:
            failure = error  # as with a full disk, for which those before the active one make room
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
    """Remove the files of segments that are to be found no more.

    Nothing is written for that, as the disk may be full, and a `.log` file that is not there counts as removed. OSError at
    the first that keeps its name; what is left then of one whose `.log` file has lost it goes at the next start.
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
    """Take those of the oldest segments out of the log whose `.log` files have lost their names; bytes freed."""
    removed = [segment for segment in oldest if segment.path.endswith(names.DELETED_SUFFIX)]
    for segment in oldest[len(removed) :]:
        segment.is_deleted = False
    log.begin_behind(len(removed))
    remove_snapshots(log, {segment.base_offset for segment in removed})
    return sum(segment.size for segment in removed)


def remove_later(log: Log, paths: list[str]) -> None:
    """Have renamed files removed for good after `file.delete.delay.ms`; those that are not there are passed over."""
    log.unsynced.name_changes += 1
    if log.on_files_removed is not None:
        log.on_files_removed(paths, log.config.file_delete_delay_ms)
    else:
        for path in paths:
            log.env.remove(path, missing_ok=True)
