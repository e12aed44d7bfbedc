"""A snapshot of a log's files: they are kept open, so they can be read even after the cleaner has replaced them.

Segments beyond `MAX_OPEN_FILES` are opened only when they are read; this raises `Changed` if a segment was replaced.
Files that the log has released are opened last, one at a time, if they still exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace

from diamant.cleaner.explain.explanation import PartitionExplanation
from diamant.cleaner.explain.scans import OpenSegment
from diamant.storage import names
from diamant.storage.env.env import Env
from diamant.storage.segments.segment import Segment

MAX_OPEN_FILES = 512


class Changed(Exception):
    """A file was replaced before it was opened."""


class LogFiles(Iterable[OpenSegment]):
    """A snapshot of a log's files: the first `MAX_OPEN_FILES` segments are open, the others are opened when they are read."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._stack = ExitStack()
        self._open: list[OpenSegment] = []
        self._later: list[tuple[Segment, int, int]] = []
        self._removed: list[tuple[str, int]] = []
        self._unread = 0
        self._aside = 0

    def add(self, segment: Segment, base_offset: int, size: int) -> None:
        """Add a segment. Call this in ascending order of base offset."""
        if len(self._open) < MAX_OPEN_FILES:
            opened = OpenSegment.of(self._env, segment.path, base_offset, size)
            self._stack.callback(opened.file.close)
            self._open.append(opened)
        else:
            self._later.append((segment, base_offset, size))

    def add_other(self, path: str) -> None:
        """Add the file of a released segment; only count any other leftover file that may hold records; ignore all others."""
        name = path.rpartition("/")[2]
        parsed = names.parse_segment_file(name)
        if name.startswith(names.STAGING_PREFIX):
            self._unread += 1
        elif parsed is not None and parsed.suffix == names.LOG_SUFFIX and parsed.stage == names.DELETED_SUFFIX:
            self._removed.append((path, parsed.offset))
        elif parsed is not None and parsed.suffix == names.LOG_SUFFIX and parsed.stage == names.ASIDE_SUFFIX:
            self._aside += 1
        elif parsed is not None and parsed.suffix == names.LOG_SUFFIX and parsed.stage:
            self._unread += 1

    def with_unread(self, found: PartitionExplanation) -> PartitionExplanation:
        """Add a problem to the explanation for each kind of file that was not read."""
        problems = []
        if self._unread:
            problems.append(
                f"{self._unread} outputs of a round that is in progress or was interrupted were not read (.cleaned, .swap, "
                f"{names.STAGING_PREFIX}*): they may hold copies of these and of older records; ask again after the round"
            )
        if self._aside:
            problems.append(
                f"{self._aside} files that the broker took out of the log when it started were not read "
                f"({names.ASIDE_SUFFIX}): they may hold older records; read them with `diamant log dump`, and remove them when "
                "you no longer need them"
            )
        return replace(found, problems=(*found.problems, *problems)) if problems else found

    def present(self) -> Iterator[OpenSegment]:
        """Yield the segments that the log has not released."""
        yield from self._open
        for segment, base_offset, size in self._later:
            try:
                opened = OpenSegment.of(self._env, segment.path, base_offset, size)
            except FileNotFoundError:
                raise Changed from None
            try:
                if segment.is_deleted:
                    raise Changed
                yield opened
            finally:
                opened.file.close()

    def around(self, offset: int) -> list[OpenSegment]:
        """Return the segment that may hold an offset: the last segment that begins at or below that offset."""
        later = [one for one in self._later if one[1] <= offset]
        if not later:
            return [one for one in self._open if one.base_offset <= offset][-1:]
        segment, base_offset, size = later[-1]
        try:
            opened = OpenSegment.of(self._env, segment.path, base_offset, size)
        except FileNotFoundError:
            raise Changed from None
        self._stack.callback(opened.file.close)
        if segment.is_deleted:
            raise Changed
        return [opened]

    def __iter__(self) -> Iterator[OpenSegment]:
        yield from self.present()
        for path, base_offset in self._removed:
            # Skip a file that has been deleted since then: its records are no longer on disk.
            try:
                opened = OpenSegment.of(self._env, path, base_offset, self._env.file_size(path), is_removed=True)
            except FileNotFoundError:
                continue
            try:
                yield opened
            finally:
                opened.file.close()

    def close(self) -> None:
        """Close all files."""
        self._stack.close()

    def __enter__(self) -> LogFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
