"""Putting a cleaned segment in the place of the segments it was made from, so that a crash leaves the old or the new.

The steps are Kafka's (LocalLog.replaceSegments). The writer has left synced files with the suffix `.cleaned`:

    1  the new segment's files: .cleaned -> .swap                    in the order log, index, timeindex, txnindex
    2  in memory the new segment takes the place of the old ones
    3  the old segments' files: -> .deleted, ascending               removed for good after file.delete.delay.ms
    4  the new segment's files: .swap -> no suffix                   in the same order
    5  producer snapshots at base offsets that are no more: -> .deleted
    6  fsync of the directory

At a start (`recovery.leftovers`): a `.cleaned` file means that step 1 was not over, so the new segment goes from its offset on
and the old ones are as they were. Otherwise `.swap` files are whole; what they replace goes, then they lose their
suffix.

What a `.swap` file replaces is told by its offsets: from its base to its last batch. Kafka leaves it at that. When the
cleaner has emptied the end of a group, old segments behind the new one's last batch are then taken for others and stay,
with records that this round had dropped; nothing else can come back, since step 3 goes up from the oldest: if a record
stays, so does every later one that could supersede it. We close that gap with a second, empty segment at the group's last
offset, the *end mark*. It takes part in step 1 (first, as Kafka would have it for the higher of two new segments) and is
removed before step 4, so the offsets of the `.swap` files reach to the end of the group, for Kafka's recovery too.

A log's groups must be replaced in ascending order and none may be skipped: a later group may hold no tombstone any more
for what an earlier one still has. An error ends the round.

Readers are not disturbed: a `FileSlice` keeps the file it was made of, whatever its name is.

A group may have thousands of sources, and a round thousands of groups, while producers wait for their answers. So steps
3 to 5 are taken a few files at a time, and the owner of the log does other work in between (`swap_in_turns`). In memory
everything is over with step 2, which is taken in one turn with step 1, so appends, reads, rolls and flushes need not
know. Retention and another exchange must wait (`Log.is_exchanging`): what they renamed would be missing for, or come
back by, what is still to be renamed here. A partition that is deleted during the swap is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from diamant.storage import names
from diamant.storage.errors import StorageError
from diamant.storage.log.log import Log
from diamant.storage.log.segment_removal import remove_segment_files, remove_snapshots
from diamant.storage.segments.segment import Segment, scan_headers

SOURCES_PER_TURN = 4
"""Number of sources renamed before other tasks get their turn: about 0.3 ms."""

MAX_SCANNED_BYTES = 64 * 1024
"""Size of a new segment's tail, behind the batch that its index names last, that `Replacement.open` still reads: some 2
ms.

