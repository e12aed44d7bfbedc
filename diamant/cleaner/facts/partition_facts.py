"""The facts of one log's closed segments, and the time of the next round to remove what expires in them (mode prompt).

A marker gets its horizon in the first round that finds no batch of its transaction. That is the round after the one that removed
the transaction's data, so a marker that has neither data nor a horizon makes a round due immediately.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from diamant.cleaner.facts.segment_facts import DATA, MARKER, OTHER, Horizon, SegmentFacts
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.tombstone_hold import TombstoneHold
from diamant.storage.log.log import Log
from diamant.storage.segments.segment import Segment

AT_ONCE_MS = 0
"""Time at which a round is due for a marker that has no horizon yet."""


class PartitionFacts:
    """The facts of one log's closed segments. Belongs to the log's owner.

    A segment that replaces another one is a new object, whose facts are unknown until they are added.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Segment, SegmentFacts]] = {}
        self._tried: frozenset[Horizon] = frozenset()

    def of(self, log: Log, end_offset: int) -> list[SegmentFacts]:
        """Return the known facts of the closed segments that end at or before `end_offset`, in order."""
        return [self._known[segment.base_offset][1] for segment in _closed(log, end_offset) if self._knows(segment)]

    def unknown(self, log: Log, end_offset: int) -> list[tuple[int, int]]:
        """Return base offset and size of each closed segment up to `end_offset` whose facts are unknown."""
        segments = list(_closed(log, end_offset))
        if len(self._known) > len(log.segments):
            bases = {segment.base_offset for segment in log.segments}
            self._known = {base: known for base, known in self._known.items() if base in bases}
        return [(segment.base_offset, segment.size) for segment in segments if not self._knows(segment)]

    def add(self, log: Log, facts: SegmentFacts) -> bool:
        """Add facts that were read; return False if their segment has been replaced or removed."""
        segment = log.segments[max(0, log.floor_segment(facts.base_offset))]
        times = log.env.mtime_ms(segment.path), log.env.birth_ms(segment.path)
        return times == (facts.modified_ms, facts.birth_ms) and self.add_swapped_in(log, facts) is not None

    def add_swapped_in(self, log: Log, facts: SegmentFacts) -> Segment | None:
        """Add the facts of an output that was swapped in; return its segment, or None if that is no longer in the log."""
        segment = log.segments[max(0, log.floor_segment(facts.base_offset))]
        if (segment.base_offset, segment.size) != (facts.base_offset, facts.size):
            return None
        self._known[facts.base_offset] = (segment, facts)
        return segment

    def next_horizon_ms(
        self, log: Log, end_offset: int, frozen_above: int | None = None, hold: TombstoneHold | None = None
    ) -> int | None:
        """Return the time, maybe in the past, at which a round for the clean section is due; None if nothing expires there.

        The clean section ends at `end_offset`. A horizon that had passed when the last round began does not make another round
        due. Nothing expires above `frozen_above` (see `quarantine`). Above the offset of a `hold`, tombstones expire later.
        """
        facts = self.of(log, end_offset)
        due = (horizon for horizon in self._due(facts, frozen_above) if horizon not in self._tried)
        return min((_due_ms(horizon, hold) for horizon in due), default=None)

    def note_round(self, log: Log, end_offset: int, now_ms: int, hold: TombstoneHold | None = None) -> None:
        """Record that a round over the clean section begins, so that horizons that have passed make no other round due."""
        facts = self.of(log, end_offset)
        self._tried = frozenset(horizon for horizon in self._due(facts, None) if _due_ms(horizon, hold) <= now_ms)

    def without_untouched(self, plan: CleanPlan) -> CleanPlan:
        """Return a plan without a dirty range, with the segments added to `untouched` in which nothing is due."""
        if plan.first_dirty_offset < plan.first_uncleanable_offset:
            raise ValueError(
                f"{plan.directory}: the plan has a dirty range, so its keys decide which segments are untouched"
            )
        untouched = [
            segment.base_offset
            for segment in plan.segments
            if (facts := self._of_plan(segment.base_offset, segment.size)) is not None
            and not facts.has_transactions
            and not facts.is_due(plan.now_ms, plan.horizons_frozen_above)
        ]
        return replace(plan, untouched=plan.untouched | frozenset(untouched))

    def _of_plan(self, base_offset: int, size: int) -> SegmentFacts | None:
        known = self._known.get(base_offset)
        return known[1] if known is not None and known[1].size == size else None

    def _knows(self, segment: Segment) -> bool:
        known = self._known.get(segment.base_offset)
        return known is not None and known[0] is segment

    def _due(self, facts: Iterable[SegmentFacts], frozen_above: int | None) -> Iterator[Horizon]:
        facts = list(facts)
        for one in facts:
            yield from (horizon for horizon in one.horizons if frozen_above is None or horizon.offset <= frozen_above)
        if frozen_above is None:
            # Otherwise, an unreadable segment may contain batches of any transaction.
            yield from (Horizon(AT_ONCE_MS, offset) for offset in markers_without_data(facts))


def markers_without_data(facts: Iterable[SegmentFacts]) -> list[int]:
    """Return the offsets of markers without a horizon whose transactions have no batch left.

    `facts`: the facts of segments, in order. Ignores the first segment with too many steps, and all segments after it.
    """
    found = []
    with_data: set[int] = set()
    for one in facts:
        if one.steps is None:
            break
        for kind, producer_id, offset in one.steps:
            if kind == DATA:
                with_data.add(producer_id)
            elif kind == OTHER:
                continue
            elif producer_id in with_data:
                with_data.remove(producer_id)
            elif kind == MARKER:
                found.append(offset)
    return found


def _due_ms(horizon: Horizon, hold: TombstoneHold | None) -> int:
    return horizon.horizon_ms if hold is None else hold.due_ms(*horizon)


def horizon_round_end(log: Log, first_dirty_offset: int) -> int:
    """Return the end of a round for horizons only: the end of the clean section, rounded down to a segment's base offset.

    Because it is rounded down, this end must not become the log's checkpoint.
    """
    index = log.floor_segment(min(first_dirty_offset, log.active.base_offset))
    return log.segments[max(0, index)].base_offset


def _closed(log: Log, end_offset: int) -> Iterator[Segment]:
    for segment, following in zip(log.segments, log.segments[1:], strict=False):
        if following.base_offset > end_offset:
            return
        yield segment
