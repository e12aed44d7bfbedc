"""The table of topic configurations: the settings of a log (`LogConfig`), and those that no log needs.

The first source that is set wins: the topic's own value (ConfigRecord in the metadata log), the broker's synonym
(``log.segment.bytes`` for ``segment.bytes``), the default.
"""

from __future__ import annotations

from collections.abc import Mapping

from diamant.storage.config_key import THROTTLED_REPLICAS, ConfigKey, ConfigType, at_least, settings_of
from diamant.storage.segments.log_config import LogConfig

_OTHERS = (
    ConfigKey(
        "errors.deadletterqueue.group.enable",
        ConfigType.BOOLEAN,
        False,
        "Whether the topic may take the undeliverable records of share groups. Kept and shown; such records are not copied.",
    ),
    ConfigKey(
        "follower.replication.throttled.replicas",
        ConfigType.LIST,
        [],
        "Followers whose replication is throttled. Kept and shown; nothing is replicated.",
        THROTTLED_REPLICAS,
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
        "Leaders whose replication is throttled. Kept and shown; nothing is replicated.",
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
        "remote.copy.lag.bytes",
        ConfigType.LONG,
        -1,
        "Bytes of a tiered topic that are not uploaded yet. Kept and shown; there is no tiered storage here.",
        at_least(-1),
        ("log.remote.copy.lag.bytes",),
    ),
    ConfigKey(
        "remote.copy.lag.ms",
        ConfigType.LONG,
        0,
        "Age from which a segment of a tiered topic is uploaded. Kept and shown; there is no tiered storage here.",
        at_least(-1),
        ("log.remote.copy.lag.ms",),
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
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        False,
        "Whether an out-of-sync replica may become leader when no in-sync replica is up. With several brokers, no leader lacks "
        "records, since all share one log. A single broker elects no leaders.",
        synonyms=("unclean.leader.election.enable",),
    ),
)
"""Configurations that no log needs: for replicas, tiers and elections, and a segment size that is merged into `segment_bytes`."""

TOPIC_CONFIGS: Mapping[str, ConfigKey] = {
    key.name: key for key in sorted((*settings_of(LogConfig), *_OTHERS), key=lambda key: key.name)
}
"""The table, by name, in alphabetical order."""
