"""The age of superseded values and tombstones per topic, compared with `diamant.erasure.deadline.ms`.

The ages are computed from the cleaner's state; records are read only when the deadline is near:

* the oldest superseded value      Its age counts from the record that superseded it. No round has cleaned that record, or the
                                   value would be gone; so the age is at most that of the oldest record that no round has
                                   cleaned. There may be no superseded value, or only a younger one, so from three quarters
                                   of the deadline on, a check decides (`node/superseded_checks.py`). If the check would read
                                   too much, the partition is listed in `not_told`, and does not make its topic late.
* the oldest tombstone             In mode prompt, in the clean part: its age counts from the first round that kept it. This is
                                   derived from the earliest delete horizon and the current `delete.retention.ms`; the 64
                                   earliest horizons of each segment are known. In the dirty part, a tombstone counts like
                                   any other record.

So no age is underestimated. Consumers behind a tombstone are groups whose committed offset has not passed the end of the last
segment known to have a tombstone; they may have passed the tombstone itself. While groups are being loaded, or if some cannot
be loaded, the number of such groups is unknown and the metric is NaN.

The deadline applies only to users' topics. Internal topics are listed, but never count as late.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from diamant.broker.node.superseded_checks import CheckResult
from diamant.broker.topics.internal_names import INTERNAL_TOPICS
from diamant.storage.errors import StorageError

if TYPE_CHECKING:
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.node.cleaner import NodeCleaner
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.node import Node
    from diamant.cleaner.service.service import CleanerService
    from diamant.storage.log.log import Log

SEGMENTS_PER_TURN = 256
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class TopicDeadline:
    """The state of one compacted topic with regard to the deadline."""

    topic: str
    superseded_age_ms: int | None
    """The maximum age of the oldest superseded value; None: no record is dirty."""
    tombstone_age_ms: int | None
    """The age of the oldest tombstone in the clean part; None: none is known."""
    left_ms: int
    """The time until the deadline; negative if it has passed."""
    is_late: bool
    not_told: tuple[int, ...] = ()
    """Partitions with dirty records near the deadline that were not checked for superseded values."""
    consumers_behind: tuple[tuple[int, int | None], ...] = ()
    """For each partition with tombstones: (partition, number of groups that have not committed past them; None: unknown)."""

    def to_fields(self) -> dict[str, object]:
        """Return the fields of the JSON object."""
        return asdict(self)


async def take_deadlines(
    node: Node, cleaning: NodeCleaner, groups: Lazy[GroupCoordinator] | None = None
) -> list[TopicDeadline]:
    """Return the deadlines of all compacted topics, by name; with consumers only if `groups` is given. Yields to other tasks."""
    if not cleaning.is_loaded:
        return []
    service = await cleaning.service()
    now_ms = node.env.clock.now_ms()
    deadline_ms = node.config.diamant_erasure_deadline_ms
    committed, is_known = ({}, True) if groups is None else await _committed(node, groups)
    looks = await _looks(node, cleaning, service, now_ms, deadline_ms * 3 // 4)
    found = []
    seen = 0
    for name, topic in sorted(node.topics.by_name.items()):
        logs = [log for _, log in sorted(topic.logs.items()) if log.config.is_compacted and not log.is_deleted]
        if not logs:
            continue
        dirty: list[int] = []
        not_told: dict[int, int] = {}
        stamped: list[int] = []
        behind = []
        for log in logs:
            seen += len(log.segments)
            if seen >= SEGMENTS_PER_TURN:
                seen = 0
                await asyncio.sleep(0)
            first_dirty = service.states.first_dirty(log)
            if log.log_end_offset > first_dirty:
                told = looks[log] if log in looks else _oldest(log, first_dirty, now_ms)
                if not told.is_certain:
                    not_told[log.partition] = now_ms - (told.oldest_ms or now_ms)
                elif told.oldest_ms is not None:
                    dirty.append(told.oldest_ms)
            horizons, end = _tombstones(service, log, first_dirty)
            if end is not None:
                stamped.append(min(horizons) - log.config.delete_retention_ms)
                offsets = committed.get((name, log.partition), ())
                behind.append((log.partition, sum(offset < end for offset in offsets) if is_known else None))
        known_ms = max((now_ms - one for one in dirty), default=None)
        tombstone_ms = max((now_ms - one for one in stamped), default=None)
        left_ms = deadline_ms - max(known_ms or 0, tombstone_ms or 0)
        superseded_ms = max([*not_told.values(), *([] if known_ms is None else [known_ms])], default=None)
        is_late = left_ms < 0 and name not in INTERNAL_TOPICS
        found.append(TopicDeadline(name, superseded_ms, tombstone_ms, left_ms, is_late, tuple(not_told), tuple(behind)))
    return found


async def _looks(
    node: Node, cleaning: NodeCleaner, service: CleanerService, now_ms: int, patience_ms: int
) -> dict[Log, CheckResult]:
    """Check the users' logs whose dirty part may be near the deadline, and return the results."""
    near = {}
    seen = 0
    for name, topic in sorted(node.topics.by_name.items()):
        for log in list(topic.logs.values()):
            seen += len(log.segments)
            if seen >= SEGMENTS_PER_TURN:
                seen = 0
                await asyncio.sleep(0)
            first_dirty = service.states.first_dirty(log)
            if (
                name in INTERNAL_TOPICS
                or not log.config.is_compacted
                or log.is_deleted
                or log.log_end_offset <= first_dirty
            ):
                continue
            oldest_ms = _oldest(log, first_dirty, now_ms).oldest_ms
            if oldest_ms is not None and now_ms - oldest_ms > patience_ms:
                near[log] = (first_dirty, oldest_ms)
    return await cleaning.superseded.check(service, near, now_ms, patience_ms) if near else {}


def _oldest(log: Log, first_dirty: int, now_ms: int) -> CheckResult:
    """Return when the oldest record that may be dirty was appended; uncertain if its file is unreadable or being replaced."""
    from diamant.cleaner.rules.time_based_roll import oldest_append_ms

    try:
        return CheckResult(oldest_append_ms(log, first_dirty, now_ms, with_active=True), True)
    except (StorageError, OSError):
        return CheckResult(None, False)


def _tombstones(service: CleanerService, log: Log, first_dirty: int) -> tuple[list[int], int | None]:
    """Return the known delete horizons in the clean part, and the end of the last segment that has one; None if none has."""
    horizons: list[int] = []
    end: int | None = None
    bases = [segment.base_offset for segment in log.segments]
    for facts in service.facts(log, first_dirty):
        markers = {step.offset for step in facts.steps or ()}
        own = [horizon.horizon_ms for horizon in facts.horizons if horizon.offset not in markers]
        if own:
            horizons += own
            index = bases.index(facts.base_offset)
            end = bases[index + 1]
    return horizons, end


async def _committed(node: Node, groups: Lazy[GroupCoordinator]) -> tuple[dict[tuple[str, int], list[int]], bool]:
    """Return the committed offsets of all groups, by topic and partition, and whether all are loaded. Does not wait for that."""
    if groups.made is None:
        return {}, True
    from diamant.broker.groups.coordinator.committed_offsets import all_offsets, groups_not_known

    is_known = not await groups_not_known(groups, node.topics, timeout_s=0)
    return await all_offsets(groups), is_known
