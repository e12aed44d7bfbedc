"""The features of a cluster: which there are, which levels this code understands, and what a new directory begins with.

A feature is a name and a level that the metadata log has finalized (FeatureLevelRecord). `metadata.version` rules the
versions of the records themselves; a level above what a broker knows keeps it from opening the log.
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
"""The first metadata.version (3.7-IV2) in which a partition names the log directory it is in."""

SUPPORTED_FEATURES: Mapping[str, tuple[int, int]] = {
    METADATA_VERSION: (MIN_METADATA_VERSION, MAX_METADATA_VERSION),
    "group.version": (0, 1),
    TRANSACTION_VERSION: (0, 2),
    "kraft.version": (0, 1),
    ELIGIBLE_LEADER_REPLICAS_VERSION: (0, 1),
    "share.version": (0, 1),
    "streams.version": (0, 1),
}
"""The levels with which we open a log: those of Kafka 4.3. Not all mean something here: share and streams groups are
not served, but a log that allows them is read and carried on."""

BOOTSTRAP_FEATURES: Mapping[str, int] = {
    METADATA_VERSION: MAX_METADATA_VERSION,
    ELIGIBLE_LEADER_REPLICAS_VERSION: 1,
    "group.version": 1,
    "share.version": 1,
    "streams.version": 1,
    TRANSACTION_VERSION: 2,
}
"""Features of a new directory, as `kafka-storage format` of Kafka 4.3 writes them. A Kafka before 4.3 does not open it.
Share and streams groups are for the Kafka that does; here they are not served.
"""

_ALWAYS_REGISTERED = (METADATA_VERSION, "group.version", TRANSACTION_VERSION, "kraft.version")


def unsupported_feature(name: str, level: int) -> str | None:
    """Return why a finalized level cannot be worked with; None if it can."""
    if level == 0:
        return None
    if name not in SUPPORTED_FEATURES:
        return f"feature {name} is at level {level}, and no feature of that name is known up to Kafka 4.3"
    lowest, highest = SUPPORTED_FEATURES[name]
    if not lowest <= level <= highest:
        return f"feature {name} is at level {level}, supported are {lowest} to {highest}"
    return None


def registered_ranges(finalized: Mapping[str, int]) -> tuple[FeatureRange, ...]:
    """Return the ranges that a broker registers: they must cover all that is finalized."""
    register = [name for name in SUPPORTED_FEATURES if name in _ALWAYS_REGISTERED or name in finalized]
    return tuple(FeatureRange(name, *SUPPORTED_FEATURES[name]) for name in register)
