"""Record counts of each segment of a topic over HTTP: `POST /v1/segments`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diamant.broker.http.serving.route import Call, Route
from diamant.broker.operations.calls.parameters import Param
from diamant.broker.operations.figures.segment_figures import UNASKED_BYTES
from diamant.progress import Progress
from diamant.storage.log.log import Log


async def segments(call: Call) -> Mapping[str, Any]:
    """Count the records of each segment, for partitions of up to `UNASKED_BYTES` in total, or for all."""
    left = UNASKED_BYTES
    logs = call.services.explain().logs(call.fields["topic"], call.fields["partition"])
    counted = []
    for log in logs:
        if call.fields["all"] or log.size <= left:
            counted.append(log)
            left -= log.size
    call.progress.begin("counting", sum(log.size for log in counted), "bytes")
    found = [await _partition(call, log, is_counted=log in counted) for log in logs]
    return {"topic": call.fields["topic"], "partitions": found}


async def _partition(call: Call, log: Log, *, is_counted: bool) -> Mapping[str, Any]:
    figures = call.services.segment_figures()
    counted = figures.known(log)
    if is_counted and (counted is None or not counted.is_current):
        before = call.progress.done
        counted = await figures.count(log, Progress(lambda one: call.progress.move_to(before + one.done)))
    known = {} if counted is None else counted.by_base_offset
    rows = []
    for segment in log.segments:
        one = known.get(segment.base_offset)
        counts = None if one is None or one.size != segment.size else one.kinds.to_fields()
        rows.append({"base_offset": segment.base_offset, "bytes": segment.size, "counts": counts})
    return {"partition": log.partition, "segments": rows}


ROUTES = (
    Route(
        "POST",
        "/v1/segments",
        segments,
        "The number of records of each kind in each segment of a topic.",
        is_job=True,
        can_be_ended=True,
        fields=(
            Param("topic", "string", "The topic.", is_required=True),
            Param("partition", "integer", "One partition. Default: all.", most=(1 << 31) - 1),
            Param("all", "boolean", "Include partitions beyond the first 64 MiB.", default=False),
        ),
        answer="By partition and segment: `base_offset`, `bytes` and `counts`, null if not counted.",
    ),
)
