"""The operation that closes the active segments of a topic, as `segment.ms` would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diamant.broker.operation_errors import NotPossible
from diamant.broker.operations.records.explain_operation import ExplainOperation
from diamant.broker.operations.records.record_requests import RollRequest
from diamant.progress import Progress
from diamant.storage.errors import StorageError


async def roll(explaining: ExplainOperation, request: RollRequest, _: Progress) -> Mapping[str, Any]:
    """Close the active segment of each partition; return the base offsets of the new segments. Raises NotFound, NotPossible."""
    rolled = []
    for log in explaining.logs(request.topic, request.partition):
        if log.active.size and not log.is_deleted:
            try:
                base_offset = log.roll().base_offset
            except (StorageError, OSError) as error:
                raise NotPossible(f"{log.topic}-{log.partition}: the segment cannot be closed: {error}") from None
            rolled.append({"partition": log.partition, "active_segment": base_offset})
    return {"topic": request.topic, "rolled": rolled}
