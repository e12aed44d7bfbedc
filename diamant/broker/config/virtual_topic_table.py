"""Configurations of topics that are Diamant's and are never stored: a command, and what the cleaner knows.

They are there for clients that have nothing but Kafka's admin client. `diamant.compact=now`, sent by IncrementalAlterConfigs,
compacts the topic; DescribeConfigs shows the others, read-only, for compacted topics (`diamant.describe=false` hides all).
Tools that copy a topic's configurations send them back: CreateTopics and AlterConfigs leave them out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from diamant.broker.config.config_key import ConfigSource, ConfigType, DescribedConfig

COMPACT = "diamant.compact"
NOW = "now"


class _Row(NamedTuple):
    type: ConfigType
    documentation: str


ROWS: Mapping[str, _Row] = {
    COMPACT: _Row(
        ConfigType.STRING,
        "Set to `now` by IncrementalAlterConfigs, compacts the topic and answers when that is done. Never stored.",
    ),
    "diamant.dirty.ratio": _Row(
        ConfigType.DOUBLE, "Share of the closed segments' bytes that no round has been over, of the dirtiest partition."
    ),
    "diamant.dirty.records": _Row(
        ConfigType.LONG, "Records that no round has been over, those in active segments included; without markers."
    ),
    "diamant.held.back": _Row(
        ConfigType.STRING, "Partitions in which an open transaction keeps the cleaner out, and from which offset on."
    ),
    "diamant.last.cleaned": _Row(ConfigType.STRING, "When the last round ended in any partition, in UTC; or `never`."),
    "diamant.live.records": _Row(
        ConfigType.LONG, "Records with a value in the part that is clean, where each key has one record."
    ),
    "diamant.markers": _Row(ConfigType.LONG, "Markers of transactions in the whole topic; they count as no records."),
    "diamant.oldest.superseded": _Row(
        ConfigType.STRING,
        "Since when something superseded may be in the log, in UTC: the first append that no round has been over; or `none`.",
    ),
    "diamant.removed.records": _Row(
        ConfigType.LONG, "Records that rounds have removed since the broker's start; without markers."
    ),
    "diamant.tombstones": _Row(ConfigType.LONG, "Tombstones in the clean part, which wait for their delete horizons."),
    "diamant.uncleanable.partitions": _Row(
        ConfigType.STRING,
        "Partitions that the cleaner leaves alone because of an error, or a damaged segment of which: how many, and which files.",
    ),
}
"""By name, in alphabetical order."""

READ_ONLY = frozenset(ROWS) - {COMPACT}


def described(name: str, value: str) -> DescribedConfig:
    """One entry of a DescribeConfigs answer. Its source is the default: tools that copy what was set leave it alone."""
    row = ROWS[name]
    return DescribedConfig(
        name=name,
        value=value,
        source=ConfigSource.DEFAULT_CONFIG,
        type=row.type,
        is_read_only=name in READ_ONLY,
        is_sensitive=False,
        synonyms=(),
        documentation=row.documentation,
    )