With the default `index.interval.bytes` these are 4 KiB and the last batch at most.
"""

_FILE_NAMES = (names.log_file, names.index_file, names.time_index_file, names.txn_index_file)


class SourcesChanged(StorageError):
    """The segments are no longer those that the new one was made from; the log is as it was."""


class Replacement:
    """One new segment, whose `.cleaned` files are complete and synced, and the segments it replaces.

    `__init__`, `open` and `swap` (or `swap_in_turns`) belong to the log's owner and do not wait for the disk: about
    four files are renamed per source. `prepare` and `finish` block for fsyncs and belong in another thread. Each is
    called once, in the order `prepare`, `swap`, `finish`; to stop before `swap`, call `abandon`. Where most groups are
    small, going to another thread and back costs as much as the work: an owner may call `open` first and `prepare` only
    if it `must_prepare`.
    """

    def __init__(
        self,
        log: Log,
        base_offset: int,
        source_base_offsets: Sequence[int],
        *,
        source_sizes: Sequence[int] | None = None,
        size: int | None = None,
    ) -> None:
        """Record the sources (base offsets ascending, the first one being `base_offset`).

        `source_sizes` and `size` are what the `.log` files of the sources had when the new one was made, and what the new
        one has. Raises SourcesChanged if the log does not have these sources; the `.cleaned` files are then removed.
        """
        self._log = log
        self._base_offset = base_offset
        self._bases = tuple(source_base_offsets)
        self._size = size
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
        """Return the sources that retention has left; SourcesChanged if others are missing or in between."""
        log = self._log
        if log.is_deleted:
            raise SourcesChanged(f"{log.path}: the partition is deleted")
        if log.is_exchanging:
            raise SourcesChanged(f"{log.path}: other segments are being exchanged")
        if log.write_failure is not None:
            raise SourcesChanged(f"{log.path}: refuses writes since {log.write_failure}")
        bases = [base for base in self._bases if base >= log.segments[0].base_offset]
        if not bases:
            return []
        first = log.floor_segment(bases[0])
        found = log.segments[first : first + len(bases)]
        if [segment.base_offset for segment in found] != bases:
            present = [segment.base_offset for segment in found]
            raise SourcesChanged(f"{log.path}: expected segments at {bases}, got {present}")
        if found[-1] is log.active:
            raise SourcesChanged(f"{log.path}: the segment at {bases[-1]} is the active one")
        if sizes is not None:
            for segment, expected in zip(found, sizes[len(self._bases) - len(bases) :], strict=True):
                if segment.size != expected:
                    raise SourcesChanged(f"{segment.path}: expected {expected} bytes, got {segment.size}")
        return found

    def open(self) -> None:
        """Open the new segment, if that takes but a few small reads of files that were written just now.

        Left to `prepare` if more than MAX_SCANNED_BYTES lie behind the last batch in its offset index: the batches there are
        scanned for the segment's end. Raises StorageError if the `.cleaned` files are not what was announced, OSError.
        """
        new = self._find_new()
        _, position = new.offset_index.last_entry
        for at, header in scan_headers(new.file, position, new.size):
            position = at + header.size
            break
        if new.size - position <= MAX_SCANNED_BYTES:
            self._take(new)

    def _find_new(self) -> Segment:
        """Return the new segment, whose indexes are not built but checked."""
        log = self._log
        new = Segment(log.env, log.path, self._base_offset, log.config, suffix=names.CLEANED_SUFFIX)
        if self._size is not None and new.size != self._size:
            raise StorageError(f"{new.path}: expected {self._size} bytes, got {new.size}")
        for index in (new.offset_index, new.time_index):
            index.sanity_check()
        return new

    def _take(self, new: Segment) -> None:
        """Have `new` be the new segment, and find out whether it needs an end mark."""
        # While it has another name than later on it must not be opened by its name: a flush may be using it in another thread.
        _ = new.file
        ends_at = max(new.next_offset(), self._base_offset + 1)
        self._lacks_end_mark = bool(self._sources) and self._sources[-1].base_offset >= ends_at
        self._new = new

    @property
    def must_prepare(self) -> bool:
        """True if `prepare` has work that takes time. Asked between `open` and `swap`."""
        return self._new is None or bool(self._unsynced) or self._lacks_end_mark

    def prepare(self) -> None:
        """Open the new segment, if it is not open, and make everything durable that the swap relies on.

        For any thread. Old segments that no flush has covered yet are synced: once renamed, no flush would.
        Raises what `open` raises.
        """
        if self._new is None:
            self._take(self._find_new())
        for segment in self._unsynced:
            segment.sync()
        self._unsynced = []
        if self._lacks_end_mark:
            self._end_mark = _create_end_mark(self._log, self._end_offset - 1)
            self._lacks_end_mark = False

    def swap(self) -> Segment | None:
        """Do all that `swap_in_turns` does at once; return the new segment, None if retention has removed all sources."""
        for _ in self.swap_in_turns():
            pass
        return self._new if self._is_swapped else None

    def swap_in_turns(self, sources_per_turn: int = SOURCES_PER_TURN) -> Iterator[None]:
        """Exchange the segments, on disk and in memory; nothing happens if retention has removed all sources.

        For the owner, which may do other work whenever something is yielded, but must continue to the end in any case.
        Raises, before anything is yielded, SourcesChanged if the sources are no longer those of `__init__`: the log is then
        as it was and the `.cleaned` files are gone. OSError in step 1 likewise; OSError later leaves a log that reads the new
        segment, refuses appends, and is put in order by the next start.

        Kafka adds the new segment even when all sources are gone, below the log start, until retention comes by the next
        time. Here it is not added: what retention has deleted does not come back.
        """
        assert self._new is not None, "open or prepare comes first"
        assert not self.must_prepare, "prepare comes first"
        log = self._log
        new = self._new
        try:
            present = self._present_sources()
            if not present:
                self.abandon()
                return
            for segment in filter(None, (self._end_mark, new)):
                segment.change_suffix(names.SWAP_SUFFIX)
        except (SourcesChanged, OSError):
            self.abandon()
            raise
        log.is_exchanging = self._is_swapped = True
        self._sources = self._unsynced = []
        try:
            log.exchange_segments(present, new)
            yield
            if not log.is_deleted:
                yield from self._rename(present, sources_per_turn)
        except OSError as error:
            log.fail(error)
            raise
        finally:
            log.is_exchanging = False

    def _rename(self, sources: list[Segment], per_turn: int) -> Iterator[None]:
        """Take steps 3 to 5; `sources` is empty afterwards.

        The last to drop a file closes it, and should do so while it has a name, as closing a nameless file frees its
        blocks.
        """
        log, new = self._log, self._new
        assert new is not None
        gone = [segment.base_offset for segment in sources if segment.base_offset != new.base_offset]
        while sources:
            remove_segment_files(log, sources[:per_turn])
            del sources[:per_turn]
            yield
            if log.is_deleted:
                return
        if self._end_mark is not None:
            _remove(log, self._end_mark.base_offset, names.SWAP_SUFFIX)
        new.change_suffix("")
        new.let_go_of_file()
        for start in range(0, len(gone), per_turn):
            yield
            if log.is_deleted:
                return
            remove_snapshots(log, gone[start : start + per_turn])

    def _present_sources(self) -> list[Segment]:
        """Return those of the sources that retention has left; SourcesChanged if any other thing happened to them."""
        present = [segment for segment in self._sources if not segment.is_deleted]
        if self._find_sources(None) != present:
            bases = [segment.base_offset for segment in self._sources]
            raise SourcesChanged(f"{self._log.path}: the segments at {bases} were replaced since")
        return present

    def finish(self) -> None:
        """Make the exchange durable; for any thread. A checkpoint that counts on it may be written afterwards."""
        self._log.env.sync_dir(self._log.path)

    def abandon(self) -> None:
        """Remove the new segment's files, if the swap has not happened. Any thread; may be called twice.

        A `.cleaned` file that cannot be removed is no harm. A `.swap` file might replace something at the next start, when
        its contents are no longer known: the log then refuses appends, and so further swaps.
        """
        bases = [self._base_offset] if self._end_mark is None else [self._base_offset, self._end_mark.base_offset]
        try:
            # As long as there is a .cleaned file, a start drops the .swap files: so those go first.
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
    """Do all steps of a `Replacement`, one after the other; blocks, so not for the loop thread."""
    replacement = Replacement(log, base_offset, source_base_offsets, source_sizes=source_sizes, size=size)
    try:
        replacement.prepare()
    except (StorageError, OSError):
        replacement.abandon()
        raise
    new = replacement.swap()
    replacement.finish()
    return new


def _create_end_mark(log: Log, base_offset: int) -> Segment:
    mark = Segment(log.env, log.path, base_offset, log.config, suffix=names.CLEANED_SUFFIX, create=True)
    mark.file.truncate(0)
    mark.file.sync()
    mark.close()
    return mark


def _remove(log: Log, base_offset: int, stage: str) -> None:
    for file_name in _FILE_NAMES:
        log.env.remove(file_name(log.path, base_offset) + stage, missing_ok=True)
