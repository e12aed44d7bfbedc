"""The second pass of a round, for all engines: rewrites a group of segments to one output.

Source: Kafka's Cleaner.cleanSegments.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Protocol, TypeVar

from diamant.cleaner.rules.grouping import ends_output
from diamant.cleaner.rules.plan import aborted_from
from diamant.cleaner.rules.result import OutputOverflow
from diamant.cleaner.segments.segment_writer import SegmentWriter
from diamant.storage.errors import CorruptLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from diamant.cleaner.engines.work import RoundWork
    from diamant.cleaner.rules.plan import CleanPlan, SegmentPlan
    from diamant.cleaner.rules.result import OutputSegment
    from diamant.cleaner.rules.transaction_tracker import TransactionTracker
    from diamant.storage.segments.txn_index import AbortedTxn

WriterT = TypeVar("WriterT", bound=SegmentWriter)


class Rewriter(Protocol[WriterT]):
    """Rewrites segments in offset order."""

    @property
    def tracker(self) -> TransactionTracker:
        """The transactions read so far, over all groups."""
        ...

    @property
    def writer_type(self) -> type[WriterT]:
        """The class that writes the outputs."""
        ...

    def rewrite(self, segment: SegmentPlan, writer: WriterT) -> None:
        """Append to `writer` the records of a segment that are kept.

        Raises CorruptLog, OutputOverflow, OSError, and the errors of `check_done`.
        """
        ...


def rewrite_group(
    work: RoundWork, rewriter: Rewriter[WriterT], group: Sequence[SegmentPlan]
) -> Iterator[OutputSegment]:
    """Rewrite a group, and yield its output, not yet synced; in mode prompt, several if recompression makes one too large.

    If an output fails, its files are removed.
    """
    start = 0
    while start < len(group):
        output, start = _rewrite_from(work, rewriter, group, start)
        yield output


def _rewrite_from(
    work: RoundWork, rewriter: Rewriter[WriterT], group: Sequence[SegmentPlan], start: int
) -> tuple[OutputSegment, int]:
    plan = work.plan
    writer = rewriter.writer_type(
        work.env,
        plan.directory,
        group[start].base_offset,
        index_interval_bytes=plan.index_interval_bytes,
        segment_index_bytes=plan.segment_index_bytes,
        is_strict=plan.is_kafka,
        max_bytes=work.limits.output_bytes,
    )
    end = start
    try:
        while end < len(group) and (end == start or not ends_output(plan, writer.size, group[end])):
            segment = group[end]
            if plan.quarantined:
                rewriter.tracker.skip_to(segment.base_offset)
            work.check_done()
            rewriter.tracker.add_aborted(_aborted_reaching_into(plan, segment))
            rewriter.rewrite(segment, writer)
            end += 1
        sources = group[start:end]
        return writer.finish(sources[-1].modified_ms, tuple(one.base_offset for one in sources)), end
    except OutputOverflow as error:
        writer.abandon()
        if plan.is_kafka:
            raise
        # CorruptLog lets the caller leave out the segment and clean the others (`quarantine`).
        reason = f"the rewritten records do not fit into one segment: {error.reason}"
        raise CorruptLog(work.log_path(group[end]), 0, reason) from error
    except BaseException:
        writer.abandon()
        raise


def _aborted_reaching_into(plan: CleanPlan, segment: SegmentPlan) -> Iterator[AbortedTxn]:
    # All aborted transactions that reach into the segment, not only those in the dirty part (KAFKA-8351, KAFKA-13727).
    index = bisect_left(plan.segments, segment.base_offset, key=lambda one: one.base_offset)
    return aborted_from(plan, index, segment.next_base_offset)
