"""The offsets that stay, found for all keys whose hashes fall into one partition, and handed to the rewrites.

A partition's tuples (`key_tuples`) make an `OffsetMap`, the local engine's own, which spills if need be:

    MAPPED   in the order of parts, so that the last record of a key wins; stays if it is the key's last
    ASKED    stays if its key is not in the map, or not with a later offset

Out of it come rows for the groups that are rewritten, `(group, (kind, place, bytes))`:

    KEPT     offsets that stay, uint32 and relative to their segment's base; place: that of the segment in the plan
    NOTED    the notes of a part, as they came; place: the part's index
    KEYS     how many keys the map has; to the first group

Memory of a partition: `map_bytes`, `spool_bytes` and 8 bytes for each offset that stays, twice while it is sorted; the rest is in
temporary files of the executor. Of a rewrite: 4 bytes for each record of the group that stays, and for each of its batches.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from diamant.cleaner.engines.offset_map import OffsetMap, open_spill_file
from diamant.cleaner.spark.clean.key_tuples import ASKED, MAPPED, NOTES
from diamant.cleaner.spark.clean.parts import segments_of
from diamant.cleaner.spark.clean.task_limits import TASK_LIMITS, TaskLimits
from diamant.cleaner.spark.environment.errors import SparkError
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
"""Target size of a partition: 48 MiB of tuples. More takes longer, no more memory."""
MAX_PARTITIONS = 8192
_MAX_RELATIVE = 2**32 - 1


def partitions_for(tuples: float, parallelism: int) -> int:
    """Return into how many partitions so many tuples are spread: a power of two."""
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
    """Reduce one partition's rows. `groups` tells the group of a segment by its place; what belongs to none is left out."""
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
            for _, words in spool.tuples(MAPPED):
                offsets.add(words.data, len(words))
            yield from _stay(plan, groups, offsets, spool)
            # Counted when everything is in the map for good.
            yield 0, (KEYS, 0, offsets.size.to_bytes(8, "little"))
        finally:
            offsets.close()


def _stay(plan: CleanPlan, groups: dict[int, int], offsets: OffsetMap, spool: _Spool) -> Iterator[SurvivorRow]:
    bases = [segment.base_offset for segment in plan.segments]
    room = np.empty(0, np.int64)
    asked: list[NDArray[np.int64]] = []
    for _, words in spool.tuples(ASKED):
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
        # A base is a lower bound of what is in the segment, the next one an upper bound.
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
    """Blocks of tuples as they come, in memory or in a file, to be read in the order of parts."""

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

    def tuples(self, kind: int) -> Iterator[tuple[int, NDArray[np.uint64]]]:
        """Yield `(part, tuples)`; later blocks of a part hold later offsets of the same keys, or other keys."""
        for part, _, position, size in sorted(self._blocks[kind]):
            words = np.empty((size // ENTRY_BYTES, 3), np.uint64)
            self._file.seek(position)
            words.data.cast("B")[:] = self._file.read(size)
            yield part, words


class SegmentSurvivors:
    """The survivors of one segment: `offset_map.LatestOffsets` for its rewrite. `relative`: uint32[n], ascending."""

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
    """All that the partitions have found of the segments of one group."""

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
        """Return what of a segment stays, and forget it."""
        found = self._kept.pop(place, [])
        relative = np.concatenate(found) if found else np.empty(0, np.uint32)
        relative.sort()
        return SegmentSurvivors(base_offset, relative)

    def take_notes(self, place: int) -> bytes:
        """Return the notes of a segment's batches, and forget them."""
        found = [self._notes.pop(part.index) for part in self._parts.get(place, []) if part.index in self._notes]
        return b"".join(found)
