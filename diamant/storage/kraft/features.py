"""The features of a cluster: their names, the levels that Diamant supports, and the levels for a new directory.

A feature has a name and a level, which is finalized in the metadata log (FeatureLevelRecord). `metadata.version` determines the
versions of the records themselves. A broker refuses to open a log with a level above those that it supports.
"""

from __future__ import annotations

from collections.abc import Mapping

from diamant.protocol.kraft.records import (
    MAX_METADATA_VERSION,
    MIN_METADATA_VERSION,
    FeatureLevelRecord,
    FeatureRange,
    MetadataRecord,
)

METADATA_VERSION = "metadata.version"
GROUP_VERSION = "group.version"
TRANSACTION_VERSION = "transaction.version"
SHARE_VERSION = "share.version"
ELIGIBLE_LEADER_REPLICAS_VERSION = "eligible.leader.replicas.version"

BROKERS_FEATURE = "diamant.brokers (fold them: diamant log fold-brokers)"
"""The feature of a directory whose partitions are on several brokers of one process; its level is the number of brokers.

Kafka does not know the feature and so refuses to open the directory, whose partitions would be led by brokers that do not exist.
Kafka's error message shows the feature's name, so the name states the remedy.
"""

MIN_INSYNC_REPLICAS = "min.insync.replicas"
"""With eligible leader replicas, this configuration is set for the whole cluster."""

FIRST_WITH_TRANSACTIONS = 13
"""The first metadata.version (3.6-IV1) in which several batches can form one atomic change."""
FIRST_WITH_DIRECTORIES = 17
"""The first metadata.version (3.7-IV2) in which a partition's records name its log directories."""
FIRST_WITH_ELIGIBLE_LEADER_REPLICAS = 23
"""The first metadata.version (4.0-IV1) that allows level 1 of `eligible.leader.replicas.version`."""
FIRST_WITH_HOST_RANGES = 32
"""The first metadata.version (4.4-IV1) in which the host of an ACL can be a range of addresses (KIP-1276)."""
FIRST_OF_4_4 = 31
"""The first metadata.version of Kafka 4.4, whose formatter writes the features into the same file as the voters (KIP-1170)."""

_LEVEL_NAMES: Mapping[int, str] = {MIN_METADATA_VERSION: "3.3-IV3", MAX_METADATA_VERSION: "4.4-IV2", 34: "4.5-IV0"}
"""The names (`MetadataVersion`) of those levels of `metadata.version` that appear in error messages."""

_LEVELS_WITH_NEW_RECORDS = (7, 8, 11, 13, 14, 15, 17, 23, 30, 32, 33)
"""The levels of `metadata.version` that changed the metadata records (`MetadataVersion.didMetadataChange`)."""

SUPPORTED_FEATURES: Mapping[str, tuple[int, int]] = {
    METADATA_VERSION: (MIN_METADATA_VERSION, MAX_METADATA_VERSION),
    GROUP_VERSION: (0, 1),
    TRANSACTION_VERSION: (0, 2),
    "kraft.version": (0, 1),
    ELIGIBLE_LEADER_REPLICAS_VERSION: (0, 1),
    SHARE_VERSION: (0, 2),
    "streams.version": (0, 1),
}
"""The lowest and highest levels with which we open a log, as in Kafka 4.4. Streams groups and the dead letter queues of share
groups (level 2) are not served, but a log in which they are enabled is read and continued."""

_FEATURES_OF_4_3: Mapping[str, int] = {
    METADATA_VERSION: 30,
    ELIGIBLE_LEADER_REPLICAS_VERSION: 1,
    GROUP_VERSION: 1,
    SHARE_VERSION: 1,
    "streams.version": 1,
    TRANSACTION_VERSION: 2,
}

DEFAULT_RELEASE = "4.3"
RELEASES: Mapping[str, Mapping[str, int]] = {
    DEFAULT_RELEASE: _FEATURES_OF_4_3,
    "4.4": {**_FEATURES_OF_4_3, METADATA_VERSION: 33, SHARE_VERSION: 2},
}
"""The features of a new directory for each Kafka release, as that release's `kafka-storage format` writes them; older releases
cannot open the directory. Diamant does not serve streams groups, but a Kafka that opens the directory may.
"""

_ALWAYS_REGISTERED = (METADATA_VERSION, GROUP_VERSION, TRANSACTION_VERSION, "kraft.version")


def unsupported_feature(name: str, level: int) -> str | None:
    """Return the reason why a finalized level is not supported; None if it is supported."""
    if level == 0 or name == BROKERS_FEATURE:
        return None
    if name not in SUPPORTED_FEATURES:
        return f"feature {name} is at level {level}, and no feature of that name is known up to Kafka 4.4"
    lowest, highest = SUPPORTED_FEATURES[name]
    if not lowest <= level <= highest:
        shown = [_shown(name, one) for one in (level, lowest, highest)]
        return "feature {} is at level {}, supported are {} to {}".format(name, *shown)
    return None


def _shown(name: str, level: int) -> str:
    return f"{level} ({_LEVEL_NAMES[level]})" if name == METADATA_VERSION and level in _LEVEL_NAMES else str(level)


def may_lose_metadata(present: int, lower: int) -> bool:
    """Return whether some records written at level `present` of `metadata.version` may not exist at level `lower`."""
    return any(lower < level <= present for level in _LEVELS_WITH_NEW_RECORDS)


def feature_records(levels: Mapping[str, int]) -> list[MetadataRecord]:
    """Return records that set the feature levels above 0, in Kafka's order: `metadata.version` first."""
    names_in_order = sorted(levels, key=lambda name: (name != METADATA_VERSION, name))
    return [FeatureLevelRecord(name=name, feature_level=levels[name]) for name in names_in_order if levels[name]]


def registered_ranges(finalized: Mapping[str, int]) -> tuple[FeatureRange, ...]:
    """Return the feature ranges for the registration of a broker, which must cover all finalized levels."""
    register = [name for name in SUPPORTED_FEATURES if name in _ALWAYS_REGISTERED or name in finalized]
    return tuple(FeatureRange(name, *SUPPORTED_FEATURES[name]) for name in register)
