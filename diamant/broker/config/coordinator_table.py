"""The part of the broker's table that configures the group and transaction coordinators."""

from __future__ import annotations

from diamant.storage.config_key import INT_MAX, ConfigType, any_of, at_least, between, list_of, setting

_BOOLEAN, _STRING, _INT, _SHORT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.SHORT
_LIST = ConfigType.LIST


def _one_copy(kafkas_default: int) -> str:
    return f" A single broker stores one copy, regardless of this value. Kafka's default is {kafkas_default}."


def _of_several(kafkas_default: int) -> str:
    return f" At most one for each of `diamant.brokers`. The default for several brokers is Kafka's, {kafkas_default}."


class CoordinatorSettings:
    """The configurations of the group and transaction coordinators."""

    # Classic groups
    group_min_session_timeout_ms: int = setting(
        _INT, 6_000, "Shortest `session.timeout.ms` that a classic member may request.", at_least(0)
    )
    group_max_session_timeout_ms: int = setting(
        _INT, 1_800_000, "Longest `session.timeout.ms` that a classic member may request.", at_least(0)
    )
    group_initial_rebalance_delay_ms: int = setting(
        _INT,
        0,
        "How long an empty classic group waits for more members before its first generation. Kafka's default is 3000; "
        "its `server.properties` sets 0.",
        at_least(0),
    )
    group_max_size: int = setting(_INT, INT_MAX, "Maximum number of members of a classic group.", at_least(1))
    group_coordinator_rebalance_protocols: list[str] = setting(
        _LIST,
        ["classic", "consumer"],
        "Group protocols to serve. `share.version` enables share groups, too, as in Kafka. `streams` is accepted but not served.",
        list_of("classic", "consumer", "share", "streams"),
    )
    # Consumer groups (KIP-848)
    group_consumer_session_timeout_ms: int = setting(
        _INT, 45_000, "Time after which a silent member is removed from a consumer group.", at_least(1)
    )
    group_consumer_min_session_timeout_ms: int = setting(
        _INT, 45_000, "Shortest session timeout that a group's own `consumer.session.timeout.ms` may set.", at_least(1)
    )
    group_consumer_max_session_timeout_ms: int = setting(
        _INT, 60_000, "Longest session timeout that a group's own `consumer.session.timeout.ms` may set.", at_least(1)
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        _INT, 5_000, "Interval of the heartbeats of members of consumer groups.", at_least(1)
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        _INT, 5_000, "Shortest interval that a group's own `consumer.heartbeat.interval.ms` may set.", at_least(1)
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        _INT, 15_000, "Longest interval that a group's own `consumer.heartbeat.interval.ms` may set.", at_least(1)
    )
    group_consumer_assignment_interval_ms: int = setting(
        _INT,
        1_000,
        "Shortest time between two target assignments of a consumer group (KIP-1263). New members wait until this time is over.",
        at_least(0),
        is_dynamic=True,
    )
    group_consumer_min_assignment_interval_ms: int = setting(
        _INT, 0, "Shortest interval that a group's own `consumer.assignment.interval.ms` may set.", at_least(0)
    )
    group_consumer_max_assignment_interval_ms: int = setting(
        _INT, 15_000, "Longest interval that a group's own `consumer.assignment.interval.ms` may set.", at_least(0)
    )
    group_consumer_max_size: int = setting(_INT, INT_MAX, "Maximum number of members of a consumer group.", at_least(1))
    group_consumer_assignors: list[str] = setting(
        _LIST,
        ["uniform", "range"],
        "Assignors that members of consumer groups may choose; the first is the default.",
        list_of("uniform", "range"),
    )
    group_consumer_migration_policy: str = setting(
        _STRING,
        "bidirectional",
        "Directions in which groups with members may change between the classic and the consumer protocol.",
        any_of("disabled", "downgrade", "upgrade", "bidirectional"),
    )
    group_consumer_regex_refresh_interval_ms: int = setting(
        _INT,
        600_000,
        "Interval at which subscriptions by regular expression are resolved.",
        at_least(10_000),
        is_internal=True,
    )
    # Share groups (KIP-932)
    group_share_session_timeout_ms: int = setting(
        _INT, 45_000, "Time after which a silent member is removed from a share group.", at_least(1)
    )
    group_share_min_session_timeout_ms: int = setting(
        _INT, 45_000, "Shortest session timeout that a group's own `share.session.timeout.ms` may set.", at_least(1)
    )
    group_share_max_session_timeout_ms: int = setting(
        _INT, 60_000, "Longest session timeout that a group's own `share.session.timeout.ms` may set.", at_least(1)
    )
    group_share_heartbeat_interval_ms: int = setting(
        _INT, 5_000, "Interval of the heartbeats of members of share groups.", at_least(1)
    )
    group_share_min_heartbeat_interval_ms: int = setting(
        _INT, 5_000, "Shortest interval that a group's own `share.heartbeat.interval.ms` may set.", at_least(1)
    )
    group_share_max_heartbeat_interval_ms: int = setting(
        _INT, 15_000, "Longest interval that a group's own `share.heartbeat.interval.ms` may set.", at_least(1)
    )
    group_share_record_lock_duration_ms: int = setting(
        _INT, 30_000, "How long a member of a share group holds a record before others may get it.", at_least(1000)
    )
    group_share_min_record_lock_duration_ms: int = setting(
        _INT, 15_000, "Shortest time that a group's own `share.record.lock.duration.ms` may set.", at_least(1000)
    )
    group_share_max_record_lock_duration_ms: int = setting(
        _INT, 60_000, "Longest time that a group's own `share.record.lock.duration.ms` may set.", at_least(1000)
    )
    group_share_delivery_count_limit: int = setting(
        _INT, 5, "Deliveries of a record to members of a share group after which the record is archived.", at_least(2)
    )
    group_share_min_delivery_count_limit: int = setting(
        _INT, 2, "Lowest number that a group's own `share.delivery.count.limit` may set.", at_least(2)
    )
    group_share_max_delivery_count_limit: int = setting(
        _INT, 10, "Highest number that a group's own `share.delivery.count.limit` may set.", at_least(2)
    )
    group_share_partition_max_record_locks: int = setting(
        _INT, 2_000, "Maximum number of records in flight in a partition of a share group.", at_least(100)
    )
    group_share_min_partition_max_record_locks: int = setting(
        _INT, 100, "Lowest number that a group's own `share.partition.max.record.locks` may set.", at_least(100)
    )
    group_share_max_partition_max_record_locks: int = setting(
        _INT, 4_000, "Highest number that a group's own `share.partition.max.record.locks` may set.", at_least(100)
    )
    group_share_assignment_interval_ms: int = setting(
        _INT, 1_000, "Shortest time between two target assignments of a share group.", at_least(0), is_dynamic=True
    )
    group_share_min_assignment_interval_ms: int = setting(
        _INT, 0, "Shortest interval that a group's own `share.assignment.interval.ms` may set.", at_least(0)
    )
    group_share_max_assignment_interval_ms: int = setting(
        _INT, 15_000, "Longest interval that a group's own `share.assignment.interval.ms` may set.", at_least(0)
    )
    group_share_max_size: int = setting(_INT, 200, "Maximum number of members of a share group.", at_least(1))
    group_share_max_share_sessions: int = setting(
        _INT, 2_000, "Maximum number of share sessions kept at the same time.", at_least(1)
    )
    share_coordinator_state_topic_num_partitions: int = setting(
        _INT, 50, "Partitions of `__share_group_state` at its creation. Do not change it later.", at_least(1)
    )
    share_coordinator_state_topic_replication_factor: int = setting(
        _SHORT, 1, "Replicas of `__share_group_state`." + _of_several(3), at_least(1)
    )
    share_coordinator_state_topic_segment_bytes: int = setting(
        _INT, 104_857_600, "`segment.bytes` of `__share_group_state` at its creation.", at_least(1)
    )
    share_coordinator_snapshot_update_records_per_snapshot: int = setting(
        _INT, 500, "Updates of a share partition's state between two snapshots of it.", at_least(0)
    )
    # Offsets
    offset_metadata_max_bytes: int = setting(_INT, 4_096, "Longest metadata text of a committed offset.")
    offsets_retention_minutes: int = setting(
        _INT,
        10_080,
        "Retention time of the offsets of a group without members, and of topics that a group no longer reads.",
        at_least(1),
    )
    offsets_retention_check_interval_ms: int = setting(
        ConfigType.LONG, 600_000, "Interval of the check for offsets past `offsets.retention.minutes`.", at_least(1)
    )
    offsets_topic_num_partitions: int = setting(
        _INT,
        50,
        "Partitions of `__consumer_offsets` at its creation. Do not change it later: it determines the partition of a group.",
        at_least(1),
    )
    offsets_topic_replication_factor: int = setting(
        _SHORT, 1, "Replicas of `__consumer_offsets`." + _of_several(3), at_least(1)
    )
    offsets_topic_segment_bytes: int = setting(
        _INT, 104_857_600, "`segment.bytes` of `__consumer_offsets` at its creation.", at_least(1)
    )
    offsets_topic_compression_codec: int = setting(
        _INT, 0, "Codec of the batches in `__consumer_offsets`: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.", between(0, 4)
    )
    offsets_load_buffer_size: int = setting(_INT, 5_242_880, "Bytes of `__consumer_offsets` read at once.", at_least(1))
    # Transactions
    transactional_id_expiration_ms: int = setting(
        _INT, 604_800_000, "Time after which an unused transactional id is removed.", at_least(1)
    )
    transaction_max_timeout_ms: int = setting(
        _INT, 900_000, "Longest `transaction.timeout.ms` that a producer may request.", at_least(1)
    )
    transaction_state_log_num_partitions: int = setting(
        _INT, 50, "Partitions of `__transaction_state` at its creation. Do not change it later.", at_least(1)
    )
    transaction_state_log_replication_factor: int = setting(
        _SHORT, 1, "Replicas of `__transaction_state`." + _of_several(3), at_least(1)
    )
    transaction_state_log_min_isr: int = setting(
        _INT, 1, "In-sync replicas that a write to `__transaction_state` needs." + _one_copy(2), at_least(1)
    )
    transaction_state_log_segment_bytes: int = setting(
        _INT, 104_857_600, "`segment.bytes` of `__transaction_state` at its creation.", at_least(1)
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        _INT, 10_000, "Interval of the check for transactions past their timeout.", at_least(1)
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        _INT,
        3_600_000,
        "Interval of the check for transactional ids past `transactional.id.expiration.ms`.",
        at_least(1),
    )
    transaction_partition_verification_enable: bool = setting(
        _BOOLEAN,
        True,
        "Refuse transactional records for a partition that was not added to the transaction.",
        is_dynamic=True,
    )
    # Fetch sessions
    max_incremental_fetch_session_cache_slots: int = setting(
        _INT, 1_000, "Maximum number of fetch sessions (KIP-227) kept at the same time; 0: none.", at_least(0)
    )
