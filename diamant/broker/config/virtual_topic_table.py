"""Diamant's virtual topic configurations, which are never stored: a command, and the cleaner's state.

They serve programs that have only Kafka's admin client. IncrementalAlterConfigs with `diamant.compact=now` compacts the topic.
DescribeConfigs shows the others, read-only, for compacted topics; `diamant.describe=false` hides them. CreateTopics and
AlterConfigs refuse the command, but ignore the others, since tools that copy a topic's configurations send them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.storage.config_key import ConfigSource, ConfigType, DescribedConfig

COMPACT = "diamant.compact"
NOW = "now"


class _Row(NamedTuple):
    type: ConfigType
    documentation: str


ROWS: Mapping[str, _Row] = {
    COMPACT: _Row(
        ConfigType.STRING,
        "`now`, set with IncrementalAlterConfigs, compacts the topic; the response follows the compaction. Never stored.",
    ),
    "diamant.dirty.ratio": _Row(
        ConfigType.DOUBLE, "Share of bytes in closed segments that no round has cleaned yet, in the dirtiest partition."
    ),
    "diamant.dirty.records": _Row(
        ConfigType.LONG, "Records that no round has cleaned yet, including active segments but not markers."
    ),
    "diamant.held.back": _Row(
        ConfigType.STRING,
        "Partitions in which an open transaction blocks the cleaner, each with the first blocked offset.",
    ),
    "diamant.last.cleaned": _Row(ConfigType.STRING, "When the last round ended in any partition, in UTC; or `never`."),
    "diamant.live.records": _Row(
        ConfigType.LONG, "Records with a value in the clean part of the log, where each key has one record."
    ),
    "diamant.markers": _Row(ConfigType.LONG, "Transaction markers in the whole topic; not counted as records."),
    "diamant.oldest.superseded": _Row(
        ConfigType.STRING,
        "Earliest time of a superseded record in the log, in UTC: the first append that no round has cleaned yet; or `none`.",
    ),
    "diamant.removed.records": _Row(
        ConfigType.LONG, "Records removed by rounds since the broker's start, not counting markers."
    ),
    "diamant.tombstones": _Row(
        ConfigType.LONG, "Tombstones in the clean part of the log, which wait for their delete horizons."
    ),
    "diamant.uncleanable.partitions": _Row(
        ConfigType.STRING,
        "Partitions that the cleaner skips because of an error, and partitions with a damaged segment: their number and files.",
    ),
}
"""By name, in alphabetical order."""

READ_ONLY = frozenset(ROWS) - {COMPACT}


def refuse_command(text: str | None) -> None:
    """Raise KafkaError(INVALID_CONFIG) if a request that cannot run commands sets `diamant.compact` to a non-empty string."""
    if text:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{COMPACT}={text}: only IncrementalAlterConfigs of an existing topic compacts it. This request sets all "
            "configurations of a topic, and nothing was changed. HTTP and `diamant compact` can also compact the topic",
        )


def described(name: str, value: str) -> DescribedConfig:
    """Return an entry of a DescribeConfigs response. Its source is the default, so tools skip it when they copy set values."""
    row = ROWS[name]
    return DescribedConfig(
        name=name,
        value=value,
        source=ConfigSource.DEFAULT_CONFIG,
        type=row.type,
        is_read_only=name in READ_ONLY,
        documentation=row.documentation,
    )
