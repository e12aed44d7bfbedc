"""The table of topic configurations: all of Kafka 4.3's and some of Diamant's, with default, limits and documentation.

The first source that is set wins: the topic's own value (ConfigRecord in the metadata log), the broker's synonym
(``log.segment.bytes`` for ``segment.bytes``), the default. Kafka: ``org.apache.kafka.storage.internals.log.LogConfig``
and ``ServerTopicConfigSynonyms``.
"""

from __future__ import annotations

from collections.abc import Mapping

from diamant.broker.config.config_key import (
    LONG_MAX,
    THROTTLED_REPLICAS,
    ConfigKey,
    ConfigType,
    any_of,
    at_least,
    between,
    between_or,
    list_of,
)

_KEYS = (
    ConfigKey(
        "cleanup.policy",
        ConfigType.LIST,
        ["delete"],
        "What happens to old records. `delete` removes whole segments by age and size, `compact` keeps the last value "
        "of every key, `compact,delete` does both; an empty list keeps everything.",
        list_of("compact", "delete"),
        ("log.cleanup.policy",),
    ),
    ConfigKey(
        "compression.gzip.level",
        ConfigType.INT,
        -1,
        "Level for batches that the broker compresses with gzip; -1: the library's default.",
        between_or(1, 9, -1),
        ("compression.gzip.level",),
    ),
    ConfigKey(
        "compression.lz4.level",
        ConfigType.INT,
        9,
        "Level for batches that the broker compresses with lz4.",
        between(1, 17),
        ("compression.lz4.level",),
    ),
    ConfigKey(
        "compression.type",
        ConfigType.STRING,
        "producer",
        "Codec of the stored batches. `producer` stores what the producer sent; with any other value the broker "
        "recompresses batches that arrive in another codec.",
        any_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        ("compression.type",),
    ),
    ConfigKey(
        "compression.zstd.level",
        ConfigType.INT,
        3,
        "Level for batches that the broker compresses with zstd; negative levels are faster and larger.",
        between(-131072, 22),
        ("compression.zstd.level",),
    ),
    ConfigKey(
        "delete.retention.ms",
        ConfigType.LONG,
        86_400_000,
        "How long a compacted topic keeps a tombstone after the pass that first cleaned past it. A consumer that "
        "reads from the beginning within this time sees every deletion.",
        at_least(0),
        ("log.cleaner.delete.retention.ms",),
    ),
    ConfigKey(
        "diamant.tombstone.hold",
        ConfigType.STRING,
        "none",
        "`groups`: a tombstone is kept past its delete horizon until every group with a committed offset in its partition has "
        "passed it. `none`: it is removed after its delete horizon, as in Kafka.",
        any_of("none", "groups"),
        is_internal=True,
    ),
    ConfigKey(
        "diamant.tombstone.hold.max.ms",
        ConfigType.LONG,
        604_800_000,
        "With `diamant.tombstone.hold=groups`: the longest time that a tombstone is kept after its delete horizon, "
        "even if a group is behind.",
        at_least(0),
        is_internal=True,
    ),
    ConfigKey(
        "file.delete.delay.ms",
        ConfigType.LONG,
        60_000,
        "How long the files of a removed segment are kept, renamed to `.deleted`, before they are unlinked.",
        at_least(0),
        ("log.segment.delete.delay.ms",),
    ),
    ConfigKey(
        "flush.messages",
        ConfigType.LONG,
        LONG_MAX,
        "Number of records after which the log is flushed to disk. The default leaves it to the operating system, as in Kafka.",
        at_least(1),
        ("log.flush.interval.messages",),
    ),
    ConfigKey(
        "flush.ms",
        ConfigType.LONG,
        LONG_MAX,
        "Time after which the log is flushed to disk. The default leaves it to the operating system.",
        at_least(0),
        ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    ),
    ConfigKey(
        "follower.replication.throttled.replicas",
        ConfigType.LIST,
        [],
        "Followers whose replication is throttled. Kept and shown; a single node replicates nothing.",
        THROTTLED_REPLICAS,
    ),
    ConfigKey(
        "index.interval.bytes",
        ConfigType.INT,
        4096,
        "Distance in the log between two entries of the offset index. A smaller distance speeds up look-ups and takes more "
        "memory.",
        at_least(0),
        ("log.index.interval.bytes",),
    ),
    ConfigKey(
        "internal.segment.bytes",
        ConfigType.INT,
        None,
        "Segment size without the lower limit of `segment.bytes`, which it overrides: for tests with many segments.",
        at_least(1),
        is_internal=True,
    ),
    ConfigKey(
        "leader.replication.throttled.replicas",
        ConfigType.LIST,
        [],
        "Leaders whose replication is throttled. Kept and shown; a single node replicates nothing.",
        THROTTLED_REPLICAS,
    ),
    ConfigKey(
        "local.retention.bytes",
        ConfigType.LONG,
        -2,
        "Local size limit of a tiered topic; -2 means `retention.bytes`. Kept and shown; there is no tiered storage "
        "here.",
        at_least(-2),
        ("log.local.retention.bytes",),
    ),
    ConfigKey(
        "local.retention.ms",
        ConfigType.LONG,
        -2,
        "Local time limit of a tiered topic; -2 means `retention.ms`. Kept and shown; there is no tiered storage here.",
        at_least(-2),
        ("log.local.retention.ms",),
    ),
    ConfigKey(
        "max.compaction.lag.ms",
        ConfigType.LONG,
        LONG_MAX,
        "Longest time that a record of a compacted topic may wait for the cleaner, regardless of the dirty ratio.",
        at_least(1),
        ("log.cleaner.max.compaction.lag.ms",),
    ),
    ConfigKey(
        "max.message.bytes",
        ConfigType.INT,
        1_048_588,
        "Largest record batch that the topic accepts, in its stored, compressed form.",
        at_least(0),
        ("message.max.bytes",),
    ),
    ConfigKey(
        "message.timestamp.after.max.ms",
        ConfigType.LONG,
        3_600_000,
        "How far a record's timestamp may lie ahead of the broker's clock. Not applied with `LogAppendTime`.",
        at_least(0),
        ("log.message.timestamp.after.max.ms",),
    ),
    ConfigKey(
        "message.timestamp.before.max.ms",
        ConfigType.LONG,
        LONG_MAX,
        "How far a record's timestamp may lie behind the broker's clock. Not applied with `LogAppendTime`.",
        at_least(0),
        ("log.message.timestamp.before.max.ms",),
    ),
    ConfigKey(
        "message.timestamp.type",
        ConfigType.STRING,
        "CreateTime",
        "Whose clock stamps records: the producer's (`CreateTime`) or the broker's (`LogAppendTime`).",
        any_of("CreateTime", "LogAppendTime"),
        ("log.message.timestamp.type",),
    ),
    ConfigKey(
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        0.5,
        "Share of a log that must be uncleaned before it is cleaned. A lower value cleans more often and wastes less "
        "space.",
        between(0, 1),
        ("log.cleaner.min.cleanable.ratio",),
    ),
    ConfigKey(
        "min.compaction.lag.ms",
        ConfigType.LONG,
        0,
        "The shortest time that a record stays uncompacted after it was written.",
        at_least(0),
        ("log.cleaner.min.compaction.lag.ms",),
    ),
    ConfigKey(
        "min.insync.replicas",
        ConfigType.INT,
        1,
        "Replicas that must hold a record before a produce with acks=all is acknowledged. A single node has one, which counts as "
        "`diamant.replication.factor.max`: with a higher value, such a produce is refused with NOT_ENOUGH_REPLICAS.",
        at_least(1),
        ("min.insync.replicas",),
    ),
    ConfigKey(
        "preallocate",
        ConfigType.BOOLEAN,
        False,
        "Reserve a segment's whole size on disk when it is created.",
        synonyms=("log.preallocate",),
    ),
    ConfigKey(
        "remote.log.copy.disable",
        ConfigType.BOOLEAN,
        False,
        "Stops the upload of a tiered topic. Kept and shown; there is no tiered storage here.",
    ),
    ConfigKey(
        "remote.log.delete.on.disable",
        ConfigType.BOOLEAN,
        False,
        "Deletes the remote part of a topic whose tiering is switched off. Kept and shown; there is no tiered storage "
        "here.",
    ),
    ConfigKey(
        "remote.storage.enable",
        ConfigType.BOOLEAN,
        False,
        "Tiered storage. `true` is refused, as by a Kafka broker whose tiered storage is off.",
    ),
    ConfigKey(
        "retention.bytes",
        ConfigType.LONG,
        -1,
        "Size to which the `delete` policy cuts each partition, oldest segments first; -1: no limit.",
        synonyms=("log.retention.bytes",),
    ),
    ConfigKey(
        "retention.ms",
        ConfigType.LONG,
        604_800_000,
        "Age at which the `delete` policy removes a segment, by its newest timestamp; -1: no limit.",
        at_least(-1),
        ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ),
    ConfigKey(
        "segment.bytes",
        ConfigType.INT,
        1 << 30,
        "Size at which a segment is closed and the next one created. Retention and cleaning work on closed segments "
        "only.",
        at_least(1 << 20),
        ("log.segment.bytes",),
    ),
    ConfigKey(
        "segment.index.bytes",
        ConfigType.INT,
        10 << 20,
        "Largest size of a segment's offset index and time index; a full index closes the segment.",
        at_least(4),
        ("log.index.size.max.bytes",),
    ),
    ConfigKey(
        "segment.jitter.ms",
        ConfigType.LONG,
        0,
        "Maximum random reduction of `segment.ms`, so that not all segments close at once.",
        at_least(0),
        ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ),
    ConfigKey(
        "segment.ms",
        ConfigType.LONG,
        604_800_000,
        "Age at which a segment is closed even if it is not full.",
        at_least(1),
        ("log.roll.ms", "log.roll.hours"),
    ),
    ConfigKey(
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        False,
        "Whether an out-of-sync replica may become leader. Kept and shown; a single node elects no leader.",
        synonyms=("unclean.leader.election.enable",),
    ),
)

TOPIC_CONFIGS: Mapping[str, ConfigKey] = {key.name: key for key in _KEYS}
"""The table, by name, in alphabetical order."""
