"""The outcomes of a partition's transactions, told by the markers in the log itself.

A transactional batch is decided by the next marker of its producer: COMMIT or ABORT. Without one its transaction is still
open. The indexes of aborted transactions say the same of aborted ones, but may be missing or damaged.

Memory: 17 bytes for each run of consecutive batches of a transaction that aborted or is open, some 100 bytes for each run
of those in between their begin and their marker while reading.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from enum import IntEnum

from diamant.cleaner.segments.tolerant_reader import (
    Advance,
    Batch,
    PartitionFiles,
    Problem,
    Report,
    SegmentFile,
    iter_batches,
)
from diamant.protocol.batches.control import ControlType, parse_control_type
from diamant.protocol.batches.header import BatchHeader
from diamant.protocol.errors import CorruptBatch
from diamant.storage.env.env import Env
from diamant.storage.segments.txn_index import AbortedTxn


class Outcome(IntEnum):
    """The outcome for the records of a batch."""

    COMMITTED = 0
    """Committed, or never part of a transaction."""
    ABORTED = 1
    OPEN = 2


class TransactionOutcomes:
    """The batches whose transactions aborted or are open; every other counts as committed."""

    def __init__(self) -> None:
        self._starts: array[int] = array("q")
        """First offsets of the runs, ascending."""
        self._ends: array[int] = array("q")
        """Last offsets."""
        self._kinds = bytearray()
        self.first_open_offset: int | None = None
        """First offset of the oldest open transaction: the last stable offset, below which all is decided."""
        self.aborted: list[AbortedTxn] = []
        """Transactions that aborted and of which there are records; the last stable offset is not filled in (-1)."""

    @classmethod
    def read(cls, batches: Iterable[Batch]) -> TransactionOutcomes:
        """Learn the outcomes from all batches, in order, that come with or after the first transactional one."""
        outcomes = cls()
        open_runs: dict[int, list[list[int]]] = {}
        has_records: set[int] = set()
        undecided: list[tuple[int, int, Outcome]] = []
        for batch in batches:
            header = batch.header
            producer_id = header.producer_id
            if not header.is_transactional or producer_id < 0 or not batch.crc_is_valid:
                continue
            if not header.is_control:
                _add_run(open_runs.setdefault(producer_id, []), header)
                if header.record_count:
                    has_records.add(producer_id)
                continue
            control_type = marker_type(batch)
            if control_type not in (ControlType.ABORT, ControlType.COMMIT):
                continue
            runs = open_runs.pop(producer_id, [])
            if control_type == ControlType.ABORT and runs:
                undecided += [(first, last, Outcome.ABORTED) for first, last in runs]
                if producer_id in has_records:
                    outcomes.aborted.append(AbortedTxn(producer_id, runs[0][0], header.base_offset, -1))
            has_records.discard(producer_id)
        undecided += [(first, last, Outcome.OPEN) for runs in open_runs.values() for first, last in runs]
        for first, last, kind in sorted(undecided):
            outcomes._starts.append(first)
            outcomes._ends.append(last)
            outcomes._kinds.append(kind)
        outcomes.first_open_offset = min((runs[0][0] for runs in open_runs.values()), default=None)
        return outcomes

    def of(self, header: BatchHeader) -> Outcome:
        """Return what became of a data batch."""
        if not header.is_transactional:
            return Outcome.COMMITTED
        index = bisect_right(self._starts, header.base_offset) - 1
        if index >= 0 and header.base_offset <= self._ends[index]:
            return Outcome(self._kinds[index])
        return Outcome.COMMITTED


def _add_run(runs: list[list[int]], header: BatchHeader) -> None:
    if runs and runs[-1][1] + 1 == header.base_offset:
        runs[-1][1] = header.last_offset
    else:
        runs.append([header.base_offset, header.last_offset])


def marker_type(batch: Batch) -> ControlType | None:
    """Return the type of a control batch's first record; None if it has none, or is damaged."""
    try:
        record = next(batch.records(), None)
        return None if record is None else parse_control_type(record.key)
    except CorruptBatch:
        return None


class DecidedBatches:
    """All sound batches of a partition together with what became of them.

    A partition without transactions is read once. At the first transactional batch what follows is read ahead once,
    headers and markers only, to learn how the transactions end.
    """

    def __init__(self, env: Env, partition: PartitionFiles, report: Report, advance: Advance | None = None) -> None:
        self._env = env
        self._partition = partition
        self._report = report
        self._advance = advance
        self.outcomes: TransactionOutcomes | None = None
        """None as long as there was no transactional batch."""

    def __iter__(self) -> Iterator[tuple[SegmentFile, Batch, Outcome]]:
        """Yield each data or control batch whose checksum is right; the outcome of a control batch means nothing."""
        segments = self._partition.segments
        for index, segment in enumerate(segments):
            for batch in iter_batches(self._env, segment, self._report, self._advance):
                if not batch.crc_is_valid:
                    continue
                outcome = Outcome.COMMITTED
                if batch.header.is_transactional and not batch.header.is_control:
                    if self.outcomes is None:
                        self.outcomes = TransactionOutcomes.read(self._read_ahead(segments[index:]))
                    outcome = self.outcomes.of(batch.header)
                yield segment, batch, outcome

    def _read_ahead(self, segments: tuple[SegmentFile, ...]) -> Iterator[Batch]:
        for segment in segments:
            yield from iter_batches(self._env, segment, _nowhere)


def _nowhere(problem: Problem) -> None:
    """Take a problem that the main pass will meet again."""
