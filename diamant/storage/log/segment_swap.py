"""Crash-safe replacement of segments by the cleaned segment made from them: after a crash, the old or the new state remains.

The steps are Kafka's (LocalLog.replaceSegments). They start from synced files with the suffix `.cleaned`:

    1  the new segment's files: .cleaned -> .swap                    in the order log, index, timeindex, txnindex
    2  in memory, the new segment replaces the old ones
    3  the old segments' files: -> .deleted, ascending               deleted after file.delete.delay.ms
    4  the new segment's files: .swap -> no suffix                   in the same order
    5  producer snapshots at base offsets that no longer exist: -> .deleted
    6  fsync of the directory

Recovery at a start (`recovery.leftovers`): a `.cleaned` file means that step 1 is incomplete, so the `.swap` files from its
offset on are removed and the old segments stay. Otherwise the `.swap` files are complete: the segments that they
replace are removed, and then the `.swap` suffix is dropped.

Recovery derives the segments to replace from the offsets of a `.swap` file, from its base to its last batch. In Kafka this
leaves a gap: if the cleaner emptied the end of a group, the old segments after the last batch of the new one stay, with records
that the round had dropped. (No superseded value can return: step 3 begins with the oldest segment, so a record that stays is
followed by every later record that supersedes it.) We close the gap with a second, empty segment at the group's last offset,
the *end mark*. Step 1 renames it first, as Kafka does with the higher of two new segments, and it is removed before step 4.
With it, the `.swap` files cover all offsets of the group, in Kafka's recovery too.

A log's groups must be replaced in ascending order, without gaps: a cleaned later group may lack the tombstones of records that
an earlier group still holds. An error ends the round.

Readers are not affected: a `FileSlice` keeps its open file, whatever the file's name.

`Replacement.steps` yields the work on disk as values of `moves`: step 1 alone, since memory changes only after it; then
steps 3 to 6, a few sources at a time, since a group may have thousands. A worker process carries them out, or the loop, which
interleaves other work (`swap_in_turns`). If the worker dies, the loop repeats the step. Sources are renamed only while the new
`.log` file has its suffix; without the suffix, it may have the name of a source.

The exchange in memory is complete after step 2, so appends, reads, rolls and flushes are not affected. Retention and other
exchanges must wait from step 1 to the end (`Log.is_exchanging`), since their renames would conflict with these. If the partition
is deleted during the swap, its files are left alone.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress

from diamant.storage import names
from diamant.storage.errors import StorageError
from diamant.storage.log.log import Log
from diamant.storage.log.moves import EnvDirectory, Moves, Rename, in_turns
from diamant.storage.log.segment_removal import remove_later
from diamant.storage.segments.segment import Segment, scan_headers
from diamant.storage.segments.segment_files import file_names, take_present_names, take_suffix
from diamant.storage.segments.segment_outline import SegmentOutline

SOURCES_PER_TURN = 4
"""Number of sources to rename before other tasks may run; this takes about 0.3 ms."""

SOURCES_PER_STEP = 8
"""Number of sources per step sent to a worker process: listing them takes about 0.05 ms."""

MAX_SCANNED_BYTES = 64 * 1024
"""Maximum size of the part after a new segment's last indexed batch that `Replacement.open` scans, in about 2 ms.

