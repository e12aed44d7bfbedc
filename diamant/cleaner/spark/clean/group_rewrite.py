"""The second pass: one group of segments rewritten by the compiled engine, which is told what stays instead of a map.

Everything else is the engine's own: batches, horizons, markers, indexes, where an output ends. So are the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from diamant.cleaner.engines.compiled_round import CompiledRound
from diamant.cleaner.rules.result import OutputSegment, never_done
from diamant.cleaner.spark.clean.key_tuples import is_plain_data
from diamant.cleaner.spark.clean.manifest import StagedOutput
from diamant.cleaner.spark.clean.transaction_cuts import ResumableTracker, TrackerState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diamant.cleaner.engines.plain_round import _Batch
    from diamant.cleaner.rules.plan import CleanPlan, SegmentPlan
    from diamant.cleaner.rules.result import Throttle
    from diamant.cleaner.segments.row_reader import Rows
    from diamant.cleaner.segments.segment_writer import SegmentWriter
    from diamant.cleaner.spark.clean.survivors import GroupSurvivors
    from diamant.cleaner.spark.clean.task_files import TaskFiles

_SUPERSEDED = 2**63 - 1
"""As a key's last offset it means that its records go."""


class GroupRewrite(CompiledRound):
    """The rewrite of one group. `survivors` is None if there is no dirty range: then no record is superseded."""

    def __init__(
        self,
        files: TaskFiles,
        plan: CleanPlan,
        *,
        map_end_offset: int,
        state: TrackerState,
        survivors: GroupSurvivors | None,
        throttle: Throttle,
    ) -> None:
        super().__init__(files, plan, never_done, throttle)  # type: ignore[arg-type]
        self.map_end_offset = map_end_offset
        self.tracker = ResumableTracker.resume(state)
        self._files = files
        self._survivors = survivors
        self._records: dict[int, int] = {}
        """Written to each output, by its base offset."""

    def run(self, group: Sequence[SegmentPlan], directory: str) -> tuple[StagedOutput, ...]:
        """Write the outputs; `directory` is what the manifest is to call their place."""
        return tuple(
            StagedOutput(one, directory, self._files.files_of(one.base_offset), self._records[one.base_offset])
            for one in self.rewrite_group(group)
        )

    def _rewrite_from(self, group: Sequence[SegmentPlan], start: int) -> tuple[OutputSegment, int]:
        before = self.stats.messages_written
        output, end = super()._rewrite_from(group, start)
        self._records[output.base_offset] = self.stats.messages_written - before
        return output, end

    def _rewrite_segment(self, segment: SegmentPlan, writer: SegmentWriter) -> None:
        if self._survivors is not None:
            place = self.index_of[segment.base_offset]
            self.latest = self._survivors.take(place, segment.base_offset)
            self._notes = _SegmentNotes(self._survivors.take_notes(place))  # type: ignore[assignment]
        super()._rewrite_segment(segment, writer)

    def _noted(self, chunk: Rows, first: int, end: int) -> slice | NDArray[np.bool_]:
        # As the first pass has it, which takes notes below the dirty range, too.
        assert (first, end) == (0, chunk.count)
        return is_plain_data(chunk)

    def _judge_unmapped_rows(self, rows: NDArray[np.int64], first: int, end: int) -> None:
        """Have nothing judged otherwise: it was asked about what the map leaves out."""

    def _last_offsets_in(self, batch: _Batch) -> dict[bytes, int]:
        if self._survivors is None or self.latest is None:
            return super()._last_offsets_in(batch)
        header = batch.header
        latest = set(self.latest.window(header.base_offset, header.last_offset).tolist())
        found: dict[bytes, int] = {}
        for record in batch.records():
            if record.key is None:
                continue
            # Earlier records of the key go, later ones stay: so the first that stays tells of all.
            before = found.get(record.key, _SUPERSEDED)
            found[record.key] = min(before, record.offset) if record.offset in latest else before
        return found


class _SegmentNotes:
    """Stands in for the engine's notes: those of one segment, handed out in order, 0 where there are none."""

    def __init__(self, notes: NDArray[np.uint32]) -> None:
        self._notes = notes
        self._taken = 0

    def take(self, count: int) -> NDArray[np.uint32]:
        found = np.zeros(count, np.uint32)
        part = self._notes[self._taken : self._taken + count]
        found[: len(part)] = part
        self._taken += count
        return found
