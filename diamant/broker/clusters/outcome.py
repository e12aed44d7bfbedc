"""The facts that the certificate of an erasure on a Kafka cluster states: what was done, and what each replica's read found.

All values have JSON types, except for tuples; `to_fields` and `from_fields` convert them for the register.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from diamant.cleaner.evidence.certificates.cluster_claims import replica_name

if TYPE_CHECKING:
    from diamant.json_types import JsonObject


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A record of the key that a read found. `value_bytes` is the size of its value, None for a tombstone."""

    offset: int
    timestamp_ms: int
    value_bytes: int | None
    horizon_ms: int | None = None
    """The time from which a cleaning may remove the tombstone; None if no cleaning has set it yet."""


@dataclass(frozen=True, slots=True)
class ReplicaRead:
    """The read of one replica, from `from_offset` (its log start) up to `to_offset` (its high watermark), exclusive."""

    topic: str
    partition: int
    broker: int
    is_leader: bool
    is_in_sync: bool
    from_offset: int
    to_offset: int
    began_ms: int
    ended_ms: int
    bytes: int = 0
    batches: int = 0
    records: int = 0
    segments: tuple[int, ...] = ()
    """The offset of the first batch of each segment, ascending; the last is the active one."""
    planted: int = 0
    """The number of needles planted into a copy of the broker's response. The search must find all of them."""
    planted_found: int = 0
    values: tuple[KeyRecord, ...] = ()
    """Records of the key that have a value and are below the tombstone: they still have to be removed."""
    tombstones: tuple[KeyRecord, ...] = ()
    written_since: tuple[KeyRecord, ...] = ()
    """Records of the key that have a value and are above the tombstone: another producer wrote them, so they stay."""
    same_bytes: tuple[int, ...] = ()
    """Offsets of at most `MAX_LISTED` records of other keys that contain the bytes of the key or of an erased value."""
    same_bytes_not_listed: int = 0
    problem: str = ""
    """Why the replica was not read in full; "" if it was."""

    @property
    def is_clean(self) -> bool:
        """True if the replica was read in full, the search found all planted needles, and no value of the key remains."""
        return not self.problem and not self.values and self.planted_found == self.planted


@dataclass(frozen=True, slots=True)
class ErasedPartition:
    """One partition of an erasure."""

    topic: str
    partition: int
    values: int
    """The number of the key's values found before anything was changed."""
    tombstone_offset: int | None
    """The offset of the last tombstone written, or of one that was found and is now gone; None if there was neither."""
    below_offset: int
    """The end of the claims, exclusive: the offset after the first tombstone written, or the log end when the search began."""
    replicas: tuple[int, ...]
    """The brokers whose replicas must be read."""

    @property
    def is_found(self) -> bool:
        """True if the partition had a value, or a tombstone that is gone or was replaced by a later one."""
        return bool(self.values) or self.tombstone_offset is not None


@dataclass(frozen=True, slots=True)
class ErasureOutcome:
    """The progress or result of an erasure on a Kafka cluster."""

    id: str
    cluster_id: str
    topics: tuple[str, ...]
    topic_ids: Mapping[str, str]
    """Topic ids by name. A topic that was deleted and created again has another id."""
    key_digest: str
    """HMAC-SHA-256 of the key with the signing identity's secret, in hexadecimal."""
    reason: str
    reference: str
    started_ms: int
    partitions: tuple[ErasedPartition, ...] = ()
    reads: tuple[ReplicaRead, ...] = ()
    """The last read of each replica that was read."""
    file_delay_lowered: tuple[str, ...] = ()
    """Topics whose `file.delete.delay.ms` was 0 whenever segments may have been replaced; empty after a resumed run."""
    tombstones_now: bool = False
    values_searched_for: int = 0
    """The number of values whose copies were looked for in other records."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Why replicas are unread or not clean, by `topic-partition@broker`; empty once the erasure is closed."""

    @property
    def state(self) -> str:
        """`not-certified` (open), `unreadable` (tombstones remain), `key-unreadable` (they are gone) or `nothing-matched`."""
        if self.is_open:
            return "not-certified"
        if any(one.tombstones for one in self.reads):
            return "unreadable"
        return "key-unreadable" if any(one.is_found for one in self.partitions) else "nothing-matched"

    @property
    def is_open(self) -> bool:
        """True while a replica is unread or not clean."""
        return bool(self.missing)

    @property
    def missing(self) -> dict[str, str]:
        """The replicas that keep the erasure open, as `topic-partition@broker`, each with its reason."""
        done = {(one.topic, one.partition, one.broker) for one in self.reads if one.is_clean}
        found = {}
        for part in self.partitions:
            for broker in part.replicas:
                if (part.topic, part.partition, broker) not in done:
                    name = replica_name(part.topic, part.partition, broker)
                    found[name] = self.problems.get(name, "not read")
        return found

    def to_fields(self) -> JsonObject:
        """Return the JSON object that `from_fields` reads."""
        return asdict(self)

    @classmethod
    def from_fields(cls, found: Mapping[str, Any]) -> ErasureOutcome:
        """Undo `to_fields`. Raises KeyError, TypeError or ValueError for any other input."""
        reads = tuple(_read(one) for one in found["reads"])
        partitions = tuple(
            ErasedPartition(**{**one, "replicas": tuple(one["replicas"])}) for one in found["partitions"]
        )
        lists = {name: tuple(found[name]) for name in ("topics", "file_delay_lowered")}
        return cls(**{**found, **lists, "reads": reads, "partitions": partitions})


def _read(found: Mapping[str, Any]) -> ReplicaRead:
    records = {
        name: tuple(KeyRecord(**one) for one in found[name]) for name in ("values", "tombstones", "written_since")
    }
    lists = {name: tuple(found[name]) for name in ("segments", "same_bytes")}
    return ReplicaRead(**{**found, **records, **lists})
