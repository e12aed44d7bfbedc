"""The plain engine of the cleaner: a round in ordinary Python, with an exact dictionary of keys.

The broker uses it for small plans. It needs no kernels and no second process, and it is the reference for tests of the
other engines. Plain batches (`plain_batches`), nearly all that clients write, are mapped and judged in runs, and decompressed
only once. All other batches, damaged ones included, are processed record by record (`batch_rewrite`), which reports errors.

Memory: one chunk of the current segment (`io_buffer_bytes`, or one larger batch), one decompressed batch (at most
`compression.MAX_BATCH_BYTES`), the chunks kept from the first pass (`parsed_chunks`), the output's buffers, and the keys of
the dirty range. Mode kafka limits the number of keys to `map_max_entries`. Mode prompt does not limit it, so large plans must use
another engine.
"""

from __future__ import annotations

from functools import partial
from itertools import repeat
from operator import ge
from typing import TYPE_CHECKING

from diamant.cleaner.engines.batch_rewrite import BatchRewriter
from diamant.cleaner.engines.parsed_chunks import ParsedChunk, ParsedChunks
from diamant.cleaner.engines.plain_batches import TOMBSTONES, TRANSACTIONAL, PlainRun, rebuilt
from diamant.cleaner.engines.round import Engine, Round
from diamant.cleaner.engines.work import RoundWork
from diamant.cleaner.rules import record_fate
from diamant.cleaner.rules.record_kinds import SUPERSEDED
from diamant.cleaner.rules.transaction_tracker import TransactionTracker
from diamant.cleaner.segments.segment_writer import SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diamant.cleaner.rules.plan import SegmentPlan
    from diamant.cleaner.segments.chunk_batch import ChunkBatch


class PlainMap:
    """A `KeyMap` that uses a dictionary."""

    def __init__(self, work: RoundWork, chunks: ParsedChunks) -> None:
        self.last_offsets: dict[bytes, int] = {}
        """Maps each key to the offset of its last record in the dirty range."""
        self.end_offset = work.plan.first_dirty_offset - 1
        """Last offset that the map covers."""
        self._work = work
        self._chunks = chunks

    @property
    def size(self) -> int:
        """Number of keys."""
        return len(self.last_offsets)

    def last_offsets_in(self, batch: ChunkBatch) -> Mapping[bytes, int]:
        """Return the last offsets of all keys; `batch` is ignored."""
        return self.last_offsets

    def add_segment(self, segment: SegmentPlan, position: int, tracker: TransactionTracker) -> bool:
        """Add the keys of a segment from a byte position on; return True if the map was full before the segment's end."""
        work = self._work
        for chunk in self._chunks.read(segment, position):
            work.check_done()
            work.throttle(chunk.size)
            for entry in chunk.entries:
                if isinstance(entry, PlainRun):
                    is_full = self._add_run(chunk, entry, tracker)
                else:
                    is_full = self._add_batch(entry, tracker)
                if is_full:
                    return True
            work.stats.map_bytes_read += chunk.size
        return False

    def finish(self) -> None:
        """Do nothing: the map is complete."""

    def _add_run(self, chunk: ParsedChunk, run: PlainRun, tracker: TransactionTracker) -> bool:
        plan, stats, last_offsets = self._work.plan, self._work.stats, self.last_offsets
        keys, offsets = run.keys, run.offsets
        limit = plan.map_max_entries if plan.is_kafka else None
        is_roomy = limit is None or len(last_offsets) + len(keys) <= limit
        if is_roomy and offsets[0] >= plan.first_dirty_offset and not _is_for_tracker(run, tracker):
            last_offsets.update(zip(keys, offsets, strict=True))
            self.end_offset = run.batches[-1][4]
            stats.map_messages_read += len(keys)
            return False
        for batch in run.batches:
            _, _, first, last, last_offset, _, producer_id, flags, _, _ = batch
            if not is_roomy or offsets[first] < plan.first_dirty_offset:
                if self._add_batch(self._chunks.single(chunk, batch), tracker):
                    return True
                continue
            if not tracker.drops_data(last_offset, producer_id, is_transactional=bool(flags & TRANSACTIONAL)):
                last_offsets.update(zip(keys[first:last], offsets[first:last], strict=True))
            self.end_offset = last_offset
            stats.map_messages_read += last - first
        return False

    def _add_batch(self, batch: ChunkBatch, tracker: TransactionTracker) -> bool:
        plan, stats, header = self._work.plan, self._work.stats, batch.header
        first_dirty_offset = plan.first_dirty_offset
        if header.is_control:
            tracker.drops_control(header.last_offset, header.producer_id, batch.control_type())
            stats.map_messages_read += 1
        elif tracker.drops_data(header.last_offset, header.producer_id, is_transactional=header.is_transactional):
            stats.map_messages_read += header.record_count
        else:
            last_offsets = self.last_offsets
            limit = plan.map_max_entries if plan.is_kafka else None
            for record in batch.records():
                if record.key is not None and record.offset >= first_dirty_offset:
                    if limit is not None and len(last_offsets) >= limit:
                        # As in Kafka, even if the key is already in the map.
                        return True
                    last_offsets[record.key] = self.end_offset = record.offset
                stats.map_messages_read += 1
        if header.last_offset >= first_dirty_offset:
            self.end_offset = header.last_offset
        return False


