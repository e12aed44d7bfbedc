"""The part of the broker's table that configures the group and transaction coordinators."""

from __future__ import annotations

from diamant.storage.config_key import INT_MAX, ConfigKey, ConfigType, any_of, at_least, between, list_of

_BOOLEAN, _STRING, _INT, _SHORT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.SHORT
_LIST = ConfigType.LIST


def _one_copy(kafkas_default: int) -> str:
    return f" A single broker stores one copy, regardless of this value. Kafka's default is {kafkas_default}."


COORDINATOR_CONFIGS = (
    # Classic groups
    ConfigKey(
        "group.min.session.timeout.ms",
        _INT,
        6_000,
        "Shortest `session.timeout.ms` that a classic member may request.",
        at_least(0),
    ),
    ConfigKey(
        "group.max.session.timeout.ms",
        _INT,
        1_800_000,
        "Longest `session.timeout.ms` that a classic member may request.",
        at_least(0),
    ),
    ConfigKey(
        "group.initial.rebalance.delay.ms",
        _INT,
        0,
        "How long an empty classic group waits for more members before its first generation. Kafka's default is 3000; "
        "its `server.properties` sets 0.",
        at_least(0),
    ),
    ConfigKey("group.max.size", _INT, INT_MAX, "Most members of a classic group.", at_least(1)),
    ConfigKey(
        "group.coordinator.rebalance.protocols",
        _LIST,
        ["classic", "consumer"],
        "Group protocols to serve. `streams` and `share` are accepted but not served.",
        list_of("classic", "consumer", "share", "streams"),
    ),
    # Consumer groups (KIP-848)
    ConfigKey(
        "group.consumer.session.timeout.ms",
        _INT,
        45_000,
        "Time after which a silent member is removed from a consumer group.",
        at_least(1),
    ),
    ConfigKey(
        "group.consumer.min.session.timeout.ms",
        _INT,
        45_000,
        "Shortest session timeout that a group's own `consumer.session.timeout.ms` may set.",
        at_least(1),
    ),
    ConfigKey(
        "group.consumer.max.session.timeout.ms",
        _INT,
        60_000,
        "Longest session timeout that a group's own `consumer.session.timeout.ms` may set.",
        at_least(1),
    ),
    ConfigKey(
        "group.consumer.heartbeat.interval.ms",
        _INT,
        5_000,
        "Interval of the heartbeats of members of consumer groups.",
        at_least(1),
    ),
    ConfigKey(
        "group.consumer.min.heartbeat.interval.ms",
        _INT,
        5_000,
        "Shortest interval that a group's own `consumer.heartbeat.interval.ms` may set.",
        at_least(1),
    ),
    ConfigKey(
        "group.consumer.max.heartbeat.interval.ms",
        _INT,
        15_000,
        "Longest interval that a group's own `consumer.heartbeat.interval.ms` may set.",
        at_least(1),
    ),
    ConfigKey(
        "group.consumer.assignment.interval.ms",
        _INT,
        1_000,
        "Shortest time between two target assignments of a consumer group (KIP-1263); new members wait for theirs until it "
        "is over.",
        at_least(0),
        is_dynamic=True,
    ),
    ConfigKey(
        "group.consumer.min.assignment.interval.ms",
        _INT,
        0,
        "Shortest interval that a group's own `consumer.assignment.interval.ms` may set.",
        at_least(0),
    ),
    ConfigKey(
        "group.consumer.max.assignment.interval.ms",
        _INT,
        15_000,
        "Longest interval that a group's own `consumer.assignment.interval.ms` may set.",
        at_least(0),
    ),
    ConfigKey("group.consumer.max.size", _INT, INT_MAX, "Most members of a consumer group.", at_least(1)),
    ConfigKey(
        "group.consumer.assignors",
        _LIST,
        ["uniform", "range"],
        "Assignors that members of consumer groups may choose; the first is the default.",
        list_of("uniform", "range"),
    ),
    ConfigKey(
        "group.consumer.migration.policy",
        _STRING,
        "bidirectional",
        "Allowed direction of change between the classic and the consumer protocol, for groups with members.",
        any_of("disabled", "downgrade", "upgrade", "bidirectional"),
    ),
    ConfigKey(
        "group.consumer.regex.refresh.interval.ms",
        _INT,
        600_000,
        "Interval at which subscriptions by regular expression are resolved.",
        at_least(10_000),
        is_internal=True,
    ),
    # Offsets
    ConfigKey("offset.metadata.max.bytes", _INT, 4_096, "Longest metadata text of a committed offset."),
    ConfigKey(
        "offsets.retention.minutes",
        _INT,
        10_080,
        "Retention time of the offsets of a group without members, and of topics that a group no longer reads.",
        at_least(1),
    ),
    ConfigKey(
        "offsets.retention.check.interval.ms",
        ConfigType.LONG,
        600_000,
        "Interval of the check for offsets past `offsets.retention.minutes`.",
        at_least(1),
    ),
    ConfigKey(
        "offsets.topic.num.partitions",
        _INT,
        50,
        "Partitions of `__consumer_offsets` at its creation. Do not change it later: it determines the partition of a group.",
        at_least(1),
    ),
    ConfigKey(
        "offsets.topic.replication.factor",
        _SHORT,
        1,
        "Replicas of `__consumer_offsets`." + _one_copy(3),
        at_least(1),
    ),
    ConfigKey(
        "offsets.topic.segment.bytes",
        _INT,
        104_857_600,
        "`segment.bytes` of `__consumer_offsets` at its creation.",
        at_least(1),
    ),
    ConfigKey(
        "offsets.topic.compression.codec",
        _INT,
        0,
        "Codec of the batches in `__consumer_offsets`: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
        between(0, 4),
    ),
    ConfigKey("offsets.load.buffer.size", _INT, 5_242_880, "Bytes of `__consumer_offsets` read at once.", at_least(1)),
    # Transactions
    ConfigKey(
        "transactional.id.expiration.ms",
        _INT,
        604_800_000,
        "Time after which an unused transactional id is removed.",
        at_least(1),
    ),
    ConfigKey(
        "transaction.max.timeout.ms",
        _INT,
        900_000,
        "Longest `transaction.timeout.ms` that a producer may request.",
        at_least(1),
    ),
    ConfigKey(
        "transaction.state.log.num.partitions",
        _INT,
        50,
        "Partitions of `__transaction_state` at its creation. Do not change it later.",
        at_least(1),
    ),
    ConfigKey(
        "transaction.state.log.replication.factor",
        _SHORT,
        1,
        "Replicas of `__transaction_state`." + _one_copy(3),
        at_least(1),
    ),
    ConfigKey(
        "transaction.state.log.min.isr",
        _INT,
        1,
        "In-sync replicas that a write to `__transaction_state` needs." + _one_copy(2),
        at_least(1),
    ),
    ConfigKey(
        "transaction.state.log.segment.bytes",
        _INT,
        104_857_600,
        "`segment.bytes` of `__transaction_state` at its creation.",
        at_least(1),
    ),
    ConfigKey(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        _INT,
        10_000,
        "Interval of the check for transactions past their timeout.",
        at_least(1),
    ),
    ConfigKey(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        _INT,
        3_600_000,
        "Interval of the check for transactional ids past `transactional.id.expiration.ms`.",
        at_least(1),
    ),
    ConfigKey(
        "transaction.partition.verification.enable",
        _BOOLEAN,
        True,
        "Refuse transactional records for a partition that was not added to the transaction.",
        is_dynamic=True,
    ),
    # Fetch sessions
    ConfigKey(
        "max.incremental.fetch.session.cache.slots",
        _INT,
        1_000,
        "Most fetch sessions (KIP-227) kept at the same time; 0: none.",
        at_least(0),
    ),
)
