"""The state of a log at one moment, and the queries on it that run in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diamant.broker.operations.records.log_files import Changed, LogFiles
from diamant.cleaner.explain.explainer import Explainer
from diamant.cleaner.explain.explanation import PartitionExplanation
from diamant.cleaner.explain.log_state import LogState
from diamant.cleaner.explain.scans import KeyScan, OpenSegment, scan_key
from diamant.cleaner.facts.key_filter import cannot_hold
from diamant.cleaner.segments.transaction_outcomes import TransactionOutcomes
from diamant.cleaner.service.partition_view import CleanerView
from diamant.progress import Progress
from diamant.storage.env.env import Env
from diamant.storage.segments.segment import Segment
from diamant.storage.segments.txn_index import AbortedTxn

if TYPE_CHECKING:
    from diamant.cleaner.erasure_state.pending_erasures import PendingErasures


@dataclass(slots=True)
class LogAtMoment:
    """The state of one log at one moment."""

    env: Env
    state: LogState
    view: CleanerView
    now_ms: int
    segments: tuple[Segment, ...]
    outcomes: TransactionOutcomes
    removals_ms: Mapping[str, int]
    erasures: PendingErasures | None

    def explainer(self) -> Explainer:
        erasures = self.erasures
        return Explainer(
            self.state,
            self.view,
            self.now_ms,
            self.removals_ms,
            None if erasures is None else lambda key, offset: erasures.of(key, self.state.partition, offset),
        )

    def explain(self, scan: KeyScan | None = None) -> PartitionExplanation:
        return self.explainer().partition(scan)

    def scan(
        self,
        key: bytes | None,
        offset: int | None,
        files: Iterable[OpenSegment],
        check_done: Callable[[], None],
        progress: Progress,
    ) -> KeyScan:
        return scan_key(
            _counted(files, progress),
            key,
            self.outcomes,
            self.state.log_start_offset,
            at_offset=offset,
            check_done=check_done,
            advance=progress.advance,
        )

    def open(self, key: bytes | None) -> LogFiles:
        """Open the files, including released files. Raises OSError, or Changed if a file no longer exists."""
        state = self.state
        aborted: set[AbortedTxn] = set()
        sizes = [(one.base_offset, one.size) for one in state.segments]
        absent = set()
        if key is not None:
            closed = zip(self.segments[:-1], sizes[:-1], strict=True)
            absent = {
                base_offset
                for segment, (base_offset, size) in closed
                if cannot_hold(self.env, segment.path, base_offset, size, [key], self.view.hash_key)
            }
        files = LogFiles(self.env)
        try:
            for segment, (base_offset, size) in zip(self.segments, sizes, strict=True):
                aborted.update(segment.txn_index.all())
                if base_offset not in absent and size:
                    files.add(segment, base_offset, size)
            for name in self.env.list_dir(state.path):
                files.add_other(f"{state.path}/{name}")
        except BaseException as error:
            files.close()
            if isinstance(error, FileNotFoundError):
                raise Changed from None
            raise
        self.outcomes = self.outcomes.with_aborted(aborted)
        return files


def _counted(files: Iterable[OpenSegment], progress: Progress) -> Iterator[OpenSegment]:
    """Yield the files; add the sizes of released files to the total, which so far covers only the log."""
    for one in files:
        if one.is_removed and progress.total is not None:
            progress.total += one.size
        yield one