With the default `index.interval.bytes`, this part has at most 4 KiB and the last batch.
"""


class SourcesChanged(StorageError):
    """The log no longer has the segments from which the new one was made; the log is unchanged."""


class Replacement:
    """One new segment, whose `.cleaned` files are complete and synced, and the segments it replaces.

    `__init__`, `open` and `swap` (or `swap_in_turns`) are for the log's owner and do not wait for the disk; the swap renames
    about four files per source. `prepare` and `finish` wait for fsyncs and belong in another thread. Call each once, in the
    order `prepare`, `swap`, `finish`; to stop before `swap`, call `abandon`. For a small group, switching threads costs as
    much as the work, so the owner may call `open` first, and then `prepare` only if `must_prepare` is true.
    """

    def __init__(
        self,
        log: Log,
        base_offset: int,
        source_base_offsets: Sequence[int],
        *,
        source_sizes: Sequence[int] | None = None,
        size: int | None = None,
        outline: SegmentOutline | None = None,
    ) -> None:
        """Record the sources (base offsets ascending, the first one being `base_offset`).

        `source_sizes`: sizes of the sources' `.log` files when the new segment was made. `size`: size of the new `.log` file.
        `outline`: the new segment's outline, if its writer made one, which saves `open` from reading the files. If the log does
        not have these sources, removes the `.cleaned` files and raises SourcesChanged.
        """
        self._log = log
        self._base_offset = base_offset
        self._bases = tuple(source_base_offsets)
        self._size = size
        self._outline = outline
        self._new: Segment | None = None
        self._end_mark: Segment | None = None
        self._lacks_end_mark = False
        self._is_swapped = False
        if not self._bases or self._bases[0] != base_offset or sorted(set(self._bases)) != list(self._bases):
            raise ValueError(f"{log.path}: sources {self._bases} do not make a segment at {base_offset}")
        try:
            self._sources = self._find_sources(source_sizes)
        except SourcesChanged:
            self.abandon()
            raise
        self._end_offset = base_offset
        self._unsynced: list[Segment] = []
        first = log.floor_segment(self._sources[0].base_offset) if self._sources else 0
        for segment, following in zip(self._sources, log.segments[first + 1 :], strict=False):
            self._end_offset = following.base_offset
            if following.base_offset > log.recovery_point:
                self._unsynced.append(segment)

    def _find_sources(self, sizes: Sequence[int] | None) -> list[Segment]:
        """Return the sources that retention has not removed. Raises SourcesChanged unless they are adjacent in the log."""
        log = self._log
        self._refuse_if_unusable()
        if log.is_exchanging:
            raise SourcesChanged(f"{log.path}: other segments are being exchanged")
        bases = [base for base in self._bases if base >= log.segments[0].base_offset]
        if not bases:
            return []
        first = log.floor_segment(bases[0])
        segments = log.segments[first : first + len(bases)]
        if [segment.base_offset for segment in segments] != bases:
            present = [segment.base_offset for segment in segments]
            raise SourcesChanged(f"{log.path}: expected segments at {bases}, got {present}")
        if segments[-1] is log.active:
            raise SourcesChanged(f"{log.path}: the segment at {bases[-1]} is the active one")
        if sizes is not None:
            for segment, expected in zip(segments, sizes[len(self._bases) - len(bases) :], strict=True):
                if segment.size != expected:
                    raise SourcesChanged(f"{segment.path}: expected {expected} bytes, got {segment.size}")
        return segments

    def _refuse_if_unusable(self) -> None:
        log = self._log
        if log.is_deleted:
            raise SourcesChanged(f"{log.path}: the partition is deleted")
        if log.write_failure is not None:
            raise SourcesChanged(f"{log.path}: refuses writes after an earlier failure: {log.write_failure}")

    def open(self) -> None:
        """Open the new segment, if a few small reads of its recently written files suffice.

        Scans the batches after the last indexed one for the segment's end; if they exceed MAX_SCANNED_BYTES, `prepare` has to
        open the segment. Raises OSError, or StorageError if the `.cleaned` files are not the expected ones.
        """
        new = self._find_new()
        if self._outline is not None:
            self._take(new, self._outline.next_offset)
            return
        _, position = new.offset_index.last_entry
        for at, header in scan_headers(new.file, position, new.size):
            position = at + header.size
            break
        if new.size - position <= MAX_SCANNED_BYTES:
            self._take(new, new.next_offset())

    def _find_new(self) -> Segment:
        """Return the new segment; its indexes are checked, not rebuilt."""
        log = self._log
        new = Segment(
            log.env, log.path, self._base_offset, log.config, suffix=names.CLEANED_SUFFIX, outline=self._outline
        )
        if self._size is not None and new.size != self._size:
            raise StorageError(f"{new.path}: expected {self._size} bytes, got {new.size}")
        if self._outline is not None:
            new.txn_index.take_outline(has_file=self._outline.has_txn_index)
            return new
        for index in (new.offset_index, new.time_index):
            index.sanity_check()
        return new

    def _take(self, new: Segment, next_offset: int) -> None:
        """Set the new segment, and determine whether it needs an end mark."""
        if self._outline is None:
            # Open the file now: during the renames a flush in another thread may need it, and its name is not yet final.
            _ = new.file
        ends_at = max(next_offset, self._base_offset + 1)
        self._lacks_end_mark = bool(self._sources) and self._sources[-1].base_offset >= ends_at
        self._new = new

    @property
    def must_prepare(self) -> bool:
        """True if `prepare` has blocking work to do. Valid between `open` and `swap`."""
        return self._new is None or bool(self._unsynced) or self._lacks_end_mark

    def prepare(self) -> None:
        """Open the new segment if necessary, and make everything durable on which the swap relies.

        Any thread may call it. Syncs old segments that no flush has covered yet, since no flush would cover them after their
        rename. Raises the same errors as `open`.
        """
        if self._new is None:
            new = self._find_new()
            self._take(new, new.next_offset())
        for segment in self._unsynced:
            segment.sync()
        self._unsynced = []
        if self._lacks_end_mark:
            self._end_mark = _create_end_mark(self._log, self._end_offset - 1)
            self._lacks_end_mark = False

    def swap(self) -> Segment | None:
        """Run `swap_in_turns` to its end; return the new segment, or None if retention has removed all sources."""
        for _ in self.swap_in_turns():
            pass
        return self._new if self._is_swapped else None

    def swap_in_turns(self, sources_per_turn: int = SOURCES_PER_TURN) -> Iterator[None]:
        """Carry out the `steps` in this process; first yields after step 2. The owner must iterate to the end."""
        return in_turns(EnvDirectory(self._log.env, self._log.path), self.steps(sources_per_turn))

    def steps(self, sources_per_step: int = SOURCES_PER_STEP, *, is_synced: bool = False) -> Generator[Moves]:
        """Exchange the segments in memory, and yield moves, which must be carried out on disk before the generator continues.

        Only for the owner, which may do other work in between, must iterate to the end, and must throw in the OSError of failed
        moves. Raises SourcesChanged if the sources are no longer those of `__init__`, or if the partition was deleted before
        step 2: the log is then unchanged, and the `.cleaned` files are removed. The same holds for OSError in step 1. After a
        later OSError the log uses the new segment and refuses appends; the next start repairs it. With `is_synced`, the last
        moves include step 6; otherwise call `finish` for it.

        If retention has removed all sources, only the `.cleaned` files are removed. Kafka adds the new segment below the log
        start until the next retention check; we do not, because deleted records must not return.
        """
        assert self._new is not None, "open or prepare comes first"
        assert not self.must_prepare, "prepare comes first"
        log, new = self._log, self._new
        marks = [] if self._end_mark is None else file_names(self._end_mark)
        try:
            present = self._present_sources()
            if not present:
                self.abandon()
                return
            log.is_exchanging = True
            files = (*marks, *file_names(new))
            yield Moves(log.path, arriving=_renames(files, names.CLEANED_SUFFIX, names.SWAP_SUFFIX))
            self._refuse_if_unusable()
        except (SourcesChanged, OSError):
            try:
                self.abandon()
            finally:
                log.is_exchanging = False
            raise
        self._is_swapped = True
        self._sources = self._unsynced = []
        take_suffix(new, names.SWAP_SUFFIX)
        try:
            log.exchange_segments(present, new)
            yield from self._settle(present, marks, sources_per_step, is_synced=is_synced)
        except OSError as error:
            if not log.is_deleted:
                take_present_names(log.env, new, names.SWAP_SUFFIX)
                log.fail(error)
                raise
        finally:
            log.is_exchanging = False

    def _settle(self, sources: list[Segment], marks: list[str], per_step: int, *, is_synced: bool) -> Generator[Moves]:
        """Run steps 3 to 5; `sources` is empty afterwards. Yields once if there are at most `per_step` sources."""
        log, new = self._log, self._new
        assert new is not None
        snapshots = [
            names.snapshot_file("", segment.base_offset)[1:]
            for segment in sources
            if segment.base_offset != new.base_offset
        ]
        files = file_names(new)
        moves = Moves(log.path, guard=files[0] + names.SWAP_SUFFIX)
        while sources:
            retiring: list[str] = []
            for segment in sources[:per_step]:
                retiring += file_names(segment)
                # Before the rename: a thread that opens the old name might otherwise find the new segment's file.
                take_suffix(segment, names.DELETED_SUFFIX)
            del sources[:per_step]
            moves = moves._replace(retiring=tuple(retiring))
            if sources:
                yield moves
                self._removed(moves)
                if log.is_deleted:
                    return
        moves = moves._replace(
            dropped=tuple(name + names.SWAP_SUFFIX for name in marks),
            arriving=_renames(files, names.SWAP_SUFFIX, ""),
            outdated=tuple(snapshots[:per_step]),
            is_synced=is_synced and len(snapshots) <= per_step,
        )
        yield moves
        take_suffix(new, "")
        new.release_file()
        self._removed(moves)
        for at in range(per_step, len(snapshots), per_step):
            if log.is_deleted:
                return
            moves = Moves(
                log.path,
                outdated=tuple(snapshots[at : at + per_step]),
                is_synced=is_synced and len(snapshots) <= at + per_step,
            )
            yield moves
            self._removed(moves)

    def _removed(self, moves: Moves) -> None:
        """Queue the files with the suffix `.deleted` for their delayed removal."""
        if not self._log.is_deleted:
            files = (*moves.retiring, *moves.outdated)
            remove_later(self._log, [f"{moves.directory}/{name}{names.DELETED_SUFFIX}" for name in files])

    def _present_sources(self) -> list[Segment]:
        """Return the sources that retention has not removed. Raises SourcesChanged if anything else changed them."""
        present = [segment for segment in self._sources if not segment.is_deleted]
        if self._find_sources(None) != present:
            bases = [segment.base_offset for segment in self._sources]
            raise SourcesChanged(f"{self._log.path}: the segments at {bases} have since been replaced")
        return present

    def finish(self) -> None:
        """Make the exchange durable. Any thread may call it. Write a checkpoint that relies on the exchange only afterwards."""
        self._log.env.sync_dir(self._log.path)

    def abandon(self) -> None:
        """Remove the new segment's `.cleaned` and `.swap` files instead of swapping. Any thread may call it, even twice.

        A `.cleaned` file that cannot be removed is harmless. A remaining `.swap` file might replace segments at the next
        start: the log therefore refuses appends and further swaps.
        """
        bases = [self._base_offset] if self._end_mark is None else [self._base_offset, self._end_mark.base_offset]
        try:
            # Remove the .swap files first: while a .cleaned file exists, the next start drops them.
            for base_offset in bases:
                _remove(self._log, base_offset, names.SWAP_SUFFIX)
        except OSError as error:
            self._log.fail(error)
            raise
        with suppress(OSError):
            for base_offset in bases:
                _remove(self._log, base_offset, names.CLEANED_SUFFIX)


def replace_segments(
    log: Log,
    base_offset: int,
    source_base_offsets: Sequence[int],
    *,
    source_sizes: Sequence[int] | None = None,
    size: int | None = None,
) -> Segment | None:
    """Run all steps of a `Replacement`; return the new segment, or None if retention has removed all sources. Blocking."""
    replacement = Replacement(log, base_offset, source_base_offsets, source_sizes=source_sizes, size=size)
    try:
        replacement.prepare()
    except (StorageError, OSError):
        replacement.abandon()
        raise
    new = replacement.swap()
    replacement.finish()
    return new


def _renames(files: Sequence[str], old: str, new: str) -> tuple[Rename, ...]:
    return tuple((name + old, name + new) for name in files)


def _create_end_mark(log: Log, base_offset: int) -> Segment:
    mark = Segment(log.env, log.path, base_offset, log.config, suffix=names.CLEANED_SUFFIX, create=True)
    mark.file.truncate(0)
    mark.file.sync()
    mark.close()
    return mark


def _remove(log: Log, base_offset: int, stage: str) -> None:
    for path in names.segment_paths(log.path, base_offset, stage):
        log.env.remove(path, missing_ok=True)
