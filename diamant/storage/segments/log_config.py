"""The settings of one log, with Kafka's defaults.

The broker resolves them (a topic's setting overrides the broker's default); storage sees no property names.
Kafka calls this ``org.apache.kafka.storage.internals.log.LogConfig``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

LONG_MAX = (1 << 63) - 1

CLEANUP_DELETE = "delete"
CLEANUP_COMPACT = "compact"

CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"

PRODUCER_COMPRESSION = "producer"
"""compression.type: keep the producer's codec."""


_CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Settings of one topic. Sizes in bytes, times in milliseconds; a retention of -1 means no limit.

    ``cleanup_policy`` may be empty: then nothing is deleted or compacted (KIP-1075).
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    max_message_bytes: int = (1 << 20) + 12
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1
    cleanup_policy: frozenset[str] = frozenset({CLEANUP_DELETE})
    compression_type: str = PRODUCER_COMPRESSION
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    timestamp_type: str = CREATE_TIME
    timestamp_before_max_ms: int = LONG_MAX
    timestamp_after_max_ms: int = 3600 * 1000
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    file_delete_delay_ms: int = 60_000
    delete_retention_ms: int = 24 * 3600 * 1000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    min_cleanable_dirty_ratio: float = 0.5
    preallocate: bool = False
    min_insync_replicas: int = 1
    tombstone_hold: str = "none"
    tombstone_hold_max_ms: int = 7 * 24 * 3600 * 1000

    @property
    def is_compacted(self) -> bool:
        """True if the cleaner compacts this log; its records then need keys."""
        return CLEANUP_COMPACT in self.cleanup_policy

    @property
    def is_deleted(self) -> bool:
        """True if retention by time and size deletes whole segments."""
        return CLEANUP_DELETE in self.cleanup_policy

    @property
    def is_log_append_time(self) -> bool:
        """True if the broker's clock, not the producer's, stamps the records."""
        return self.timestamp_type == LOG_APPEND_TIME

    @property
    def max_segment_ms(self) -> int:
        """Age at which a segment rolls; on compacted topics at most `max.compaction.lag.ms` (KIP-354)."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    def with_clamped_jitter(self) -> LogConfig:
        """Return the configuration with the jitter clamped to the roll age; Kafka's jitter may exceed it."""
        limit_ms = self.max_segment_ms
        return self if self.segment_jitter_ms <= limit_ms else replace(self, segment_jitter_ms=limit_ms)

    def target_codec(self, source_codec: int) -> int:
        """Return the codec number for storing a batch that arrived with `source_codec`."""
        if self.compression_type == PRODUCER_COMPRESSION:
            return source_codec
        return _CODECS[self.compression_type]

    def compression_level(self, codec: int) -> int | None:
        """Return the compression level for batches that the broker compresses; None for codecs without levels."""
        return {1: self.compression_gzip_level, 3: self.compression_lz4_level, 4: self.compression_zstd_level}.get(
            codec
        )
