"""Opens the files of one partition without a broker, in the same way as a broker that starts now.

The log is opened on an overlay: repairs happen there, and the files stay unchanged. Facts that only a running broker has are
missing: pending erasures, timeouts of open transactions, failed rounds. Memory and disk: as for opening the log in a broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from diamant.cleaner.explain.explainer import Explainer
from diamant.cleaner.explain.log_state import LogState
from diamant.cleaner.explain.scans import OpenSegment
from diamant.cleaner.rules.open_transaction import OpenTransaction
from diamant.cleaner.segments.tolerant_reader import PartitionFiles
from diamant.cleaner.segments.transaction_outcomes import TransactionOutcomes
from diamant.cleaner.service.log_picker import look_at_first_timestamps
from diamant.cleaner.service.partition_view import CleanerView
from diamant.storage import names
from diamant.storage.checkpoints import checkpoints
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import Env, parent
from diamant.storage.env.overlay import OverlayEnv
from diamant.storage.log.append_checks import Validation
from diamant.storage.log.log import Log
from diamant.storage.recovery.open_log import load_log
from diamant.storage.segments.log_config import LogConfig
from diamant.storage.uuid_text import ZERO_ID


@dataclass(frozen=True, slots=True)
class OpenedPartition(Iterable[OpenSegment]):
    """A partition of a directory, opened without changing it."""

    log: Log
    now_ms: int
    messages: tuple[str, ...]
    """Messages that a broker would log while it starts."""
    outcomes: TransactionOutcomes
    open_transactions: tuple[OpenTransaction, ...]

    def explainer(self, view: CleanerView) -> Explainer:
        """Return the explainer of the partition. `view`: the cleaner's view of the log."""
        return Explainer(self.state(view), view, self.now_ms)

    def state(self, view: CleanerView) -> LogState:
        """Return the state of the log."""
        return LogState.of(self.log, self.now_ms, view.checkpoint, self.open_transactions)

    def __iter__(self) -> Iterator[OpenSegment]:
        """Yield the segments; one file is open at a time."""
        for segment in self.log.segments:
            if segment.size:
                opened = OpenSegment.of(self.log.env, segment.path, segment.base_offset, segment.size)
                try:
                    yield opened
                finally:
                    opened.file.close()


@contextmanager
def opened_partition(
    env: Env, partition: PartitionFiles, config: LogConfig, now_ms: int, scratch: str, *, producer_expiration_ms: int
) -> Iterator[OpenedPartition]:
    """Open a partition; `scratch`: an empty directory for writes. Blocking. Raises StorageError if a broker could not start."""
    overlay = OverlayEnv(env, env, scratch, SettableClock(now_ms))
    overlay.add_directory(partition.directory)
    log_directory = parent(partition.directory)
    said: list[str] = []
    log = load_log(
        overlay,
        partition.directory,
        partition.topic,
        partition.partition,
        checkpoints.read_partition_metadata(overlay, partition.directory) or ZERO_ID,
        config,
        Validation(),
        recovery_point=checkpoints.read_recovery_point(env, log_directory, (partition.topic, partition.partition)),
        log_start_offset=partition.log_start_offset,
        is_clean=env.exists(f"{log_directory}/{names.CLEAN_SHUTDOWN}"),
        producer_expiration_ms=producer_expiration_ms,
        messages=said,
    )
    try:
        look_at_first_timestamps(log.segments)
        opened = [one for one in log.producers.active_producers if one.current_txn_first_offset >= 0]
        outcomes = TransactionOutcomes(
            (one for segment in log.segments for one in segment.txn_index.all()),
            {one.producer_id: one.current_txn_first_offset for one in opened},
        )
        transactions = (OpenTransaction(one.producer_id, one.current_txn_first_offset, one.timestamp) for one in opened)
        yield OpenedPartition(log, now_ms, tuple(said), outcomes, tuple(transactions))
    finally:
        log.close()
