"""The plan of a redaction of one partition, and the code that carries it out.

The output is `.cleaned` files, which are swapped in like those of a cleaning round. Segments with nothing to change are not in
the plan, and are left as they are. In the others, a batch in which nothing changes is copied as it is; a batch in which some
records are removed or changed is rebuilt as compaction would rebuild it; and a batch that loses all its records is reduced to a
header. So base and last offsets, leader epochs, producers' sequence numbers, transaction markers and the index of aborted
transactions are unchanged. Offset and time indexes are rebuilt for the remaining records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from diamant.cleaner.redaction.json_path import YES
from diamant.cleaner.redaction.offset_set import Offsets
from diamant.cleaner.redaction.where import ChangedRecord
from diamant.cleaner.rules.result import OutputSegment
from diamant.cleaner.segments.record_changes import write_changed
from diamant.protocol.batches.header import BatchHeader, Record
from diamant.storage.env.env import Env
from diamant.storage.segments.txn_index import AbortedTxn


@dataclass(frozen=True, slots=True)
class SegmentRedaction:
    """One closed segment, and the offsets of the records to remove or change in it."""

    base_offset: int
    size: int
    aborted: tuple[AbortedTxn, ...]
    """The segment's index of aborted transactions."""
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class RedactionPlan:
    """The segments to rewrite in one partition. Ascending, so that older records are removed before those that supersede them."""

    directory: str
    segments: tuple[SegmentRedaction, ...]
    index_interval_bytes: int
    segment_index_bytes: int
    examine: Callable[[Record], tuple[int, ChangedRecord | None]] = lambda _record: (YES, None)
    """Returns the verdict on the record at one of the offsets, and its change; None instead of a change removes the record."""


def write_redacted(env: Env, plan: RedactionPlan, segment: SegmentRedaction) -> OutputSegment | None:
    """Write the `.cleaned` files of one segment durably; return None if nothing changes. Blocking; callable from any thread.

    Equal plans give equal bytes, because nothing else is consulted. Leaves no files behind if it raises CorruptLog or OSError.
    """
    cut = _Cut(segment.offsets, plan.examine)
    return write_changed(
        env,
        plan.directory,
        segment.base_offset,
        segment.size,
        segment.aborted,
        cut.changed,
        touches=cut.touches,
        index_interval_bytes=plan.index_interval_bytes,
        segment_index_bytes=plan.segment_index_bytes,
    )


class _Cut:
    """Decides batch by batch which records are removed or changed."""

    __slots__ = ("_examine", "_here", "_offsets")

    def __init__(self, offsets: Offsets, examine: Callable[[Record], tuple[int, ChangedRecord | None]]) -> None:
        self._offsets = offsets
        self._examine = examine
        self._here: frozenset[int] = frozenset()

    def touches(self, header: BatchHeader) -> bool:
        self._here = self._offsets.between(header.base_offset, header.last_offset)
        return bool(self._here)

    def changed(self, record: Record) -> Record | None:
        if record.offset not in self._here:
            return record
        _, changed = self._examine(record)
        return None if changed is None else changed.record
