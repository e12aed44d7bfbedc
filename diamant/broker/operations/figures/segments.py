"""Counts the records of each segment of a topic, by kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diamant.broker.operations.figures.segment_figures import UNASKED_BYTES, SegmentFigures
from diamant.broker.operations.records.explain_operation import ExplainOperation
from diamant.broker.operations.records.record_requests import SegmentsRequest
from diamant.progress import Progress
from diamant.storage.log.log import Log


async def segments(
    explaining: ExplainOperation, figures: SegmentFigures, request: SegmentsRequest, progress: Progress
) -> Mapping[str, Any]:
    """Count partitions of up to `UNASKED_BYTES` in total, or all. NotFound, NotPossible."""
    left = UNASKED_BYTES
    logs = explaining.logs(request.topic, request.partition)
    counted = []
    for log in logs:
        if request.all or log.size <= left:
            counted.append(log)
            left -= log.size
    progress.begin("counting", sum(log.size for log in counted), "bytes")
    found = [await _partition(figures, log, progress if log in counted else None) for log in logs]
    return {"topic": request.topic, "partitions": found}


async def _partition(figures: SegmentFigures, log: Log, progress: Progress | None) -> Mapping[str, Any]:
    """Count one partition; without `progress` return its last counts."""
    counted = figures.known(log)
    if progress is not None and (counted is None or not counted.is_current):
        before = progress.done
        counted = await figures.count(log, Progress(lambda one: progress.move_to(before + one.done)))
    known = {} if counted is None else counted.by_base_offset
    rows = []
    for segment in log.segments:
        one = known.get(segment.base_offset)
        counts = None if one is None or one.size != segment.size else one.kinds.to_fields()
        rows.append({"base_offset": segment.base_offset, "bytes": segment.size, "counts": counts})
    return {"partition": log.partition, "segments": rows}
