"""Divides the segments of a plan into parts, which are the units of the first pass: a task reads the keys of one part.

A part is a whole segment, or adjacent batches of a large one. Segments larger than 1.5 times `PART_BYTES` are cut at entries of
their offset index. The segment in which the dirty range begins is also cut at the batch where the local engines begin their map.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from diamant.cleaner.rules.plan import INDEX_ENTRY_BYTES, CleanPlan, SegmentPlan
from diamant.protocol.batches.header import HEADER_SIZE, parse_header
from diamant.protocol.errors import CorruptBatch
from diamant.storage import names
from diamant.storage.env.env import Env, File
from diamant.storage.errors import CorruptLog
from diamant.storage.segments.segment import scan_headers

PART_BYTES = 256 * 1024 * 1024
SAMPLES = 16
SAMPLE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Part:
    """Adjacent whole batches of one segment."""

    index: int
    """Index among all parts, in offset order."""
    segment: int
    """Index of its segment in the plan."""
    position: int
    """Start of the first batch, in bytes."""
    end: int
    is_dirty: bool
    """True if its keys are added to the map; those of other parts are only looked up."""


def cut(env: Env, plan: CleanPlan, dirty_position: int, part_bytes: int = PART_BYTES) -> tuple[Part, ...]:
    """Return the parts of a plan that must be read, in offset order. Reads offset indexes.

    `dirty_position` is the byte position in the first dirty segment at which the map begins.
    """
    parts: list[Part] = []
    first = plan.first_dirty_segment if plan.has_dirty_range else len(plan.segments)
    for place, segment in enumerate(plan.segments):
        if segment.base_offset in plan.quarantined or segment.base_offset in plan.untouched:
            continue
        cuts = {0, segment.size, *_cuts(env, plan, segment, part_bytes)}
        if place == first:
            cuts.add(min(dirty_position, segment.size))
        for position, end in pairwise(sorted(cuts)):
            is_dirty = place > first or (place == first and position >= dirty_position)
            parts.append(Part(len(parts), place, position, end, is_dirty))
    return tuple(parts)


def _cuts(env: Env, plan: CleanPlan, segment: SegmentPlan, part_bytes: int) -> Iterator[int]:
    """Yield positions at which batches begin, about `part_bytes` apart."""
    if segment.size <= part_bytes * 3 // 2:
        return
    try:
        index = env.read_bytes(names.index_file(plan.directory, segment.base_offset))
    except FileNotFoundError:
        return
    file = env.open(names.log_file(plan.directory, segment.base_offset), read_only=True)
    try:
        due = part_bytes
        for at in range(0, len(index) - INDEX_ENTRY_BYTES + 1, INDEX_ENTRY_BYTES):
            relative = int.from_bytes(index[at : at + 4], "big")
            position = int.from_bytes(index[at + 4 : at + 8], "big")
            if due <= position < segment.size and _is_batch(file, position, segment.base_offset + relative):
                yield position
                due = position + part_bytes
    finally:
        file.close()


def _is_batch(file: File, position: int, last_offset: int) -> bool:
    """Return whether a batch with `last_offset` begins at `position`. False if the index is wrong or the batch format is old."""
    try:
        return parse_header(file.pread(HEADER_SIZE, position)).last_offset == last_offset
    except CorruptBatch:
        return False


def records_per_byte(env: Env, plan: CleanPlan) -> float:
    """Estimate the number of records per byte of the log, from the first batches of some segments."""
    segments = [one for one in plan.segments if one.size and one.base_offset not in plan.quarantined]
    step = max(1, len(segments) // SAMPLES)
    size = records = 0
    for segment in segments[::step]:
        file = env.open(names.log_file(plan.directory, segment.base_offset), read_only=True)
        try:
            for position, header in scan_headers(file, 0, segment.size):
                size += header.size
                records += max(0, header.record_count)
                if position >= SAMPLE_BYTES:
                    break
        except CorruptLog:
            continue  # the task that reads the segment reports the damage
        finally:
            file.close()
    return records / size if size else 0.0


def segments_of(parts: Sequence[Part]) -> dict[int, list[Part]]:
    """Return the parts of each segment, by its index in the plan."""
    found: dict[int, list[Part]] = {}
    for part in parts:
        found.setdefault(part.segment, []).append(part)
    return found
