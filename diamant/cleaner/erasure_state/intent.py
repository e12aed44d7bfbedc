"""The intent of an erasure: everything that a broker needs to resume the erasure after an interruption.

Before the scan for `key-gone`, the intent is rewritten without the key (`Intent.closed`), so that the scan finds no trace of the
key in the directory. A broker that stops during the scan can still resume it, and still searches for copies of the values. The
intent is removed before the certificate of that scan becomes visible (`certificates.files.conclude`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from diamant.cleaner.evidence.certificates.intent_parts import FileDigest, RemovalIntent, TopicScope
from diamant.cleaner.evidence.certificates.private_files import IntentFiles
from diamant.cleaner.evidence.search.needles import Needle, keyed_digest
from diamant.cleaner.evidence.search.remains import Remains, short_digest, values_of
from diamant.json_types import JsonObject
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env

WRITING = "writing"
"""Tombstones may be missing."""
REMOVING = "removing"
"""Tombstones are written; values may remain."""
WAITING = "waiting"
"""Values are certified as gone; tombstones wait for their horizon."""
CLOSING = "closing"
"""The tombstones are gone as well, and nothing names the key; the final scan and its certificate are pending."""

OVERRIDDEN = "delete.retention.ms was overridden: the tombstone went before its horizon"


@dataclass(frozen=True, slots=True)
class Found:
    """The records of the key in one partition before the erasure."""

    values: int
    copies_on_disk: int
    tombstones: int
    offsets: tuple[int, ...]
    value_hmacs: tuple[str, ...]
    files: tuple[str, ...]
    """The files' names in certificates, sorted."""


@dataclass(frozen=True, slots=True)
class Erased:
    """What was done in one partition. A field is None if its step was not taken."""

    tombstone_offset: int | None = None
    """Offset of the tombstone that was written."""
    tombstone: str | None = None
    """Reason why no tombstone was written."""
    tombstone_found_at: int | None = None
    """Offset of an earlier tombstone, which made another one unnecessary."""
    runners: tuple[str, ...] | None = None
    not_compacted: str | None = None
    """Reason why the partition was not compacted."""
    compactions: int | None = None
    files_removed_at_once: int | None = None
    removed_before_horizon: bool | None = None

    @property
    def tombstone_at(self) -> int | None:
        """Offset of the tombstone that was written or found; None if there is none."""
        return self.tombstone_found_at if self.tombstone_offset is None else self.tombstone_offset


@dataclass(frozen=True, slots=True)
class Intent(RemovalIntent):
    """One erasure in progress."""

    id: str
    phase: str
    key: bytes
    topics: tuple[str, ...]
    reason: str
    reference: str
    requested_ms: int
    key_bytes: int = 0
    """Size of the key in bytes."""
    key_digest: str = ""
    """Digest of the key in hexadecimal; set once the key is removed from the intent."""
    is_now: bool = False
    is_confirmed: bool = False
    """With `is_now`: the requester accepts that groups may miss the tombstone."""
    is_forced: bool = False
    engine: str | None = None
    """The engine for all compactions, whatever their size (`rules.modes.ENGINES`)."""
    scope: Mapping[str, TopicScope] = field(default_factory=dict)
    due_ms: int | None = None
    found: Mapping[TopicPartition, Found] = field(default_factory=dict)
    done: Mapping[TopicPartition, Erased] = field(default_factory=dict)
    before: tuple[FileDigest, ...] = ()
    claims: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The offset at which the claim about each partition ends. The claim is about all lower offsets."""
    needles: tuple[Needle, ...] = ()
    is_manual_clock: bool = False
    overrides: Mapping[TopicPartition, tuple[str, ...]] = field(default_factory=dict)
    """The groups that had not read a partition's tombstone when it was removed before its horizon."""
    retries: int = 0
    missed: tuple[TopicPartition, ...] = ()
    """Partitions in which the last scan found values; they are searched once more, without filters."""
    refused: Mapping[TopicPartition, str] = field(default_factory=dict)
    """Reasons why partitions refuse a tombstone; each attempt tries these partitions again."""

    def topic_names(self) -> tuple[str, ...]:
        return self.topics

    def with_done(self, partitions: Iterable[TopicPartition], **changes: Any) -> Intent:
        """Return a copy with changes to the fields of `done` in some partitions; skips partitions that are not in `done`."""
        changed = {one: replace(self.done[one], **changes) for one in partitions if one in self.done}
        return replace(self, done={**self.done, **changed})

    def closed(self, key_digest: bytes) -> Intent:
        """Return the intent for the final scan, without the key."""
        return replace(self, phase=CLOSING, key=b"", key_digest=key_digest.hex(), needles=values_of(self.needles))

    def remains(self, secret: bytes) -> Remains:
        digest = bytes.fromhex(self.key_digest) or keyed_digest(secret, self.key)
        return Remains(self.id, self.topics, (short_digest(digest),), values_of(self.needles))

    def override_rows(self) -> list[JsonObject]:
        """Return the overrides as rows for JSON."""
        return [
            {"what": OVERRIDDEN, "topic": topic, "partition": index, "groups_that_had_not_passed_it": [*groups]}
            for (topic, index), groups in self.overrides.items()
        ]

    def to_bytes(self) -> bytes:
        claims = self.claims.items()
        return self.to_json(
            key=self.key.hex(),
            claims=[{"topic": topic, "partition": index, "below_offset": end} for (topic, index), end in claims],
            overrides=self.override_rows(),
            refused=[[*place, reason] for place, reason in self.refused.items()],
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Intent:
        """Parse the output of `to_bytes`. Raises ValueError for any other input."""

        def own(plain: Mapping[str, Any]) -> Mapping[str, Any]:
            overrides = plain.get("overrides", ())
            return {
                "key": bytes.fromhex(plain["key"]),
                "topics": tuple(plain["topics"]),
                "claims": {_place(one): one["below_offset"] for one in plain.get("claims", ())},
                "overrides": {_place(one): tuple(one["groups_that_had_not_passed_it"]) for one in overrides},
                "missed": tuple((topic, partition) for topic, partition in plain.get("missed", ())),
                "refused": {(topic, partition): reason for topic, partition, reason in plain.get("refused", ())},
            }

        return cls.parsed(data, Found, Erased, own)


def _place(row: Mapping[str, Any]) -> TopicPartition:
    return row["topic"], row["partition"]


def intent_files(env: Env, directory: str) -> IntentFiles[Intent]:
    """Return the intent files of the erasures in a data directory."""
    return IntentFiles(env, directory, names.ERASURE_PREFIX, Intent.from_bytes)
