"""Figures of a compacted topic that DescribeConfigs shows beside its configurations, such as its dirty ratio.

The rows are in `config/virtual_topic_table.py`. A request reads at most `BUDGET_BYTES` of segments not counted before; a figure
that would require more is `unknown`. For a topic with more than `MAX_SEGMENTS` segments, the dirty ratio comes from the
cleaner's last scan, and the time of the oldest superseded record is `unknown`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from diamant.broker.config.virtual_topic_table import COMPACT, described
from diamant.cleaner.on_demand.header_counts import SegmentCounts
from diamant.cleaner.rules.time_based_roll import oldest_append_ms
from diamant.duration import time_text
from diamant.storage.config_key import DescribedConfig
from diamant.storage.errors import StorageError
from diamant.storage.log.log import Log

if TYPE_CHECKING:
    from diamant.broker.node.node import Node
    from diamant.cleaner.on_demand.header_counts import CountedLogs
    from diamant.cleaner.service.metrics import PartitionStatus
    from diamant.cleaner.service.service import CleanerService

BUDGET_BYTES = 16 * 1024 * 1024
"""The maximum number of bytes that one request reads for all its topics."""
MAX_SEGMENTS = 2_000
MAX_NAMED = 5
"""The maximum number of partitions that a figure names."""

UNKNOWN = "unknown"


class TopicFigures:
    """The figures of topics within one request."""

    def __init__(self, node: Node, service: CleanerService, counts: CountedLogs) -> None:
        self._node = node
        self._service = service
        self._counts = counts
        self._now_ms = node.env.clock.now_ms()
        self._budget_bytes = BUDGET_BYTES
        self._status: Mapping[tuple[str, int], PartitionStatus] = {
            (one.topic, one.partition): one for one in service.status().partitions
        }

    async def describe(self, topic: str) -> list[DescribedConfig]:
        """Return the entries of one topic, or no entries if it does not exist or is not compacted."""
        await asyncio.sleep(0)  # a request may name thousands of topics
        found = self._node.topics.by_name.get(topic)
        logs = [] if found is None else [log for _, log in sorted(found.logs.items()) if log.config.is_compacted]
        if not logs:
            return []
        statuses = [one for log in logs if (one := self._status.get((topic, log.partition))) is not None]
        starts = self._first_dirty_offsets(logs)
        clean, dirty = await self._count(logs, starts)
        cleaned_ms = max((one.last_cleaned_ms for one in statuses if one.last_cleaned_ms is not None), default=None)
        values = {
            COMPACT: "",
            "diamant.dirty.ratio": f"{self._dirty_ratio(logs, statuses):.4g}",
            "diamant.dirty.records": UNKNOWN if dirty is None else str(dirty.records),
            "diamant.held.back": _held_back(logs),
            "diamant.last.cleaned": "never" if cleaned_ms is None else time_text(cleaned_ms),
            "diamant.live.records": UNKNOWN if clean is None else str(clean.values),
            "diamant.markers": UNKNOWN if clean is None or dirty is None else str(clean.markers + dirty.markers),
            "diamant.oldest.superseded": self._oldest(logs, starts),
            "diamant.removed.records": str(sum(one.data_removed for one in statuses)),
            "diamant.tombstones": UNKNOWN if clean is None else str(clean.tombstones),
            "diamant.uncleanable.partitions": _uncleanable(logs, self._status),
        }
        return [described(name, value) for name, value in values.items()]

    def _is_large(self, logs: Sequence[Log]) -> bool:
        return sum(len(log.segments) for log in logs) > MAX_SEGMENTS

    def _first_dirty_offsets(self, logs: Sequence[Log]) -> list[int]:
        checkpoints = (self._service.states.checkpoint((log.topic, log.partition)) for log in logs)
        return [max(log.log_start_offset, checkpoint or 0) for log, checkpoint in zip(logs, checkpoints, strict=True)]

    def _dirty_ratio(self, logs: Sequence[Log], statuses: Sequence[PartitionStatus]) -> float:
        if self._is_large(logs) or any(one.uncleanable_reason is not None for one in statuses):
            return max((one.dirty_ratio for one in statuses), default=0.0)
        now_ms = self._node.env.clock.now_ms()
        found = [self._service.picker.cleanable_range(log, now_ms) for log in logs]
        return max((one.dirty_ratio for one in found if one is not None), default=0.0)

    async def _count(
        self, logs: Sequence[Log], starts: Sequence[int]
    ) -> tuple[SegmentCounts | None, SegmentCounts | None]:
        """Return the counts of the clean and the dirty parts, or None for both if counting would take too long."""
        clean, dirty = SegmentCounts(), SegmentCounts()
        for log, start in zip(logs, starts, strict=True):
            counted = self._counts.of(log)
            unknown_bytes = counted.unknown_bytes(log.segments)
            if unknown_bytes > self._budget_bytes or log.is_exchanging:
                return None, None
            self._budget_bytes -= unknown_bytes
            below = [segment for segment in log.segments[:-1] if segment.base_offset < start]
            above = log.segments[len(below) :]
            found = await counted.count(below, max_bytes=BUDGET_BYTES)
            rest = await counted.count(above, max_bytes=BUDGET_BYTES)
            if found is None or rest is None:
                return None, None
            clean, dirty = clean + found, dirty + rest
        return clean, dirty

    def _oldest(self, logs: Sequence[Log], starts: Sequence[int]) -> str:
        if self._is_large(logs):
            return UNKNOWN
        times = []
        for log, start in zip(logs, starts, strict=True):
            if start < log.log_end_offset:
                try:
                    times.append(oldest_append_ms(log, start, self._now_ms, with_active=True))
                except (StorageError, OSError):
                    return UNKNOWN
        return min((time_text(time) for time in times if time is not None), default="none")


def _uncleanable(logs: Sequence[Log], statuses: Mapping[tuple[str, int], PartitionStatus]) -> str:
    """Return the number of uncleanable partitions and the first reasons, in which paths are reduced to file names."""
    named = []
    for log in logs:
        one = statuses.get((log.topic, log.partition))
        if one is None or one.trouble is None:
            continue
        own = f"{log.path}/"
        is_own = one.uncleanable_reason is None or one.uncleanable_reason.startswith(own)
        place = one.trouble.replace(own, "") if is_own else "see the broker's log"
        named.append(f"partition {log.partition}: {place}")
    return f"{len(named)}: {'; '.join(named[:MAX_NAMED])}" if named else "0"


def _held_back(logs: Sequence[Log]) -> str:
    held = [log for log in logs if log.last_stable_offset < log.log_end_offset]
    named = [f"partition {log.partition} from offset {log.last_stable_offset}" for log in held[:MAX_NAMED]]
    return ", ".join(named + ([f"{len(held) - MAX_NAMED} more"] if len(held) > MAX_NAMED else []))
