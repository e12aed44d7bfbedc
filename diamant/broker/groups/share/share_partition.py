"""The state of a share partition: the window of records in flight, from its start offset to its end offset.

The state has no clock and no log: the caller passes the time, the batches read and the limits, and writes the returned changes
to the state topic before others see them. Records below the start offset are completed; records beyond the end offset were
never acquired.

Bound: `max_in_flight` records, each of which is a separate run at worst.

Source: SharePartition of Kafka 4.3.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter

from diamant.broker.groups.share.ranges import InFlightBatch, RecordState, Run, completed_count
from diamant.broker.groups.share.record_locks import RecordLock, RecordLocks
from diamant.protocol.internal_topics.share_records import StateBatch

UNKNOWN_OFFSET = -1


class SharePartition:
    """The window of one share partition; see the module. Belongs to the loop thread."""

    __slots__ = (
        "_available_from",
        "_completed_count",
        "_gap_end",
        "_gap_start",
        "_locks",
        "batches",
        "end_offset",
        "start_offset",
    )

    def __init__(self, start_offset: int, state: Iterable[StateBatch] = ()) -> None:
        """`state` is from the state topic, ascending. Offsets missing there had been acquired, and are delivered again."""
        self.start_offset = start_offset
        self.batches: list[InFlightBatch] = []
        """In ascending order. Other modules must use `put` to replace a batch."""
        self._completed_count = 0
        """The number of completed records in all batches."""
        self._available_from: int | None = None
        """A lower bound of the first available offset in the window, None if no record of the window is available."""
        self._gap_start = self._gap_end = UNKNOWN_OFFSET
        """`_gap_start`: the first offset missing in the state topic, -1 if none is. `_gap_end`: the end offset when loaded."""
        self._locks = RecordLocks()
        expected = start_offset
        for first, last, number, count in state:
            first = max(first, start_offset)
            if last < first:
                continue
            if self._gap_start == UNKNOWN_OFFSET and first > expected:
                self._gap_start = expected
            expected = last + 1
            runs = (Run(first, last, RecordState(number), count),)
            self.batches.append(InFlightBatch(runs, completed_count=completed_count(runs)))
            self._completed_count += self.batches[-1].completed_count
        self.end_offset = self.batches[-1].last if self.batches else start_offset
        self._gap_end = self.end_offset
        if self.batches:
            self.released(start_offset)
        self.advance()

    # -- queries -----------------------------------------------------------------------------------------------------

    @property
    def in_flight_count(self) -> int:
        """The number of records in the window, including completed records."""
        return self.end_offset - self.start_offset + 1 if self.batches else 0

    @property
    def completed_count(self) -> int:
        """The number of completed records in the window (KIP-1226)."""
        below = 0
        for batch in self.batches:
            if batch.first >= self.start_offset:
                break
            runs = batch.runs[: batch.floor(self.start_offset - 1) + 1]
            below += completed_count([*runs[:-1], runs[-1]._replace(last=min(runs[-1].last, self.start_offset - 1))])
        return self._completed_count - below

    def runs(self) -> Iterator[Run]:
        """Yield all runs, ascending."""
        for batch in self.batches:
            yield from batch.runs

    @property
    def has_gaps(self) -> bool:
        """Whether records between the batches, which are missing in the state topic, still have to be delivered."""
        return self._gap_start != UNKNOWN_OFFSET and self._gap_end == self.end_offset

    def next_fetch_offset(self) -> int:
        """Return the first offset that a member may acquire."""
        behind = self.end_offset + 1 if self.batches and self.start_offset <= self.batches[-1].last else self.end_offset
        if self._available_from is None:
            return behind
        found = self._available_from = self._next_available(max(self._available_from, self.start_offset))
        return behind if found is None else found

    def _next_available(self, offset: int) -> int | None:
        gap_start = None
        if self.has_gaps:
            offset = self.start_offset
            gap_start = max(self._gap_start, offset)
        for index in range(max(self.floor(offset), 0), len(self.batches)):
            batch = self.batches[index]
            if gap_start is not None:
                if batch.first > gap_start:
                    return gap_start
                gap_start = max(batch.last + 1, gap_start)
            for position in range(max(batch.floor(offset), 0), len(batch.runs)):
                run = batch.runs[position]
                if run.state is RecordState.AVAILABLE and run.last >= offset:
                    return max(run.first, self.start_offset)
        return None

    def can_acquire(self, max_in_flight: int) -> bool:
        """Return whether a member could acquire records now, provided that the log contains them."""
        return self.next_fetch_offset() != self.end_offset + 1 or self.in_flight_count < max_in_flight

    def next_lock_end_ms(self) -> int | None:
        """Return the time at which the first lock ends."""
        while (lock := self._locks.first) is not None and not self._is_held(lock):
            self._locks.drop_first()
        return None if lock is None else lock.ends_ms

    def _is_held(self, lock: RecordLock) -> bool:
        index = self.floor(lock.first)
        if index < 0:
            return False
        batch = self.batches[index]
        runs = batch.runs[max(batch.floor(lock.first), 0) : batch.floor(lock.last) + 1]
        return any(run.state is RecordState.ACQUIRED and run.lock_ends_ms == lock.ends_ms for run in runs)

    def state_batches(self) -> list[StateBatch]:
        """Return the state for a snapshot, in which an acquired record has the state that it had before this delivery."""
        found = []
        for run in self.runs():
            if run.state is RecordState.ACQUIRED:
                run = run.freed(RecordState.AVAILABLE, delivery_count=run.delivery_count - 1)
                if not run.delivery_count:
                    continue
            found.append(run.stored)
        return combined(found, self.start_offset)

    # -- changes of the window ---------------------------------------------------------------------------------------

    def floor(self, offset: int) -> int:
        """Return the index of the last batch that begins at or before `offset`, -1 if there is none."""
        return bisect_right(self.batches, offset, key=attrgetter("first")) - 1

    def overlapping(self, first: int, last: int) -> range:
        """Return the indexes of the batches that overlap the range."""
        index = self.floor(first)
        if index < 0 or self.batches[index].last < first:
            index += 1
        return range(index, self.floor(last) + 1)

    def put(self, index: int, batch: InFlightBatch) -> None:
        """Replace a batch with one that has the same records in other states."""
        self._completed_count += batch.completed_count - self.batches[index].completed_count
        self.batches[index] = batch

    def released(self, offset: int) -> None:
        """Make the next fetch look for available records from `offset` on."""
        self._available_from = offset if self._available_from is None else min(offset, self._available_from)

    def gave_out_to(self, offset: int) -> None:
        """Note that the records missing in the state topic have been delivered up to `offset`, exclusive."""
        if self._gap_start == UNKNOWN_OFFSET:
            return
        if self._gap_end == self.end_offset and offset <= self._gap_end:
            self._gap_start = offset
        else:
            self._gap_start = UNKNOWN_OFFSET

    def advance(self) -> bool:
        """Move the start offset past completed records, and drop the batches below it. Return whether it has moved."""
        index = self.floor(self.start_offset)
        if index < 0:
            return False
        first = self.batches[index]
        if not first.runs[first.floor(self.start_offset)].state.is_terminal:
            return False
        done = self._last_done()
        if done == UNKNOWN_OFFSET:
            return False
        if done == self.batches[-1].last:
            self.start_offset = self.end_offset = max(done + 1, self.start_offset)
            self.batches = []
            self._completed_count = 0
            return True
        index = self.floor(done)
        if done == self.batches[index].last:
            index += 1
            target = self.batches[index].first
            if self.has_gaps:
                target = min(target, self._gap_start)
        else:
            target = done + 1
        self.start_offset = max(self.start_offset, target)
        self._completed_count -= sum(batch.completed_count for batch in self.batches[:index])
        del self.batches[:index]
        self._join_done(done)
        return True

    def _join_done(self, done: int) -> None:
        """Merge the first batch's runs up to `done`, which are below the window, so that later searches skip a single run."""
        batch = self.batches[0]
        index = batch.floor(done)
        if index > 0:
            joined = Run(batch.first, done, RecordState.ARCHIVED, 0)
            self.batches[0] = batch._replace(runs=(joined, *batch.runs[index + 1 :]))

    def _last_done(self) -> int:
        done = UNKNOWN_OFFSET
        for batch in self.batches:
            if self.has_gaps and batch.last >= self._gap_start:
                break
            for run in batch.runs:
                if not run.state.is_terminal:
                    return done
                done = run.last
        return done

    def begin_at(self, log_start_offset: int) -> None:
        """Adapt to a log whose start has moved because of retention, DeleteRecords, or compaction that emptied its beginning.

        Available records before the new start are archived. Acquired records stay with their member until the lock ends.
        """
        if log_start_offset <= self.start_offset:
            return
        if not self.batches:
            self.start_offset = self.end_offset = log_start_offset
            return
        self.archive(0, log_start_offset - 1, RecordState.AVAILABLE)
        self.start_offset = log_start_offset
        self.end_offset = max(self.end_offset, log_start_offset)

    def archive(self, first: int, last: int, state: RecordState) -> None:
        """Archive the records of the range that are in `state`."""

        def archived(run: Run) -> Run:
            return run.freed(RecordState.ARCHIVED) if run.state is state else run

        for index in self.overlapping(first, last):
            batch = self.batches[index]
            if any(run.state is state for run in batch.runs):
                is_divided = not batch.is_within(first, last)
                self.put(index, batch.changed(first, last, archived, is_divided=is_divided))
                self.released(first)

    def make_room_for_locks(self) -> None:
        """Rebuild the list of locks from `batches` if many may have ended. Do not call this while records are being locked."""
        if self._locks.is_full:
            self._locks = RecordLocks(self.runs())

    def lock(self, run: Run) -> None:
        """Add the lock of a run that is being acquired or renewed."""
        self._locks.add(run)

    def expire(self, now_ms: int, max_deliveries: int) -> list[StateBatch]:
        """Release the records whose locks have ended, or archive them after their last delivery. Return the changes."""
        locks = []
        while (lock := self._locks.first) is not None and lock.ends_ms <= now_ms:
            locks.append(self._locks.drop_first())
        return self._free(locks, lambda run: run.lock_ends_ms <= now_ms, max_deliveries)

    def release(self, member_id: str, max_deliveries: int) -> list[StateBatch]:
        """Release the records of a member whose session has closed, in the same way as `expire`. Return the changes."""
        locks = self._locks.drop_member(member_id)
        return self._free(locks, lambda run: run.member_id == member_id, max_deliveries)

    def _free(
        self, locks: Sequence[RecordLock], is_meant: Callable[[Run], bool], max_deliveries: int
    ) -> list[StateBatch]:
        changes: list[StateBatch] = []

        def after(run: Run) -> Run:
            if run.state is not RecordState.ACQUIRED or not is_meant(run):
                return run
            is_over = run.last < self.start_offset or run.delivery_count >= max_deliveries
            run = run.freed(RecordState.ARCHIVED if is_over else RecordState.AVAILABLE)
            changes.append(run.stored)
            return run

        for index, ranges in self._by_batch(locks):
            batch = self.batches[index]
            count = len(changes)
            changed = batch.changed_in([(*one, after) for one in ranges], is_divided=False)
            if len(changes) > count:
                is_cut = batch.first < self.start_offset <= batch.last
                self.put(index, changed._replace(is_divided=changed.is_divided or is_cut))
        if changes:
            self.released(changes[0].first_offset)
        return combined(changes)

    def _by_batch(self, locks: Sequence[RecordLock]) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Yield the index of each batch with `locks`, and the locks' ranges: ascending, disjoint, split at the start offset."""
        found: dict[int, list[tuple[int, int]]] = {}
        behind = 0
        for first, last in sorted((lock.first, lock.last) for lock in locks):
            index = self.floor(last)
            if index < 0 or last < behind:
                continue
            first, behind = max(first, behind), last + 1
            ranges = found.setdefault(index, [])
            if first < self.start_offset <= last:
                ranges.append((first, self.start_offset - 1))
                first = self.start_offset
            ranges.append((first, last))
        yield from found.items()


def combined(batches: Iterable[StateBatch], start_offset: int = 0) -> list[StateBatch]:
    """Return the ascending `batches` from `start_offset` on, after merging adjacent ones with equal state and delivery count."""
    found: list[StateBatch] = []
    for batch in batches:
        if batch.last_offset < start_offset:
            continue
        batch = batch._replace(first_offset=max(batch.first_offset, start_offset))
        if found and found[-1].last_offset + 1 == batch.first_offset and found[-1][2:] == batch[2:]:
            batch = batch._replace(first_offset=found.pop().first_offset)
        found.append(batch)
    return found
