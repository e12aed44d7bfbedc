"""The settings of one log: each field declares a topic configuration with Kafka's default and limits, and its documentation.

The broker resolves them (a topic's setting overrides the broker's default). Topic configurations that a log does not need are in
the broker's `topic_table.py`. Kafka: ``org.apache.kafka.storage.internals.log.LogConfig`` and ``ServerTopicConfigSynonyms``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from diamant.protocol.batches.record_sizes import NO_RECORD_LIMIT
from diamant.storage.config_key import LONG_MAX, ConfigType, any_of, at_least, between, between_or, list_of, setting

CLEANUP_DELETE = "delete"
CLEANUP_COMPACT = "compact"

CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"

PRODUCER_COMPRESSION = "producer"
"""Value of compression.type that keeps the producer's codec."""


_INT, _LONG, _DOUBLE = ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE
_STRING, _LIST, _BOOLEAN = ConfigType.STRING, ConfigType.LIST, ConfigType.BOOLEAN
_CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Settings of one topic. Sizes are in bytes, times in milliseconds.

    If ``cleanup_policy`` is empty, nothing is deleted or compacted (KIP-1075).
    """

    cleanup_policy: frozenset[str] = setting(
        _LIST,
        frozenset({CLEANUP_DELETE}),
        "What happens to old records. `delete` removes whole segments by age and size, `compact` keeps the last value "
        "of every key, `compact,delete` does both; an empty list keeps everything.",
        list_of("compact", "delete"),
        ("log.cleanup.policy",),
    )
    compression_gzip_level: int = setting(
        _INT,
        -1,
        "Level for batches that the broker compresses with gzip; -1: the library's default.",
        between_or(1, 9, -1),
        ("compression.gzip.level",),
    )
    compression_lz4_level: int = setting(
        _INT, 9, "Level for batches that the broker compresses with lz4.", between(1, 17), ("compression.lz4.level",)
    )
    compression_type: str = setting(
        _STRING,
        PRODUCER_COMPRESSION,
        "Codec of the stored batches. `producer` stores what the producer sent; with any other value the broker "
        "recompresses batches that arrive in another codec.",
        any_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        ("compression.type",),
    )
    compression_zstd_level: int = setting(
        _INT,
        3,
        "Level for batches that the broker compresses with zstd; negative levels are faster and larger.",
        between(-131072, 22),
        ("compression.zstd.level",),
    )
    delete_retention_ms: int = setting(
        _LONG,
        86_400_000,
        "How long a compacted topic keeps a tombstone after the pass that first cleaned past it. A consumer that "
        "reads from the beginning within this time sees every deletion.",
        at_least(0),
        ("log.cleaner.delete.retention.ms",),
    )
    diamant_tombstone_hold: str = setting(
        _STRING,
        "none",
        "`groups`: a tombstone is kept past its delete horizon until every group with a committed offset in its partition has "
        "passed it. `none`: it is removed after its delete horizon, as in Kafka.",
        any_of("none", "groups"),
        is_internal=True,
    )
    diamant_tombstone_hold_max_ms: int = setting(
        _LONG,
        604_800_000,
        "With `diamant.tombstone.hold=groups`: the longest time that a tombstone is kept after its delete horizon, "
        "even if a group is behind.",
        at_least(0),
        is_internal=True,
    )
    file_delete_delay_ms: int = setting(
        _LONG,
        60_000,
        "How long the files of a removed segment are kept, renamed to `.deleted`, before they are unlinked.",
        at_least(0),
        ("log.segment.delete.delay.ms",),
    )
    flush_messages: int = setting(
        _LONG,
        LONG_MAX,
        "Number of records after which the log is flushed to disk. The default leaves it to the operating system, as in Kafka.",
        at_least(1),
        ("log.flush.interval.messages",),
    )
    flush_ms: int = setting(
        _LONG,
        LONG_MAX,
        "Time after which the log is flushed to disk. The default leaves it to the operating system.",
        at_least(0),
        ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    )
    index_interval_bytes: int = setting(
        _INT,
        4096,
        "Distance in the log between two entries of the offset index. A smaller distance speeds up look-ups and takes more "
        "memory.",
        at_least(0),
        ("log.index.interval.bytes",),
    )
    max_compaction_lag_ms: int = setting(
        _LONG,
        LONG_MAX,
        "Longest time that a record of a compacted topic may wait for the cleaner, regardless of the dirty ratio.",
        at_least(1),
        ("log.cleaner.max.compaction.lag.ms",),
    )
    max_decompressed_message_bytes: int = setting(
        _INT,
        NO_RECORD_LIMIT,
        "Largest record of a compressed batch, in its decompressed form. Larger ones are refused. A partition that has them "
        "already, because the limit was higher, is not cleaned, and is not searched by time beyond them, until the limit is "
        "raised.",
        between(1, NO_RECORD_LIMIT),
        ("max.decompressed.message.bytes",),
    )
    max_message_bytes: int = setting(
        _INT,
        1_048_588,
        "Largest record batch that the topic accepts, in its stored, compressed form.",
        at_least(0),
        ("message.max.bytes",),
    )
    message_timestamp_after_max_ms: int = setting(
        _LONG,
        3_600_000,
        "How far a record's timestamp may lie ahead of the broker's clock. Not applied with `LogAppendTime`.",
        at_least(0),
        ("log.message.timestamp.after.max.ms",),
    )
    message_timestamp_before_max_ms: int = setting(
        _LONG,
        LONG_MAX,
        "How far a record's timestamp may lie behind the broker's clock. Not applied with `LogAppendTime`.",
        at_least(0),
        ("log.message.timestamp.before.max.ms",),
    )
    message_timestamp_type: str = setting(
        _STRING,
        CREATE_TIME,
        "Whose clock stamps records: the producer's (`CreateTime`) or the broker's (`LogAppendTime`).",
        any_of("CreateTime", "LogAppendTime"),
        ("log.message.timestamp.type",),
    )
    min_cleanable_dirty_ratio: float = setting(
        _DOUBLE,
        0.5,
        "Share of a log that must be uncleaned before it is cleaned. A lower value cleans more often and wastes less "
        "space.",
        between(0, 1),
        ("log.cleaner.min.cleanable.ratio",),
    )
    min_compaction_lag_ms: int = setting(
        _LONG,
        0,
        "The shortest time that a record stays uncompacted after it was written.",
        at_least(0),
        ("log.cleaner.min.compaction.lag.ms",),
    )
    min_insync_replicas: int = setting(
        _INT,
        1,
        "Replicas that must hold a record before a produce with acks=all is acknowledged; as in Kafka, all of them where a "
        "partition has fewer. A single broker never refuses for it.",
        at_least(1),
        ("min.insync.replicas",),
    )
    preallocate: bool = setting(
        _BOOLEAN, False, "Reserve a segment's whole size on disk when it is created.", synonyms=("log.preallocate",)
    )
    retention_bytes: int = setting(
        _LONG,
        -1,
        "Size to which the `delete` policy cuts each partition, oldest segments first; -1: no limit.",
        synonyms=("log.retention.bytes",),
    )
    retention_ms: int = setting(
        _LONG,
        604_800_000,
        "Age at which the `delete` policy removes a segment, by its newest timestamp; -1: no limit.",
        at_least(-1),
        ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    )
    segment_bytes: int = setting(
        _INT,
        1 << 30,
        "Size at which a segment is closed and the next one created. Retention and cleaning work on closed segments "
        "only.",
        at_least(1 << 20),
        ("log.segment.bytes",),
    )
    segment_index_bytes: int = setting(
        _INT,
        10 << 20,
        "Largest size of a segment's offset index and time index; a full index closes the segment.",
        at_least(4),
        ("log.index.size.max.bytes",),
    )
    segment_jitter_ms: int = setting(
        _LONG,
        0,
        "Maximum random reduction of `segment.ms`, so that not all segments close at once.",
        at_least(0),
        ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    )
    segment_ms: int = setting(
        _LONG,
        604_800_000,
        "Age at which a segment is closed even if it is not full.",
        at_least(1),
        ("log.roll.ms", "log.roll.hours"),
    )

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
        """True if the broker, not the producer, sets the timestamps of records."""
        return self.message_timestamp_type == LOG_APPEND_TIME

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
