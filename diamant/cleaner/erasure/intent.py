"""The intent of an erasure: what a broker that was stopped in the middle needs to resume.

Before the scan for `key-gone` it is rewritten without the key and what would find its values: what stays
(`Intent.closed`) has digests only, so that the scan finds a directory in which nothing of the key is left, and a broker
that is stopped then still continues. It is removed before that certificate can be seen (`certificates.files.conclude`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from diamant.cleaner.evidence.certificates.private_files import PREFIX, IntentFiles
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.certificates.topic_scope import TopicScope, scopes_of
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
"""The tombstones are gone too, and nothing names the key any more; the last scan and its certificate are to come."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim about one partition: nothing of the key is left below an offset."""

    topic: str
    partition: int
    below_offset: int

    @property
    def place(self) -> TopicPartition:
        """The partition."""
        return self.topic, self.partition


@dataclass(frozen=True, slots=True)
class Override:
    """A tombstone that went before its horizon, as a certificate has it."""

    what: str
    topic: str
    partition: int
    groups_that_had_not_passed_it: tuple[str, ...]

    @property
    def place(self) -> TopicPartition:
        """The partition."""
        return self.topic, self.partition

    def to_fields(self) -> dict[str, Any]:
        """Return it as a certificate has it."""
        return {**asdict(self), "groups_that_had_not_passed_it": [*self.groups_that_had_not_passed_it]}


@dataclass(slots=True)
class Intent:
    """One erasure in progress."""

    id: str
    phase: str
    key: bytes
    topics: list[str]
    reason: str
    reference: str
    requested_ms: int
    key_bytes: int = 0
    """Size of the key."""
    key_digest: str = ""
    """In hexadecimal; once the key is not here any more."""
    is_now: bool = False
    is_confirmed: bool = False
    """With `is_now`: the requester accepts that groups may miss the tombstone."""
    is_forced: bool = False
    engine: str | None = None
    """The engine that compacts, whatever the size (`rules.modes.ENGINES`)."""
    scope: dict[str, TopicScope] = field(default_factory=dict)
    """By topic; empty in intents of versions before."""
    due_ms: int | None = None
    """Time of the round after the horizon."""
    found: list[dict[str, Any]] = field(default_factory=list)
    """As in the certificate."""
    done: list[dict[str, Any]] = field(default_factory=list)
    before: list[dict[str, Any]] = field(default_factory=list)
    """Affected segments as they were."""
    claims: list[Claim] = field(default_factory=list)
    """Partition by partition: up to where values are claimed to be gone."""
    needles: list[dict[str, Any]] = field(default_factory=list)
    is_manual_clock: bool = False
    """True if a manual clock was in use at any time."""
    overrides: list[Override] = field(default_factory=list)
    retries: int = 0
    """Number of scans that failed to certify."""
    missed: list[list[Any]] = field(default_factory=list)
    """Topic and partition of those in which the last scan has found values: they are located once more, without filters."""
    refused: list[list[Any]] = field(default_factory=list)
    """Topic and partition of those that take no tombstone, and why; they are tried again with each attempt."""

    def closed(self, key_digest: bytes) -> Intent:
        """Return what stays on disk during the last scan: neither the key nor parts of values."""
        return replace(self, phase=CLOSING, key=b"", key_digest=key_digest.hex(), needles=[])

    def to_bytes(self) -> bytes:
        return json.dumps({**asdict(self), "key": self.key.hex()}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Intent:
        """Return what `to_bytes` gave. ValueError for anything else."""
        try:
            fields: dict[str, Any] = json.loads(data)
            fields["key"] = bytes.fromhex(fields["key"])
            fields["scope"] = scopes_of(fields.get("scope", {}))
            fields["claims"] = [Claim(**one) for one in fields.get("claims", ())]
            fields["overrides"] = [
                Override(**{**one, "groups_that_had_not_passed_it": tuple(one["groups_that_had_not_passed_it"])})
                for one in fields.get("overrides", ())
            ]
            intent = cls(**fields)
            for one in intent.needles:
                Needle.from_fields(one)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"it is no intent of this version: {error}") from None
        return intent


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
