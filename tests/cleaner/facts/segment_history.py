"""Segments written batch by batch, with any fields and any gaps, and the plan of a round over them.

    history = SegmentHistory()
    history.batch([(b"k", b"v"), (b"k", None)], codec=4, gap=3)
    history.marker(7, "abort")
    history.roll()
    env, plan = history.stored(first_dirty=2)

Unlike `cleaner_log.CleanerLog` it checks nothing, so it can make logs that Diamant would not write.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from diamant.cleaner.rules.modes import PROMPT
from diamant.cleaner.rules.plan import ActiveProducer, CleanPlan, SegmentPlan
from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Header, Record
from diamant.storage import names
from diamant.storage.env.clocks import SettableClock
from diamant.storage.segments.offset_index import OffsetIndex
from diamant.storage.segments.txn_index import AbortedTxn
from tests.builder import make_marker, make_message, make_wrapper, with_payload
from tests.memory_env import MemoryEnv

DIRECTORY = "/data/t-0"
NOW_MS = 1_700_000_000_000
HASH_KEY = bytes(range(16))


@dataclass
class Segment:
    """One segment being written."""

    base_offset: int
    data: bytearray = field(default_factory=bytearray)
    aborted: list[AbortedTxn] = field(default_factory=list)


class SegmentHistory:
    """One partition. `offset` is that of the next record."""

    def __init__(self) -> None:
        self.offset = 0
        self.segments = [Segment(0)]
        self.open: dict[int, int] = {}
        """From producers to the first offsets of their transactions."""
        self.producers: dict[int, ActiveProducer] = {}

    def append(self, batch: bytes | bytearray) -> None:
        """Append the bytes of an entry of any magic."""
        self.segments[-1].data += batch
        for _, header in iter_headers(batch):
            self.offset = header.next_offset

    def batch(
        self,
        pairs: list[tuple[bytes | None, bytes | None]],
        *,
        gap: int = 0,
        step: int = 1,
        padding: int = 0,
        producer: int = -1,
        is_transactional: bool = False,
        headers: tuple[Header, ...] = (),
        timestamp: int = NOW_MS - 1000,
        **fields: Any,
    ) -> None:
        """Append a batch of keys and values, `gap` offsets on, `step` apart, whose last offset has `padding` more."""
        base = self.offset + gap
        records = [
            Record(base + padding + index * step, timestamp + 7 * (index % 3) - index, key, value, headers)
            for index, (key, value) in enumerate(pairs)
        ]
        if producer >= 0:
            fields |= {"producer_id": producer, "producer_epoch": 0, "base_sequence": base}
        batch = build_batch(
            records,
            base_offset=base,
            leader_epoch=3,
            is_transactional=is_transactional,
            last_offset_delta=2 * padding + max(0, len(records) - 1) * step,
            **fields,
        )
        self.append(batch)
        if producer >= 0:
            self.producers[producer] = ActiveProducer(0, self.offset - 1)
            if is_transactional:
                self.open.setdefault(producer, base)

    def old(self, magic: int, codec: int, pairs: list[tuple[bytes | None, bytes | None]]) -> None:
        """Append keys and values in the format of before Kafka 0.11: a compressed set, or each by itself."""
        records = [Record(self.offset + index, NOW_MS - 5, key, value) for index, (key, value) in enumerate(pairs)]
        if codec:
            self.append(make_wrapper(magic, codec, records))
            return
        for record in records:
            self.append(make_message(magic, record.offset, record.key, record.value, timestamp=NOW_MS - 5))

    def marker(self, producer: int, kind: str) -> None:
        """End a producer's transaction: "commit" or "abort"."""
        offset = self.offset
        self.append(
            make_marker(producer, is_commit=kind == "commit", base_offset=offset, leader_epoch=3, timestamp=NOW_MS - 3)
        )
        first = self.open.pop(producer, None)
        if kind == "abort" and first is not None:
            stable = min(self.open.values(), default=offset + 1)
            self.segments[-1].aborted.append(AbortedTxn(producer, first, offset, stable))
        self.producers.setdefault(producer, ActiveProducer(0, None))

    def roll(self, gap: int = 0) -> None:
        """Begin a new segment, `gap` offsets on."""
        if self.segments[-1].data:
            self.offset += gap
            self.segments.append(Segment(self.offset))

    def stored(self, **fields: Any) -> tuple[MemoryEnv, CleanPlan]:
        """Write all segments to a file system, and plan a round over all but the last; `fields` go to the plan."""
        for producer in sorted(self.open):
            self.marker(producer, "commit")
        self.roll()
        env = MemoryEnv(SettableClock(NOW_MS))
        env.make_dirs(DIRECTORY)
        plans = []
        for segment, following in zip(self.segments, self.segments[1:], strict=False):
            file = env.create_new(names.log_file(DIRECTORY, segment.base_offset))
            file.append(bytes(segment.data))
            file.close()
            index = OffsetIndex(env, names.index_file(DIRECTORY, segment.base_offset), segment.base_offset, 1 << 20)
            if all(magic == 2 for magic in self._magics(segment)):
                for position, header in list(iter_headers(segment.data))[1::3]:
                    index.append(header.last_offset, position)
                index.file.flush()
            plans.append(
                SegmentPlan(
                    segment.base_offset,
                    len(segment.data),
                    index.file.entries * 8,
                    0,
                    NOW_MS - 100 + len(plans),
                    following.base_offset,
                    tuple(segment.aborted),
                )
            )
        values: dict[str, Any] = {
            "directory": DIRECTORY,
            "topic": "t",
            "partition": 0,
            "segments": tuple(plans),
            "log_start_offset": 0,
            "first_dirty_offset": 0,
            "first_uncleanable_offset": self.segments[-1].base_offset,
            "now_ms": NOW_MS,
            "mode": PROMPT,
            "segment_bytes": 1 << 30,
            "segment_index_bytes": 1 << 20,
            "index_interval_bytes": 200,
            "delete_retention_ms": 50,
            "max_message_bytes": 1 << 20,
            "active_producers": self.producers,
            "map_max_entries": 1_000_000,
            "map_memory_bytes": 1 << 20,
            "io_buffer_bytes": 4096,
            "hash_key": HASH_KEY,
        }
        return env, CleanPlan(**(values | fields))

    def _magics(self, segment: Segment) -> list[int]:
        return [header.magic for _, header in iter_headers(segment.data)]


def odd_varint(value: int, size: int) -> bytes:
    """Return a ZigZag integer with more bytes than needed."""
    raw = value << 1 if value >= 0 else (-value << 1) - 1
    return bytes((raw >> 7 * index & 0x7F) | (0x80 if index < size - 1 else 0) for index in range(size))


def odd_batch(pairs: list[tuple[bytes, bytes | None]], base_offset: int) -> bytearray:
    """An uncompressed batch whose records have all integers in more bytes than needed, and -2 for null."""
    payload = bytearray()
    for index, (key, value) in enumerate(pairs):
        body = b"\x05" + odd_varint(3, 3) + odd_varint(index, 2) + odd_varint(len(key), 2) + key
        body += odd_varint(-2, 1) if value is None else odd_varint(len(value), 3) + value
        body += odd_varint(0, 2)
        payload += odd_varint(len(body), 3) + body
    batch = build_batch([Record(base_offset + index, NOW_MS, key, value) for index, (key, value) in enumerate(pairs)])
    return with_payload(batch, bytes(payload))
