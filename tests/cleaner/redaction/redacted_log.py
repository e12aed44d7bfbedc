"""Redacts a log of the tests without a broker, by the same steps as `diamant redact`.

redact(log, 'key == "a"')
"""

from __future__ import annotations

from typing import Any

from diamant.cleaner.redaction.locate import LocatedRecords, SearchedSegment, locate_records
from diamant.cleaner.redaction.rewrite import RedactionPlan, SegmentRedaction, write_redacted
from diamant.cleaner.redaction.where import parse_where
from diamant.storage.log.log import Log
from diamant.storage.log.segment_swap import replace_segments


def locate(log: Log, where: str, below: int | None = None, **options: Any) -> LocatedRecords:
    """Locate the records to remove, below the last stable offset."""
    segments = [
        SearchedSegment(one.base_offset, one.path, one.size, tuple(one.txn_index.all())) for one in log.segments
    ]
    return locate_records(
        log.env,
        segments,
        parse_where(where),
        log.last_stable_offset if below is None else below,
        is_compacted=log.config.is_compacted,
        **options,
    )


def redact(log: Log, where: str) -> LocatedRecords:
    """Remove the matching records, as the broker does."""
    located = locate(log, where)
    if log.active.base_offset in located.offsets:
        log.roll()
    plan = plan_of(log, located)
    for segment in plan.segments:
        output = write_redacted(log.env, plan, segment)
        assert output is not None
        replace_segments(
            log, output.base_offset, output.source_base_offsets, source_sizes=[segment.size], size=output.size
        )
    return located


def plan_of(log: Log, located: LocatedRecords) -> RedactionPlan:
    """Return the plan for located records in closed segments."""
    return RedactionPlan(
        directory=log.path,
        segments=tuple(
            SegmentRedaction(one.base_offset, one.size, tuple(one.txn_index.all()), located.offsets[one.base_offset])
            for one in log.segments[:-1]
            if one.base_offset in located.offsets
        ),
        index_interval_bytes=log.config.index_interval_bytes,
        segment_index_bytes=log.config.segment_index_bytes,
    )