class PlainRewriter:
    """A `Rewriter` that looks up keys in a `PlainMap`."""

    writer_type = SegmentWriter

    def __init__(self, work: RoundWork, key_map: PlainMap, chunks: ParsedChunks) -> None:
        self.tracker = TransactionTracker()
        self._work = work
        self._key_map = key_map
        self._chunks = chunks
        self._batches = BatchRewriter(work, self.tracker, key_map)

    def rewrite(self, segment: SegmentPlan, writer: SegmentWriter) -> None:
        """Append to `writer` the records of a segment that are kept."""
        work, stats = self._work, self._work.stats
        for chunk in self._chunks.take(segment):
            work.check_done()
            work.throttle(chunk.size)
            size_before = writer.size
            for entry in chunk.entries:
                if isinstance(entry, PlainRun):
                    self._rewrite_run(chunk, entry, segment, writer)
                else:
                    self._batches.rewrite(entry, segment, writer)
            writer.flush()
            stats.bytes_read += chunk.size
            stats.bytes_written += writer.size - size_before
            work.throttle(writer.size - size_before)

    def _rewrite_run(self, chunk: ParsedChunk, run: PlainRun, segment: SegmentPlan, writer: SegmentWriter) -> None:
        plan, stats, tracker, offsets = self._work.plan, self._work.stats, self.tracker, run.offsets
        active_producers = plan.active_producers
        is_for_tracker = _is_for_tracker(run, tracker)
        log_start = 0 if plan.is_kafka else plan.log_start_offset
        kept_last_offset = plan.header_end - 1
        # For records with keys, except expired tombstones, the result is that of `record_fate.record_fate`, because no key is
        # mapped to an offset beyond the map's end.
        mapped = map(self._key_map.last_offsets.get, run.keys, repeat(record_fate.NOT_MAPPED))
        stays = list(map(ge, offsets, mapped))
        data = chunk.data
        view = memoryview(data)
        written = removed = removed_bytes = 0
        for batch in run.batches:
            at, end, first, last, last_offset, max_timestamp, producer_id, flags, counted_bytes, _ = batch
            is_aborted = is_for_tracker and tracker.drops_data(
                last_offset, producer_id, is_transactional=bool(flags & TRANSACTIONAL)
            )
            if not is_aborted and offsets[first] >= log_start:
                count = last - first
                kept = stays[first] if count == 1 else sum(stays[first:last])
                if kept == 0:
                    is_last_of_producer = producer_id in active_producers and record_fate.is_last_of_producer(
                        active_producers[producer_id], last_offset=last_offset, producer_epoch=-1, is_control=False
                    )
                    if last_offset != kept_last_offset and not is_last_of_producer:
                        removed += count
                        removed_bytes += counted_bytes
                        continue
                elif flags & TOMBSTONES:
                    pass
                elif kept == count:
                    writer.append(view[at:end], last_offset, max_timestamp)
                    written += count
                    continue
                else:
                    left, max_timestamp, left_out_bytes = rebuilt(data, batch, stays[first:last], self._chunks.payloads)
                    writer.append(left, last_offset, max_timestamp)
                    written += kept
                    removed += count - kept
                    removed_bytes += left_out_bytes
                    continue
            self._batches.rewrite_decided(self._chunks.single(chunk, batch), segment, writer, may_drop=is_aborted)
        stats.messages_read += written + removed
        stats.messages_written += written
        if removed:
            stats.remove(SUPERSEDED, removed, removed_bytes)


def _is_for_tracker(run: PlainRun, tracker: TransactionTracker) -> bool:
    """Return whether the tracker must see these batches because they are transactional or may begin an aborted transaction."""
    return tracker.is_expecting or bool(run.flags & TRANSACTIONAL)


def _new_round(work: RoundWork) -> Round[SegmentWriter]:
    chunks = ParsedChunks(work)
    key_map = PlainMap(work, chunks)
    return Round(work, key_map, partial(PlainRewriter, work, key_map, chunks))


clean = Engine("inline", _new_round)
