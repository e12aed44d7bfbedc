"""The plan of a round, made from segments and settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from diamant.cleaner.rules.modes import KAFKA, KAFKA_4_3, KAFKA_4_4, PROMPT

if TYPE_CHECKING:
    from diamant.storage.env.env import Env
    from diamant.storage.log.log import Log
    from diamant.storage.segments.segment import Segment
from diamant.cleaner.rules.grouping import expiry_slice_ms
from diamant.cleaner.rules.plan import (
    INDEX_ENTRY_BYTES,
    KAFKA_MAP_ENTRY_BYTES,
    TIME_INDEX_ENTRY_BYTES,
    ActiveProducer,
    CleanPlan,
    SegmentPlan,
)


@dataclass(frozen=True, slots=True)
class CleanerSettings:
    """The part of the broker's configuration that applies to every round; see the fields of `CleanPlan`."""

    mode: str = PROMPT
    kafka_version: str = KAFKA_4_4
    """The version of Kafka that mode kafka follows; mode prompt follows the newest version."""
    map_max_entries: int = int(134_217_728 // KAFKA_MAP_ENTRY_BYTES * 0.9)
    map_load_factor: float = 1.0
    map_memory_bytes: int = 134_217_728
    io_buffer_bytes: int = 262_144
    io_max_bytes_per_second: float = math.inf
    threads: int = 1
    hash_key: bytes = bytes(16)

    @property
    def keeps_end_of_round(self) -> bool:
        """True if the last batch of each round is kept, at least as a header (`CleanPlan.high_watermark`)."""
        return self.mode == KAFKA and self.kafka_version == KAFKA_4_3


def kafka_map_entries(dedupe_buffer_bytes: int, load_factor: float, threads: int = 1) -> int:
    """Return the capacity of a thread's map in keys, from `log.cleaner.dedupe.buffer.size` and related settings."""
    slots = min(dedupe_buffer_bytes // threads, 2**31 - 1) // KAFKA_MAP_ENTRY_BYTES
    return int(slots * load_factor)


def plan_segment(env: Env, segment: Segment, next_base_offset: int) -> SegmentPlan:
    """Return the plan's entry for a segment that takes no appends. Reads its indexes and file times; callable from any thread."""
    return SegmentPlan(
        base_offset=segment.base_offset,
        size=segment.size,
        index_bytes=segment.offset_index.file.entries * INDEX_ENTRY_BYTES,
        time_index_bytes=segment.time_index.file.entries * TIME_INDEX_ENTRY_BYTES,
        modified_ms=env.mtime_ms(segment.path),
        next_base_offset=next_base_offset,
        aborted=tuple(segment.txn_index.all()),
        largest_timestamp=segment.largest_timestamp,
    )


def make_plan(
    log: Log,
    first_dirty_offset: int,
    first_uncleanable_offset: int,
    now_ms: int,
    settings: CleanerSettings,
    known: Mapping[Segment, SegmentPlan] = MappingProxyType({}),
) -> CleanPlan:
    """Return the plan of a round over `log`. Only the log's owner may call it.

    The offsets are those of `eligibility.cleanable_range`. Segments that are missing from `known` are read now (`plan_segment`).
    """
    config = log.config
    sources = [segment for segment in log.segments[:-1] if segment.base_offset < first_uncleanable_offset]
    following = [segment.base_offset for segment in log.segments[1:]]
    later = (
        aborted for segment in log.segments[len(sources) :] for aborted in segment.txn_index.all()
    )  # fmt: skip
    return CleanPlan(
        directory=log.path,
        topic=log.topic,
        partition=log.partition,
        segments=tuple(
            known.get(segment) or plan_segment(log.env, segment, next_base_offset)
            for segment, next_base_offset in zip(sources, following, strict=False)
        ),
        log_start_offset=log.log_start_offset,
        first_dirty_offset=first_dirty_offset,
        first_uncleanable_offset=first_uncleanable_offset,
        now_ms=now_ms,
        mode=settings.mode,
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        delete_retention_ms=config.delete_retention_ms,
        max_message_bytes=config.max_message_bytes,
        max_record_bytes=config.max_decompressed_message_bytes,
        active_producers={
            entry.producer_id: ActiveProducer(
                entry.producer_epoch, entry.last_offset if entry.last_offset >= 0 else None
            )
            for entry in log.producers.active_producers
        },
        map_max_entries=settings.map_max_entries,
        map_load_factor=settings.map_load_factor,
        map_memory_bytes=settings.map_memory_bytes,
        io_buffer_bytes=settings.io_buffer_bytes,
        hash_key=settings.hash_key,
        io_max_bytes_per_second=settings.io_max_bytes_per_second,
        threads=settings.threads,
        expiry_slice_ms=expiry_slice_ms(config, settings.mode),
        later_aborted=tuple(aborted for aborted in later if aborted.first_offset < first_uncleanable_offset),
        high_watermark=None if settings.keeps_end_of_round else log.high_watermark,
    )
