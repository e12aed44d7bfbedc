"""A redaction of one partition as a plan, and the runner that carries it out.

It writes `.cleaned` files, to be swapped in as those of a round are. Segments of which nothing goes are not in the plan, and stay
bit for bit. Of the others a batch that loses nothing is copied as it is; one that loses some records is rebuilt as
compaction would; one that loses all becomes a header. So base and last offsets, leader epochs, producers' sequences, the
markers of transactions and the index of aborted ones stay what they were; offset and time indexes are made for what is left.
"""

from __future__ import annotations

from dataclasses import dataclass

from diamant.cleaner.redaction.offset_set import Offsets
from diamant.cleaner.rules.result import OutputSegment
from diamant.cleaner.segments.record_removal import write_without
from diamant.protocol.batches.header import BatchHeader, Record
from diamant.storage.env.env import Env
from diamant.storage.segments.txn_index import AbortedTxn


@dataclass(frozen=True, slots=True)
class SegmentRedaction:
    """One closed segment, and the offsets that are to go from it."""

    base_offset: int
    size: int
    aborted: tuple[AbortedTxn, ...]
    """Its index of aborted transactions."""
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class RedactionPlan:
    """The records to rewrite in one partition, ascending: older records go before newer ones that supersede them."""

    directory: str
    segments: tuple[SegmentRedaction, ...]
    index_interval_bytes: int
    segment_index_bytes: int


def write_redacted(env: Env, plan: RedactionPlan, segment: SegmentRedaction) -> OutputSegment | None:
    """Write the `.cleaned` files of one of the plan's segments, durably; None if nothing goes. Blocks; any thread.

    The same plan gives the same bytes: nothing else is asked. CorruptLog, OSError; there are no files then.
    """
    cut = _Cut(segment.offsets)
    return write_without(
        env,
        plan.directory,
        segment.base_offset,
        segment.size,
        segment.aborted,
        cut.goes,
        touches=cut.touches,
        index_interval_bytes=plan.index_interval_bytes,
        segment_index_bytes=plan.segment_index_bytes,
    )


class _Cut:
    """Judges whether a record goes, asked batch by batch."""

    __slots__ = ("_here", "_offsets")

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets
        self._here: frozenset[int] = frozenset()

    def touches(self, header: BatchHeader) -> bool:
        self._here = self._offsets.between(header.base_offset, header.last_offset)
        return bool(self._here)

    def goes(self, record: Record) -> bool:
        return record.offset in self._here
