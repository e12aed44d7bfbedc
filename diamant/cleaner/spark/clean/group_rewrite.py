"""The second pass: the compiled engine's rewriter rewrites one group of segments, with kept offsets from the shuffle.

The rewriter itself handles batches, delete horizons, markers, indexes and the division into outputs, so the outputs have the same
bytes as those of a local round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.cleaner.engines.batch_notes import BatchNotes
from diamant.cleaner.engines.compiled_map import CompiledMap
from diamant.cleaner.engines.compiled_rewriter import CompiledRewriter
from diamant.cleaner.engines.group_rewrite import rewrite_group
from diamant.cleaner.engines.offset_map import OffsetMap
from diamant.cleaner.engines.survivors import MapSurvivors
from diamant.cleaner.segments.key_hasher import ALWAYS, NEVER
from diamant.cleaner.segments.row_records import RowRecords
from diamant.cleaner.spark.clean.manifest import StagedOutput
from diamant.cleaner.spark.clean.transaction_cuts import ResumableTracker, TrackerState

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator, Mapping, Sequence

    from diamant.cleaner.engines.survivors import Survivors
    from diamant.cleaner.engines.work import RoundWork
    from diamant.cleaner.rules.plan import CleanPlan, SegmentPlan
    from diamant.cleaner.segments.chunk_batch import ChunkBatch
    from diamant.cleaner.segments.row_reader import Rows
    from diamant.cleaner.spark.clean.survivors import GroupSurvivors, SegmentSurvivors
    from diamant.cleaner.spark.clean.task_files import TaskFiles


def write_group(
    work: RoundWork,
    files: TaskFiles,
    group: Sequence[SegmentPlan],
    directory: str,
    *,
    state: TrackerState,
    survivors: GroupSurvivors | None,
    map_end_offset: int,
) -> tuple[StagedOutput, ...]:
    """Write the outputs of a group into `files`; `directory` is the name of their directory in the manifest.

    `state` is the tracker's state before the group. `survivors` is None if there is no dirty range, so no record is superseded.
    """
    records = RowRecords(work.limits)
    told: Survivors
    if survivors is None:
        told = MapSurvivors(work.plan, CompiledMap(work, records))
    else:
        told = ShuffledSurvivors(work.plan, survivors, map_end_offset)
    rewriter = CompiledRewriter(work, records, told, ResumableTracker.resume(state))
    return tuple(staged_outputs(work, files, rewriter, group, directory))


def staged_outputs(
    work: RoundWork, files: TaskFiles, rewriter: CompiledRewriter, group: Sequence[SegmentPlan], directory: str
) -> Iterator[StagedOutput]:
    """Write the outputs of a group into `files`, and yield each output when it is complete."""
    written = work.stats.messages_written
    for output in rewrite_group(work, rewriter, group):
        count = work.stats.messages_written - written
        written += count
        yield StagedOutput(output, directory, files.files_of(output.base_offset), count)


class ShuffledSurvivors:
    """`Survivors` from the shuffle. Kept records are identified by offset alone, and their offsets loaded segment by segment."""

    def __init__(self, plan: CleanPlan, group: GroupSurvivors, end_offset: int) -> None:
        self.end_offset = end_offset
        """Last offset that the map covers."""
        self.keys = OffsetMap(plan.hash_key, memory_bytes=0)
        """Always empty, because `latest` is used instead."""
        self.latest: SegmentSurvivors | None = None
        """The kept offsets of the current segment."""
        self._group = group
        self._place_of = {segment.base_offset: place for place, segment in enumerate(plan.segments)}
        self._notes = BatchNotes()

    def begin(self, segment: SegmentPlan, counts: array[int]) -> Iterator[tuple[int, int]]:
        """Load the kept offsets of a segment, and yield one range: the whole segment."""
        place = self._place_of[segment.base_offset]
        self.latest = self._group.take(place, segment.base_offset)
        self._notes = BatchNotes(self._group.take_notes(place))
        yield 0, segment.size

    def ranges(self, chunk: Rows) -> Iterator[tuple[int, int]]:
        """Set the notes of all rows, and yield one range with all of them. Batches below the dirty range have notes, too."""
        self._notes.give(chunk, 0, chunk.count, ALWAYS)
        yield 0, chunk.count

    def last_offsets_in(self, batch: ChunkBatch) -> Mapping[bytes, int]:
        """Return the first kept offset of each key in the batch; `NEVER` if none of the key's records is kept."""
        assert self.latest is not None
        header = batch.header
        latest = set(self.latest.window(header.base_offset, header.last_offset).tolist())
        found: dict[bytes, int] = {}
        for record in batch.records():
            if record.key is None:
                continue
            # Of a key's records, those before its first kept one are removed and all later ones kept: one offset suffices.
            before = found.get(record.key, NEVER)
            found[record.key] = min(before, record.offset) if record.offset in latest else before
        return found
