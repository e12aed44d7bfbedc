"""Finds the offsets to keep, for all keys of one hash partition, and passes them on to the rewrites.

The tuples of a partition (`key_tuples`) are processed with the `OffsetMap` of the local engines, which spills if necessary:

    MAPPED   added to the map in the order of the parts, so that only the last record of each key is kept
    ASKED    kept if the key is not in the map, or has no later offset there

The output consists of rows for the groups to rewrite, `(group, (kind, place, bytes))`:

    KEPT     kept offsets, uint32 relative to their segment's base; place: the segment's index in the plan
    NOTED    the notes of a part, unchanged; place: the part's index
    KEYS     the number of keys in the map; sent to the first group

Memory of a partition: `map_bytes`, `spool_bytes` and 8 bytes for each kept offset, or 16 while they are sorted; the rest is in
temporary files of the executor. Memory of a rewrite: 4 bytes for each kept record and each batch of the group.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from diamant.cleaner.engines.offset_map import OffsetMap, open_spill_file
from diamant.cleaner.spark.clean.key_tuples import ASKED, MAPPED, NOTES
from diamant.cleaner.spark.clean.parts import segments_of
from diamant.cleaner.spark.clean.task_limits import TASK_LIMITS, TaskLimits
from diamant.cleaner.spark.environment.spark_errors import SparkError
from diamant.kernels import offset_map
from diamant.kernels.constants.tuples import ENTRY_BYTES
from diamant.storage.env.env import RealEnv

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diamant.cleaner.rules.plan import CleanPlan
    from diamant.cleaner.spark.clean.parts import Part

KEPT, NOTED, KEYS = range(3)

SurvivorRow: TypeAlias = tuple[int, tuple[int, int, bytes]]

TUPLES_PER_PARTITION = 2 * 1024 * 1024
"""Target size of a partition: 48 MiB of tuples. Larger partitions take longer, but not more memory."""
MAX_PARTITIONS = 8192
_MAX_RELATIVE = 2**32 - 1


def partitions_for(tuples: float, parallelism: int) -> int:
    """Return the number of partitions for `tuples` tuples: a power of two."""
    wanted = max(tuples / TUPLES_PER_PARTITION, min(parallelism, tuples / 50_000), 1)
    partitions = 1
    while partitions < min(wanted, MAX_PARTITIONS):
        partitions *= 2
    return partitions


def survivor_rows(
    plan: CleanPlan,
    parts: tuple[Part, ...],
    groups: dict[int, int],
    rows: Iterable[tuple[int, tuple[int, int, int, Any]]],
    limits: TaskLimits = TASK_LIMITS,
) -> Iterator[SurvivorRow]:
    """Reduce one partition's rows. `groups` maps a segment's index to its group; segments without a group are left out."""
    with tempfile.TemporaryDirectory(prefix="diamant-survivors-") as directory, _Spool(limits.spool_bytes) as spool:
        for _, (kind, part, flush, content) in rows:
            if kind != NOTES:
                spool.add(kind, part, flush, content)
            elif parts[part].segment in groups:
                yield groups[parts[part].segment], (NOTED, part, content)
        offsets = OffsetMap(
            plan.hash_key,
            memory_bytes=limits.map_bytes,
            spill=lambda: open_spill_file(RealEnv(), directory),
            least_slots=limits.engine.table_slots,
        )
        try:
            for tuples, count in spool.runs(MAPPED):
                for number, words in enumerate(tuples):
                    if not number and not offsets.is_spilled:
                        # A run is in hash order, so the table must not grow while the run is added (`make_room_for`).
                        offsets.make_room_for(words.data.cast("B"), count)
                    offsets.add(words.data, len(words))
            yield from _stay(plan, groups, offsets, spool)
            # The keys are counted once the map is complete.
            yield 0, (KEYS, 0, offsets.size.to_bytes(8, "little"))
        finally:
            offsets.close()


def _stay(plan: CleanPlan, groups: dict[int, int], offsets: OffsetMap, spool: _Spool) -> Iterator[SurvivorRow]:
    bases = [segment.base_offset for segment in plan.segments]
    room = np.empty(0, np.int64)
    asked: list[NDArray[np.int64]] = []
    for words in chain.from_iterable(tuples for tuples, _ in spool.runs(ASKED)):
        if offsets.is_spilled:
            offsets.add_older(words.data, len(words))
            continue
        if len(room) < len(words):
            room = np.empty(len(words), np.int64)
        asked.append(room[: offset_map.take_missing(offsets.table, words.data, len(words), room.data)].copy())
    latest = offsets.latest()
    others = np.concatenate(asked) if asked else np.empty(0, np.int64)
    asked.clear()
    others.sort()
    for place, segment in enumerate(plan.segments):
        if place not in groups:
            continue
        # A segment's offsets lie between its base and the next segment's base.
        end = bases[place + 1] if place + 1 < len(bases) else segment.next_base_offset
        window = np.asarray(latest.window(segment.base_offset, end - 1), np.int64)
        for kept in (window, others):
            found = kept[np.searchsorted(kept, segment.base_offset) : np.searchsorted(kept, end)]
            if len(found):
                yield groups[place], (KEPT, place, _relative(found, segment.base_offset))


def _relative(offsets: NDArray[np.int64], base_offset: int) -> bytes:
    if int(offsets[-1]) - base_offset > _MAX_RELATIVE:
        raise SparkError(
            f"offset {int(offsets[-1])} is more than 32 bits above its segment's base {base_offset}: clean this partition "
            "with another engine"
        )
    return (offsets - base_offset).astype(np.uint32).tobytes()


class _Spool:
    """Stores blocks of tuples in the order of arrival, in memory or in a file; reads them in the order of parts."""

    def __init__(self, memory_bytes: int) -> None:
        self._file = tempfile.SpooledTemporaryFile(memory_bytes, prefix="diamant-tuples-")  # noqa: SIM115
        self._blocks: dict[int, list[tuple[int, int, int, int]]] = {MAPPED: [], ASKED: []}
        self._end = 0

    def __enter__(self) -> _Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, kind: int, part: int, flush: int, block: bytes) -> None:
        self._file.write(block)
        self._blocks[kind].append((part, flush, self._end, len(block)))
        self._end += len(block)

    def runs(self, kind: int) -> Iterator[tuple[Iterator[NDArray[np.uint64]], int]]:
        """Yield `(tuples, number of tuples)` for each flush of each part. MAPPED tuples are in hash order, each key once."""
        for _, blocks in groupby(sorted(self._blocks[kind]), key=lambda block: block[:2]):
            places = [(position, size) for _, _, position, size in blocks]
            yield self._read(places), sum(size for _, size in places) // ENTRY_BYTES

    def _read(self, places: list[tuple[int, int]]) -> Iterator[NDArray[np.uint64]]:
        for position, size in places:
            words = np.empty((size // ENTRY_BYTES, 3), np.uint64)
            self._file.seek(position)
            words.data.cast("B")[:] = self._file.read(size)
            yield words


class SegmentSurvivors:
    """The kept offsets of one segment, in the form of `offset_map.LatestOffsets`. `relative`: uint32[n], ascending."""

    def __init__(self, base_offset: int, relative: NDArray[np.uint32]) -> None:
        self._base_offset = base_offset
        self._relative = relative

    def window(self, first_offset: int, last_offset: int) -> memoryview[int]:
        """Return the kept offsets from `first_offset` to `last_offset`, ascending."""
        first = self._place(first_offset - self._base_offset)
        end = self._place(last_offset - self._base_offset + 1)
        return (self._relative[first:end].astype(np.int64) + self._base_offset).data

    def _place(self, relative: int) -> int:
        if relative > _MAX_RELATIVE:
            return len(self._relative)
        return int(np.searchsorted(self._relative, np.uint32(max(0, relative))))


class GroupSurvivors:
    """The kept offsets and notes from all partitions for the segments of one group."""

    def __init__(self, parts: tuple[Part, ...], rows: Iterable[SurvivorRow]) -> None:
        self.keys = 0
        self._parts = segments_of(parts)
        self._kept: dict[int, list[NDArray[np.uint32]]] = {}
        self._notes: dict[int, bytes] = {}
        for _, (kind, place, content) in rows:
            if kind == KEPT:
                self._kept.setdefault(place, []).append(np.frombuffer(content, np.uint32))
            elif kind == NOTED:
                self._notes[place] = content
            else:
                self.keys += int.from_bytes(content, "little")

    def take(self, place: int, base_offset: int) -> SegmentSurvivors:
        """Remove and return the kept offsets of a segment."""
        found = self._kept.pop(place, [])
        relative = np.concatenate(found) if found else np.empty(0, np.uint32)
        relative.sort()
        return SegmentSurvivors(base_offset, relative)

    def take_notes(self, place: int) -> bytes:
        """Remove and return the notes of a segment's batches."""
        found = [self._notes.pop(part.index) for part in self._parts.get(place, []) if part.index in self._notes]
        return b"".join(found)
