"""The outcomes of a log's transactions: which aborted, which are open; all others were committed.

`TransactionOutcomes` answers for a batch. It is made of the indexes of aborted transactions and the producers' state, which
consumers are answered from; or, where those may be missing or damaged, of the markers in the log (`TransactionWalk`): a
transactional batch is decided by the next marker of its producer: COMMIT or ABORT. Without one its transaction is still open.

A cleaning decides otherwise, on what it reads: `rules.transaction_tracker`.

Memory: some 200 bytes for each transaction that aborted, 100 for each open one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from itertools import accumulate

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
    """The aborted and the open transactions of a log. An aborted one may be named twice."""

    def __init__(self, aborted: Iterable[AbortedTxn] = (), open_since: Mapping[int, int] | None = None) -> None:
        """`open_since`: producer id to the first offset of its open transaction."""
        self._open_since = {} if open_since is None else dict(open_since)
        entries: dict[int, list[tuple[int, int]]] = {}
        for one in aborted:
            entries.setdefault(one.producer_id, []).append((one.first_offset, one.last_offset))
        self._aborted: dict[int, tuple[list[int], list[int]]] = {}
        """Producer id to first offsets, ascending, and where all that began up to there has ended."""
        for producer_id, found in entries.items():
            found.sort()
            self._aborted[producer_id] = (
                [first for first, _ in found],
                list(accumulate((end for _, end in found), max)),
            )

    def with_aborted(self, aborted: Iterable[AbortedTxn]) -> TransactionOutcomes:
        """Return the same open transactions with other aborted ones."""
        return TransactionOutcomes(aborted, self._open_since)

    def of(self, header: BatchHeader) -> Outcome:
        """Return what became of a data batch."""
        if not header.is_transactional:
            return Outcome.COMMITTED
        offset, producer_id = header.base_offset, header.producer_id
        since = self._open_since.get(producer_id)
        if since is not None and since <= offset:
            return Outcome.OPEN
        if producer_id in self._aborted:
            firsts, ends = self._aborted[producer_id]
            index = bisect_right(firsts, offset) - 1
            if index >= 0 and offset < ends[index]:
                return Outcome.ABORTED
        return Outcome.COMMITTED


class TransactionWalk:
    """Follows the transactions of a log from batch to batch, in the order of offsets."""

    def __init__(self) -> None:
        self.open_since: dict[int, int] = {}
        """Producer id to the first offset of its transaction, which no marker has ended."""
        self.aborted: list[AbortedTxn] = []
        """Transactions that aborted; the last stable offset is not filled in (-1)."""
        self.aborted_with_records: list[AbortedTxn] = []
        """Those of which there are records."""
        self._with_records: set[int] = set()

    @property
    def first_open_offset(self) -> int | None:
        """First offset of the oldest open transaction: the last stable offset, below which all is decided."""
        return min(self.open_since.values(), default=None)

    def add(self, header: BatchHeader, control_type: ControlType | None) -> None:
        """Take the next batch; `control_type` is that of a control batch."""
        producer_id = header.producer_id
        if not header.is_transactional or producer_id < 0:
            return
        if not header.is_control:
            self.open_since.setdefault(producer_id, header.base_offset)
            if header.record_count:
                self._with_records.add(producer_id)
        elif control_type in (ControlType.ABORT, ControlType.COMMIT):
            first_offset = self.open_since.pop(producer_id, None)
            if control_type == ControlType.ABORT and first_offset is not None:
                aborted = AbortedTxn(producer_id, first_offset, header.base_offset, -1)
                self.aborted.append(aborted)
                if producer_id in self._with_records:
                    self.aborted_with_records.append(aborted)
            self._with_records.discard(producer_id)


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
        self.transactions: TransactionWalk | None = None
        """None as long as there was no transactional batch."""

    def __iter__(self) -> Iterator[tuple[SegmentFile, Batch, Outcome]]:
        """Yield each data or control batch whose checksum is right; the outcome of a control batch means nothing."""
        segments = self._partition.segments
        outcomes = None
        for index, segment in enumerate(segments):
            for batch in iter_batches(self._env, segment, self._report, self._advance):
                if not batch.crc_is_valid:
                    continue
                outcome = Outcome.COMMITTED
                if batch.header.is_transactional and not batch.header.is_control:
                    if outcomes is None:
                        self.transactions = walk = self._read_ahead(segments[index:])
                        outcomes = TransactionOutcomes(walk.aborted, walk.open_since)
                    outcome = outcomes.of(batch.header)
                yield segment, batch, outcome

    def _read_ahead(self, segments: tuple[SegmentFile, ...]) -> TransactionWalk:
        walk = TransactionWalk()
        for segment in segments:
            for batch in iter_batches(self._env, segment, _nowhere):
                if batch.crc_is_valid:
                    walk.add(batch.header, marker_type(batch) if batch.header.is_control else None)
        return walk


def _nowhere(problem: Problem) -> None:
    """Take a problem that the main pass will meet again."""
