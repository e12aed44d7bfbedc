"""The features of a cluster: their names, the levels supported here, and the levels of a new directory.

A feature is a name with a level finalized in the metadata log (FeatureLevelRecord). `metadata.version` determines the versions
of the records themselves. A broker refuses to open a log with a level above its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from diamant.protocol.kraft.records import MAX_METADATA_VERSION, MIN_METADATA_VERSION, FeatureRange

METADATA_VERSION = "metadata.version"
TRANSACTION_VERSION = "transaction.version"
ELIGIBLE_LEADER_REPLICAS_VERSION = "eligible.leader.replicas.version"

FIRST_WITH_TRANSACTIONS = 13
"""The first metadata.version (3.6-IV1) in which several batches can be one change."""
FIRST_WITH_DIRECTORIES = 17
"""The first metadata.version (3.7-IV2) in which a partition names its log directory."""

SUPPORTED_FEATURES: Mapping[str, tuple[int, int]] = {
    METADATA_VERSION: (MIN_METADATA_VERSION, MAX_METADATA_VERSION),
    "group.version": (0, 1),
    TRANSACTION_VERSION: (0, 2),
    "kraft.version": (0, 1),
    ELIGIBLE_LEADER_REPLICAS_VERSION: (0, 1),
    "share.version": (0, 1),
    "streams.version": (0, 1),
}
"""The levels with which we open a log: those of Kafka 4.3. Share and streams groups are not served, but a log that allows
them is read and continued."""

BOOTSTRAP_FEATURES: Mapping[str, int] = {
    METADATA_VERSION: MAX_METADATA_VERSION,
    ELIGIBLE_LEADER_REPLICAS_VERSION: 1,
    "group.version": 1,
    "share.version": 1,
    "streams.version": 1,
    TRANSACTION_VERSION: 2,
}
"""Features of a new directory, as written by `kafka-storage format` of Kafka 4.3. Older versions of Kafka cannot open it.
Share and streams groups are not served here; they are included for a Kafka that opens the directory.
"""

_ALWAYS_REGISTERED = (METADATA_VERSION, "group.version", TRANSACTION_VERSION, "kraft.version")


def unsupported_feature(name: str, level: int) -> str | None:
    """Return the reason why a finalized level is not supported; None if it is."""
    if level == 0:
        return None
    if name not in SUPPORTED_FEATURES:
        return f"feature {name} is at level {level}, and no feature of that name is known up to Kafka 4.3"
    lowest, highest = SUPPORTED_FEATURES[name]
    if not lowest <= level <= highest:
        return f"feature {name} is at level {level}, supported are {lowest} to {highest}"
    return None


def registered_ranges(finalized: Mapping[str, int]) -> tuple[FeatureRange, ...]:
    """Return the ranges that a broker registers; they must cover all finalized levels."""
    register = [name for name in SUPPORTED_FEATURES if name in _ALWAYS_REGISTERED or name in finalized]
    return tuple(FeatureRange(name, *SUPPORTED_FEATURES[name]) for name in register)
