"""The outcomes of a log's transactions. Transactions that are not known to be aborted or open count as committed.

`TransactionOutcomes` returns the outcome for a batch. As for consumers, it is based on the indexes of aborted transactions and
the producers' state. If these may be missing or damaged, `TransactionWalk` derives the outcomes from the markers in the log: the
next marker of its producer, COMMIT or ABORT, decides a transactional batch; if there is no such marker, the transaction is open.

A cleaning round decides from the batches that it reads (`rules.transaction_tracker`).

Memory: 16 bytes for each aborted transaction, about 200 more for each producer with aborted transactions and for each aborted
transaction that a walk finds, and 100 bytes for each open transaction.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from functools import partial
from itertools import accumulate

from diamant.cleaner.segments.sound_rows import Piece, PieceReader, SoundRows
from diamant.cleaner.segments.tolerant_reader import (
    Advance,
    Batch,
    PartitionFiles,
    Problem,
    Report,
    SegmentFile,
)
from diamant.kernels import ARE_COMPILED
from diamant.protocol.batches.batch_records import iter_records
from diamant.protocol.batches.control import ControlType, parse_control_type
from diamant.protocol.batches.header import TRANSACTIONAL_FLAG, BatchHeader
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
    """The aborted and the open transactions of a log. An aborted transaction may be given twice."""

    def __init__(self, aborted: Iterable[AbortedTxn] = (), open_since: Mapping[int, int] | None = None) -> None:
        """`open_since`: first offsets of open transactions, by producer id."""
        self._open_since = {} if open_since is None else dict(open_since)
        self._aborted: dict[int, tuple[array[int], array[int]]] = {}
        """By producer id: first offsets, ascending, and for each the greatest last offset of the transactions up to it."""
        for txn in aborted:
            firsts, ends = self._aborted.setdefault(txn.producer_id, (array("q"), array("q")))
            firsts.append(txn.first_offset)
            ends.append(txn.last_offset)
        for producer_id, found in self._aborted.items():
            entries = sorted(zip(*found, strict=True))
            ends = array("q", accumulate((end for _, end in entries), max))
            self._aborted[producer_id] = (array("q", (first for first, _ in entries)), ends)

    def with_aborted(self, aborted: Iterable[AbortedTxn]) -> TransactionOutcomes:
        """Return a copy with the same open transactions, but with these aborted transactions."""
        return TransactionOutcomes(aborted, self._open_since)

    def of(self, header: BatchHeader) -> Outcome:
        """Return the outcome of a data batch."""
        if not header.is_transactional:
            return Outcome.COMMITTED
        return self.of_transactional(header.producer_id, header.base_offset)

    def of_transactional(self, producer_id: int, offset: int) -> Outcome:
        """Return the outcome of a transactional data batch with base offset `offset`."""
        if producer_id in self._aborted:
            firsts, ends = self._aborted[producer_id]
            index = bisect_right(firsts, offset) - 1
            if index >= 0 and offset < ends[index]:
                return Outcome.ABORTED
        since = self._open_since.get(producer_id)
        return Outcome.COMMITTED if since is None or offset < since else Outcome.OPEN


class TransactionWalk:
    """Tracks the transactions of a log from batch to batch, in offset order."""

    def __init__(self) -> None:
        self.open_since: dict[int, int] = {}
        """First offsets of open transactions, by producer id."""
        self.aborted: list[AbortedTxn] = []
        """Aborted transactions; their last stable offset is not set (-1)."""
        self.aborted_with_records: list[AbortedTxn] = []
        """The aborted transactions that have records."""
        self._with_records: set[int] = set()

    @property
    def first_open_offset(self) -> int | None:
        """First offset of the oldest open transaction: the last stable offset. Every batch below it is decided."""
        return min(self.open_since.values(), default=None)

    def add(self, header: BatchHeader, control_type: ControlType | None) -> None:
        """Process the next batch; `control_type` is the type of a control batch."""
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


def marker_type(buffer: bytes, at: int, on_fault: Callable[[str], object] = lambda reason: None) -> ControlType | None:
    """Return the type of the first record of the control batch at `at`; None if it has no record, or is damaged.

    `on_fault` is called with a description of the damage.
    """
    try:
        record = next(iter_records(buffer, at), None)
        return None if record is None else parse_control_type(record.key)
    except CorruptBatch as error:
        on_fault(error.reason)
        return None


class DecidedBatches:
    """All batches of a partition with valid checksums, and the outcomes of their transactions.

    A partition without transactions is read once. At the first transactional batch, the headers and markers from its segment on
    are read ahead once, to find the outcomes.
    """

    def __init__(
        self,
        env: Env,
        partition: PartitionFiles,
        report: Report,
        advance: Advance | None = None,
        *,
        is_compiled: bool = ARE_COMPILED,
    ) -> None:
        self._env = env
        self._partition = partition
        self._report = report
        self._advance = advance
        self._is_compiled = is_compiled
        self.transactions: TransactionWalk | None = None
        """The transactions found by reading ahead; None until the first transactional batch."""
        self._outcomes = TransactionOutcomes()

    def __iter__(self) -> Iterator[tuple[SegmentFile, Piece, Outcome]]:
        """Yield the batches with valid checksums: either rows, whose outcomes are in STEP, or one batch and its outcome.

        The outcome of a control batch has no meaning.
        """
        segments = self._partition.segments
        reader = PieceReader(is_compiled=self._is_compiled)
        for index, segment in enumerate(segments):
            for piece in reader.pieces_of(self._env, segment, self._report, self._advance):
                outcome = Outcome.COMMITTED
                if isinstance(piece, SoundRows):
                    piece.decide(partial(self._outcome, rest=segments[index:]))
                elif piece.crc_is_valid:
                    outcome = self._outcome(piece.header, segments[index:])
                else:
                    continue
                yield segment, piece, outcome

    def _outcome(self, header: BatchHeader, rest: tuple[SegmentFile, ...]) -> Outcome:
        if not header.is_transactional or header.is_control:
            return Outcome.COMMITTED
        if self.transactions is None:
            self.transactions = walk = self._read_ahead(rest)
            self._outcomes = TransactionOutcomes(walk.aborted, walk.open_since)
        return self._outcomes.of(header)

    def _read_ahead(self, segments: tuple[SegmentFile, ...]) -> TransactionWalk:
        walk = TransactionWalk()
        reader = PieceReader(with_records=False, is_compiled=self._is_compiled)
        for segment in segments:
            for piece in reader.pieces_of(self._env, segment, _nowhere):
                if isinstance(piece, SoundRows):
                    for row in piece.with_attributes(TRANSACTIONAL_FLAG):
                        header = piece.header(row)
                        self._add(walk, segment, header, piece.batch(row) if header.is_control else None)
                elif piece.crc_is_valid:
                    self._add(walk, segment, piece.header, piece)
        return walk

    def _add(self, walk: TransactionWalk, segment: SegmentFile, header: BatchHeader, batch: Batch | None) -> None:
        control_type = None
        if header.is_control and batch is not None:
            control_type = marker_type(
                batch.buffer,
                batch.at,
                lambda reason: self._report(
                    Problem(segment.path, batch.position, f"unreadable control record: {reason}")
                ),
            )
        walk.add(header, control_type)


def _nowhere(problem: Problem) -> None:
    """Ignore a problem, because the main pass reports it."""
