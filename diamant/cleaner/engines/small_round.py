"""The plain engine for rounds that a caller waits for: the bytes of `plain_round`, in a fraction of the time.

A round reads what is dirty twice, once for the map and once to rewrite it. Here the second time is spared: what was
parsed for the map is kept, as far as `MAX_PARSED_BYTES` goes. And plain batches (`plain_batches`), as clients write
nearly all of them, are mapped and judged by the row, without the layers that any other batch may need. If they are
compressed, they are decompressed once, for their keys. Whatever else there is goes the way of `plain_round`, what
cannot be read as well: errors are its errors, too.

Memory: as `plain_round`, and twice `MAX_PARSED_BYTES`: for what is kept, and for the chunk at hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import repeat
from operator import ge
from typing import TYPE_CHECKING, NamedTuple

from diamant.cleaner.engines.plain_batches import BATCH_BYTES, TOMBSTONES, TRANSACTIONAL, PlainRun, read_run, rebuilt
from diamant.cleaner.engines.plain_round import _Batch, _Round
from diamant.cleaner.rules import record_fate
from diamant.cleaner.rules.result import SUPERSEDED
from diamant.cleaner.segments.small_payloads import SmallPayloads
from diamant.cleaner.segments.strict_reader import Chunk, parsed_chunks
from diamant.protocol.batches.batch import crc_is_valid, iter_headers, parse_header
from diamant.protocol.batches.compression import NONE
from diamant.protocol.batches.header import CURRENT_MAGIC, HEADER_SIZE
from diamant.protocol.batches.records import iter_payload
from diamant.protocol.errors import CorruptBatch
from diamant.storage import names
from diamant.storage.errors import CorruptLog

if TYPE_CHECKING:
    from diamant.cleaner.engines.plain_batches import PlainBatch
    from diamant.cleaner.rules.plan import SegmentPlan
    from diamant.cleaner.rules.transaction_tracker import TransactionTracker
    from diamant.cleaner.segments.segment_writer import SegmentWriter
    from diamant.protocol.batches.header import BatchHeader, Record
    from diamant.storage.env.env import File

MAX_PARSED_BYTES = 16 * 1024 * 1024
"""Of memory, for the chunks of a log and what was parsed of them, that are kept from the first pass to the second; and for those
of one chunk."""

_NO_TYPE = -1
"""Of a control batch: not looked at yet."""


class QuickChunk(NamedTuple):
    """Whole batches in a row."""

    path: str
    chunk: Chunk
    """The bytes; it has no headers."""
    entries: list[PlainRun | OtherBatch]
    size: int
    """Bytes of the whole batches."""
    memory_bytes: int
    """Upper bound of its memory."""


class OtherBatch(_Batch):
    """A batch that is not plain, or is to be treated so. The type of a control batch is looked up once."""

    __slots__ = ("_payloads", "_type")

    def __init__(self, path: str, chunk: Chunk, at: int, header: BatchHeader, payloads: SmallPayloads) -> None:
        super().__init__(path, chunk, at, header)
        self._payloads = payloads
        self._type: int | None = _NO_TYPE

    def control_type(self) -> int | None:
        """As `_Batch` has it."""
        if self._type == _NO_TYPE:
            self._type = super().control_type()
        return self._type

    def records(self) -> Sequence[Record]:
        """Its records; CorruptLog as `_Batch` has it."""
        data, at, header = self.chunk.data, self.at, self.header
        if header.magic == CURRENT_MAGIC and header.record_count and crc_is_valid(data, at, header.size):
            payload: bytes | None = data[at + HEADER_SIZE : at + header.size]
            if payload and header.codec != NONE:
                payload = self._payloads.unpack(header.codec, payload)
            if payload:
                try:
                    return tuple(iter_payload(payload, header))
                except CorruptBatch:
                    pass  # It is told below what is wrong, and where.
        return super().records()


class QuickRound(_Round):
    """See the module; for `rewrite.clean(..., round_type=QuickRound)`."""

    _kept: dict[int, list[QuickChunk]]
    """By base offset: the segments that were mapped as a whole."""
    _room: int
    """Bytes of memory left for keeping more."""
    _payloads: SmallPayloads

    def build_map(self) -> None:
        """Read the dirty range."""
        self._payloads = SmallPayloads()
        self._kept, self._room = {}, MAX_PARSED_BYTES
        super().build_map()

    def _chunks(self, segment: SegmentPlan, position: int) -> Iterator[QuickChunk]:
        file = self.env.open(names.log_file(self.plan.directory, segment.base_offset), read_only=True)
        try:
            parse_ = partial(parse, payloads=self._payloads, room=MAX_PARSED_BYTES)
            yield from parsed_chunks(file, position, segment.size, self.plan.io_buffer_bytes, parse_)
        finally:
            file.close()

    def _whole(self, chunk: QuickChunk, batch: PlainBatch) -> OtherBatch:
        """Return a plain batch as `plain_round` wants it."""
        at = batch[0]
        return OtherBatch(chunk.path, chunk.chunk, at, parse_header(chunk.chunk.data, at), self._payloads)

    # -- the map ---------------------------------------------------------------------------------------------------------

    def _map_segment(self, segment: SegmentPlan, tracker: TransactionTracker) -> bool:
        position = self._dirty_position(segment)
        kept: list[QuickChunk] = []
        room = self._room if position == 0 else -1
        for chunk in self._chunks(segment, position):
            self.check_done()
            self.throttle(chunk.size)
            for entry in chunk.entries:
                if isinstance(entry, PlainRun):
                    is_full = self._map_run(chunk, entry, tracker)
                else:
                    is_full = self._map_batch(entry, tracker)
                if is_full:
                    return True
            self.stats.map_bytes_read += chunk.size
            room -= chunk.memory_bytes
            if room >= 0:
                kept.append(chunk)
            else:
                kept.clear()
        if room >= 0:
            self._kept[segment.base_offset], self._room = kept, room
        self.map_end_offset = max(self.map_end_offset, segment.next_base_offset - 1)
        return False

    def _map_run(self, chunk: QuickChunk, run: PlainRun, tracker: TransactionTracker) -> bool:
        """Add the keys of plain batches to the map; return True if the map is full."""
        plan, stats, last_offsets = self.plan, self.stats, self.last_offsets
        keys, offsets = run.keys, run.offsets
        limit = plan.map_max_entries if plan.is_kafka else None
        is_roomy = limit is None or len(last_offsets) + len(keys) <= limit
        if is_roomy and offsets[0] >= plan.first_dirty_offset and not _is_for_tracker(run, tracker):
            last_offsets.update(zip(keys, offsets, strict=True))
            self.map_end_offset = run.batches[-1][4]
            stats.map_messages_read += len(keys)
            return False
        for batch in run.batches:
            _, _, first, last, last_offset, _, producer_id, flags, _, _ = batch
            if not is_roomy or offsets[first] < plan.first_dirty_offset:
                if self._map_batch(self._whole(chunk, batch), tracker):
                    return True
                continue
            if not tracker.drops_data(last_offset, producer_id, is_transactional=bool(flags & TRANSACTIONAL)):
                last_offsets.update(zip(keys[first:last], offsets[first:last], strict=True))
            self.map_end_offset = last_offset
            stats.map_messages_read += last - first
        return False

    # -- the rewrite -----------------------------------------------------------------------------------------------------

    def _rewrite_segment(self, segment: SegmentPlan, writer: SegmentWriter) -> None:
        self.check_done()
        self._expect_aborted(segment)
        kept = self._kept.pop(segment.base_offset, None)
        for chunk in self._chunks(segment, 0) if kept is None else kept:
            self.check_done()
            self.throttle(chunk.size)
            size_before = writer.size
            for entry in chunk.entries:
                if isinstance(entry, PlainRun):
                    self._rewrite_run(chunk, entry, segment, writer)
                else:
                    self._rewrite_batch(entry, segment, writer)
            writer.flush()
            self.stats.bytes_read += chunk.size
            self.stats.bytes_written += writer.size - size_before
            self.throttle(writer.size - size_before)

    def _rewrite_run(self, chunk: QuickChunk, run: PlainRun, segment: SegmentPlan, writer: SegmentWriter) -> None:
        plan, stats, tracker, offsets = self.plan, self.stats, self.tracker, run.offsets
        is_for_tracker = _is_for_tracker(run, tracker)
        log_start = 0 if plan.is_kafka else plan.log_start_offset
        last_of_round = plan.first_uncleanable_offset - 1
        # `record_fate.record_fate` for records that have a key and no expired tombstones among them: no key is mapped to an
        # offset past the map's end.
        stays = list(map(ge, offsets, map(self.last_offsets.get, run.keys, repeat(record_fate.NOT_MAPPED))))
        data = chunk.chunk.data
        view = memoryview(data)
        written = removed = removed_bytes = 0
        for batch in run.batches:
            at, end, first, last, last_offset, max_timestamp, producer_id, flags, counted_bytes, _ = batch
            is_aborted = is_for_tracker and tracker.drops_data(
                last_offset, producer_id, is_transactional=bool(flags & TRANSACTIONAL)
            )
            if not is_aborted and offsets[first] >= log_start:
                count = last - first
                kept = sum(stays[first:last])
                if kept == 0:
                    is_last_of_producer = producer_id in plan.active_producers and record_fate.is_last_of_producer(
                        plan.active_producers[producer_id], last_offset=last_offset, producer_epoch=-1, is_control=False
                    )
                    if last_offset != last_of_round and not is_last_of_producer:
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
                    left, max_timestamp, left_out_bytes = rebuilt(data, batch, stays[first:last], self._payloads)
                    writer.append(left, last_offset, max_timestamp)
                    written += kept
                    removed += count - kept
                    removed_bytes += left_out_bytes
                    continue
            self._rewrite_batch(self._whole(chunk, batch), segment, writer)
        stats.messages_read += written + removed
        stats.messages_written += written
        if removed:
            stats.remove(SUPERSEDED, removed, removed_bytes)


def _is_for_tracker(run: PlainRun, tracker: TransactionTracker) -> bool:
    """Tell whether transactions matter to any of these batches, or these to them."""
    return tracker.is_expecting or bool(run.flags & TRANSACTIONAL)


def parse(file: File, position: int, data: bytes, payloads: SmallPayloads, room: int) -> QuickChunk:
    """Return the whole batches in `data`, which is at `position` of a segment's file. CorruptLog as `read_chunks` has it.

    Plain batches are read as far as they take no more than `room` bytes of memory.
    """
    chunk = Chunk(position, data, [], 0)
    entries: list[PlainRun | OtherBatch] = []
    at, memory_bytes = 0, len(data)
    while True:
        run = read_run(data, at, payloads, room)
        if run.batches:
            entries.append(run)
            room -= run.memory_bytes
            memory_bytes += run.memory_bytes
            at = run.end
        other = _header(file, position, data, at)
        if other is None:
            break
        entries.append(OtherBatch(file.path, chunk, at, other, payloads))
        memory_bytes += BATCH_BYTES
        at += other.size
    return QuickChunk(file.path, chunk, entries, at, memory_bytes)


def _header(file: File, position: int, data: bytes, at: int) -> BatchHeader | None:
    """Return the header of the batch at a place in `data`, of any magic; None if it is not all there."""
    try:
        for _, header in iter_headers(data, at):
            return header
    except CorruptBatch as error:
        raise CorruptLog(file.path, position + error.position, error.reason) from error
    return None
