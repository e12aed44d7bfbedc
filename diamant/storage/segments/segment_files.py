"""Names and outlines of a segment's files that another process writes or renames."""

from __future__ import annotations

from diamant.storage import names
from diamant.storage.env.env import Env
from diamant.storage.segments.segment import Segment
from diamant.storage.segments.segment_outline import SegmentOutline


def file_names(segment: Segment) -> list[str]:
    """Return the names of the files without directory and stage suffix, the `.log` file first; some may not exist."""
    paths = names.segment_paths("", segment.base_offset)
    return [path[1:] for path in (paths if segment.txn_index.may_have_file else paths[:-1])]


def take_suffix(segment: Segment, suffix: str) -> None:
    """Adopt the names that `Segment.change_suffix` would give to the files, without renaming them."""
    paths = names.segment_paths(segment.directory, segment.base_offset, suffix)
    segment.path = paths.log
    segment.offset_index.file.take_path(paths.offset_index)
    segment.time_index.file.take_path(paths.time_index)
    segment.txn_index.path = paths.txn_index


def take_present_names(env: Env, segment: Segment, suffix: str) -> None:
    """After a failed rename, adopt for each file the name that exists: with `suffix`, or else without a suffix."""
    take_suffix(segment, "")
    if env.exists(segment.path + suffix):
        segment.path += suffix
    if env.exists(segment.txn_index.path + suffix):
        segment.txn_index.path += suffix
    for index in (segment.offset_index.file, segment.time_index.file):
        if env.exists(index.path + suffix):
            index.take_path(index.path + suffix)


def outline_of(env: Env, segment: Segment) -> SegmentOutline:
    """Return the outline of a closed segment for another process. Raises OSError, CorruptLog."""
    return SegmentOutline(
        segment.size,
        segment.next_offset(),
        env.exists(segment.txn_index.path),
        segment.offset_index.file.outline,
        segment.time_index.file.outline,
    )
