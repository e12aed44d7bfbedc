"""Derives the facts of a rewritten segment from the facts of its source, if only the records of one key were removed.

A round for an erasure then need not read a large output again to make its facts.

The conditions are: the source is alone in its group and loses only superseded records (`key_filter`); it has no horizons; none
of its batches remains without records; its filter contains exactly one key of the dirty range; and the output is smaller. Then
exactly the records of that key have been removed. Removing the key from the filter therefore has the same result, byte for byte,
as reading the output. If any condition is not met, the output is read.

Like an unchanged segment, a large source is not merged with small neighbours. If it were merged, it would receive the key's
tombstone. Then its filter would still contain the key, an erasure would have to search it again, and the expiry of the tombstone
would make a round rewrite it.

Memory: two copies of a filter, and 40 bytes for each of its buckets.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from diamant.cleaner.facts.key_filter import KeyFilter, is_large_for, load_filter
from diamant.cleaner.rules.grouping import group_segments
from diamant.storage import names

if TYPE_CHECKING:
    from diamant.cleaner.facts.segment_facts import SegmentFacts
    from diamant.cleaner.rules.plan import CleanPlan, SegmentPlan
    from diamant.cleaner.rules.result import OutputSegment
    from diamant.storage.env.env import Env


@dataclass(frozen=True, slots=True)
class Touched:
    """A segment from which a round only removes records that the dirty range supersedes."""

    facts: SegmentFacts
    key_hash: int
    """Hash of the only key of the dirty range that the segment's filter contains."""


def kept_apart(plan: CleanPlan, touched: Collection[int]) -> CleanPlan:
    """Return the plan with those of the `touched` segments (base offsets) added to `apart` that are large for their group."""
    large = {
        one.base_offset
        for group in group_segments(plan, plan.segments)
        for one in group
        if one.base_offset in touched and is_large_for(one, group)
    }
    return replace(plan, apart=plan.apart | large)


def only_known(key_filter: KeyFilter, hashes: array[int]) -> int | None:
    """Return the only one of `hashes` that a filter contains; None if it contains several. It must contain at least one."""
    while len(hashes) > 1:
        halves = hashes[: len(hashes) // 2], hashes[len(hashes) // 2 :]
        known = [half for half in halves if key_filter.may_have_any(half)]
        if len(known) != 1:
            return None
        hashes = known[0]
    return hashes[0]


def facts_without_key(
    env: Env, plan: CleanPlan, output: OutputSegment, touched: Touched
) -> tuple[SegmentFacts, KeyFilter] | None:
    """Return the facts and the filter of an output; None if the output has to be read to obtain them. Raises OSError."""
    facts = touched.facts
    if output.source_base_offsets != (facts.base_offset,) or not 0 < output.size < facts.size:
        return None
    source = next(one for one in plan.segments if one.base_offset == facts.base_offset)
    if facts.keys is None or facts.horizons or facts.emptied != () or _may_empty(plan, source):
        return None
    key_filter = load_filter(env, plan.directory, facts, plan.hash_key)
    without = None if key_filter is None else key_filter.without(touched.key_hash)
    if without is None:
        return None
    path = names.log_file(plan.directory, output.base_offset) + names.CLEANED_SUFFIX
    file = env.open(path, read_only=True)
    try:
        first_offset = int.from_bytes(file.pread(8, 0), "big")
    finally:
        file.close()
    found = replace(
        facts,
        size=output.size,
        modified_ms=env.mtime_ms(path),
        birth_ms=env.birth_ms(path),
        first_offset=first_offset,
        keys=replace(facts.keys, key_count=without.key_count),
    )
    return found, without


def _may_empty(plan: CleanPlan, segment: SegmentPlan) -> bool:
    """Return whether the round may have to keep a batch of a segment without records, because of its offset."""
    last = plan.header_end - 1
    kept = [last, *(one.last_data_offset for one in plan.active_producers.values() if one.last_data_offset is not None)]
    return any(segment.base_offset <= offset < segment.next_base_offset for offset in kept)
