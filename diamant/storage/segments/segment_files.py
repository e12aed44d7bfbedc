"""The files of a segment that another process renames, or has written: their names, and what has to be known of them."""

from __future__ import annotations

from diamant.storage import names
from diamant.storage.env.env import Env
from diamant.storage.segments.segment import Segment
from diamant.storage.segments.segment_outline import SegmentOutline


def file_names(segment: Segment) -> list[str]:
    """Return the names of the files in use, without directory and suffix, the `.log` file first; not all need exist."""
    paths = names.segment_paths("", segment.base_offset)
    return [path[1:] for path in (paths if segment.txn_index.may_have_file else paths[:-1])]


def take_suffix(segment: Segment, suffix: str) -> None:
    """Know the files by other names, as `Segment.change_suffix` gives them: another process renames them, or has done so."""
    paths = names.segment_paths(segment.directory, segment.base_offset, suffix)
    segment.path = paths.log
    segment.offset_index.file.take_path(paths.offset_index)
    segment.time_index.file.take_path(paths.time_index)
    segment.txn_index.path = paths.txn_index


def take_present_names(env: Env, segment: Segment, suffix: str) -> None:
    """Know each file by its name in use plus `suffix`, or by its name in use if it is not there: a rename has failed."""
    take_suffix(segment, "")
    if env.exists(segment.path + suffix):
        segment.path += suffix
    if env.exists(segment.txn_index.path + suffix):
        segment.txn_index.path += suffix
    for index in (segment.offset_index.file, segment.time_index.file):
        if env.exists(index.path + suffix):
            index.take_path(index.path + suffix)


def outline_of(env: Env, segment: Segment) -> SegmentOutline:
    """Return what another process has to know of a closed segment. OSError, CorruptLog."""
    return SegmentOutline(
        segment.size,
        segment.next_offset(),
        env.exists(segment.txn_index.path),
        segment.offset_index.file.outline,
        segment.time_index.file.outline,
    )
