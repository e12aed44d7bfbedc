"""The intent of an erasure: what a broker that was stopped in the middle needs to resume.

Before the scan for `key-gone` it is rewritten without the key and what would find its values: what stays
(`Intent.closed`) has digests only, so that the scan finds a directory in which nothing of the key is left, and a broker
that is stopped then still continues. It is removed before that certificate can be seen (`certificates.files.conclude`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from diamant.cleaner.evidence.certificates.intent_parts import FileDigest, TopicScope, from_rows, rows
from diamant.cleaner.evidence.certificates.private_files import PREFIX, IntentFiles
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.search.needles import Needle, keyed_digest
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env

WRITING = "writing"
"""Tombstones may be missing."""
REMOVING = "removing"
"""Tombstones are written, values may be there still."""
WAITING = "waiting"
"""Values are certified to be gone; tombstones wait for their horizon."""
CLOSING = "closing"
"""The tombstones are gone too, and nothing names the key; the last scan and its certificate are to come."""

OVERRIDDEN = "delete.retention.ms was overridden: the tombstone went before its horizon"


@dataclass(frozen=True, slots=True)
class Found:
    """The records of the key in one partition, as they were before anything was erased."""

    values: int
    copies_on_disk: int
    tombstones: int
    offsets: tuple[int, ...]
    value_hmacs: tuple[str, ...]
    files: tuple[str, ...]
    """As certificates call them, ascending."""


@dataclass(frozen=True, slots=True)
class Erased:
    """What was done in one partition. A field is None of what was not done."""

    tombstone_offset: int | None = None
    """Of the one that was written."""
    tombstone: str | None = None
    """Why none was written."""
    tombstone_found_at: int | None = None
    """Offset of the one that was there already."""
    runners: tuple[str, ...] | None = None
    not_compacted: str | None = None
    """Why not."""
    compactions: int | None = None
    files_removed_at_once: int | None = None
    removed_before_horizon: bool | None = None

    @property
    def tombstone_at(self) -> int | None:
        """Offset of the tombstone, if it is known."""
        return self.tombstone_found_at if self.tombstone_offset is None else self.tombstone_offset


@dataclass(frozen=True, slots=True)
class Intent:
    """One erasure in progress."""

    id: str
    phase: str
    key: bytes
    topics: tuple[str, ...]
    reason: str
    reference: str
    requested_ms: int
    key_bytes: int = 0
    """Size of the key."""
    key_digest: str = ""
    """In hexadecimal; once the key is no longer here."""
    is_now: bool = False
    is_confirmed: bool = False
    """With `is_now`: the requester accepts that groups may miss the tombstone."""
    is_forced: bool = False
    engine: str | None = None
    """The engine that compacts, whatever the size (`rules.modes.ENGINES`)."""
    scope: Mapping[str, TopicScope] = field(default_factory=dict)
    """By topic; empty in intents of versions before."""
    due_ms: int | None = None
    """Time of the round after the horizon."""
    found: Mapping[TopicPartition, Found] = field(default_factory=dict)
    done: Mapping[TopicPartition, Erased] = field(default_factory=dict)
    before: tuple[FileDigest, ...] = ()
    """Affected segments as they were."""
    claims: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Offsets below which nothing of the key is claimed to be left."""
    needles: tuple[Needle, ...] = ()
    is_manual_clock: bool = False
    """True if a manual clock was in use at any time."""
    overrides: Mapping[TopicPartition, tuple[str, ...]] = field(default_factory=dict)
    """Tombstones that went before their horizon: the groups that had not passed them."""
    retries: int = 0
    """Number of scans that failed to certify."""
    missed: tuple[TopicPartition, ...] = ()
    """Those in which the last scan has found values: they are located once more, without filters."""
    refused: Mapping[TopicPartition, str] = field(default_factory=dict)
    """Why partitions take no tombstone; they are tried again with each attempt."""

    def closed(self, key_digest: bytes) -> Intent:
        """Return what stays on disk during the last scan: neither the key nor parts of values."""
        return replace(self, phase=CLOSING, key=b"", key_digest=key_digest.hex(), needles=())

    def override_rows(self) -> list[dict[str, Any]]:
        """Return the overrides as JSON has them."""
        return [
            {"what": OVERRIDDEN, "topic": topic, "partition": index, "groups_that_had_not_passed_it": [*groups]}
            for (topic, index), groups in self.overrides.items()
        ]

    def to_bytes(self) -> bytes:
        plain, claims = {one.name: getattr(self, one.name) for one in fields(self)}, self.claims.items()
        parts = {
            "key": self.key.hex(),
            "scope": {name: asdict(one) for name, one in self.scope.items()},
            "found": rows(self.found),
            "done": rows(self.done),
            "before": [asdict(one) for one in self.before],
            "claims": [{"topic": topic, "partition": index, "below_offset": end} for (topic, index), end in claims],
            "needles": [one.to_fields() for one in self.needles],
            "overrides": self.override_rows(),
            "refused": [[*place, reason] for place, reason in self.refused.items()],
        }
        return json.dumps({**plain, **parts}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Intent:
        """Return what `to_bytes` gave. ValueError for anything else."""
        try:
            plain: dict[str, Any] = json.loads(data)
            parts = {
                "key": bytes.fromhex(plain["key"]),
                "topics": tuple(plain["topics"]),
                "scope": {name: TopicScope(**one) for name, one in plain.get("scope", {}).items()},
                "found": from_rows(Found, plain.get("found", ())),
                "done": from_rows(Erased, plain.get("done", ())),
                "before": tuple(FileDigest(**one) for one in plain.get("before", ())),
                "claims": {_place(one): one["below_offset"] for one in plain.get("claims", ())},
                "needles": tuple(Needle.from_fields(one) for one in plain.get("needles", ())),
                "overrides": {
                    _place(one): tuple(one["groups_that_had_not_passed_it"]) for one in plain.get("overrides", ())
                },
                "missed": tuple((topic, partition) for topic, partition in plain.get("missed", ())),
                "refused": {(topic, partition): reason for topic, partition, reason in plain.get("refused", ())},
            }
            return cls(**{**plain, **parts})
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"it is no intent of this version: {error}") from None


def _place(row: Mapping[str, Any]) -> TopicPartition:
    return row["topic"], row["partition"]


def intent_files(env: Env, directory: str) -> IntentFiles[Intent]:
    """Return the intents of the erasures in a data directory."""
    return IntentFiles(env, directory, PREFIX, Intent.from_bytes)


def waiting_for(
    files: IntentFiles[Intent], ids: Iterable[str], key: SigningKey, ended: Intent, digest: bytes
) -> list[str]:
    """Return which of these wait for tombstones of a key (by its digest) in topics of another erasure, which has `ended`.

    Blocks, and reads all of them one by one; what cannot be read is left out.
    """
    found = []
    for intent_id in ids:
        try:
            one = files.read(intent_id, key)
        except (OSError, ValueError):
            continue
        is_same = one.phase == WAITING and keyed_digest(key.secret, one.key) == digest
        if is_same and set(one.topics) <= set(ended.topics):
            found.append(intent_id)
    return found
