"""The intent of a redaction: what a broker that was stopped in the middle needs to resume.

    <data directory>/diamant-redaction-<id>.intent     mode 0600

It is JSON, encrypted as that of an erasure is (`erasure/intent.py`): the directory itself tells nothing of what was
looked for. It is written once everything is located and before anything is changed, is there while everything is
scanned, and goes when the certificate is on disk. Resuming means to locate again what is left, so it does not matter
where the broker was stopped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from diamant.cleaner.evidence.certificates.files import REDACTION_PREFIX as PREFIX
from diamant.cleaner.evidence.certificates.private_files import MAX_BYTES, SUFFIX, remove_private, write_private
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.search.needles import Needle
from diamant.cleaner.redaction.where import HOLD, parse_where
from diamant.storage.env.env import Env

LOCATING = "locating"
"""Nothing is changed yet; there is no intent on disk in this phase."""
REWRITING = "rewriting"
"""The records that `found` names may still be there."""
REWRITTEN = "rewritten"
"""The records that `found` names are gone; a certificate is missing."""
HELD = "held"
"""Something is left: records that belong to open transactions, or in what cannot be read. It is tried again."""


@dataclass(slots=True)
class RedactionIntent:
    """One redaction in progress."""

    id: str
    phase: str
    topic: str
    where: str
    reason: str
    reference: str
    requested_ms: int
    is_all_agreed: bool = False
    undecided: str = HOLD
    """The fate of undecided records (`redaction/where.py`)."""
    ends: dict[str, int] = field(default_factory=dict)
    """Partition (as text) to its end when the redaction was asked for: what was written later is no part of it."""
    stable: dict[str, int] = field(default_factory=dict)
    """The same to where records were located up to, in the last run that located them: the last stable offset, or the end."""
    scope: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By topic: its id, and how many partitions it had when this was asked for; empty in intents of versions before."""
    due_ms: int | None = None
    found: list[dict[str, Any]] = field(default_factory=list)
    """As in the certificate: what was located, before it was removed."""
    found_before: list[dict[str, Any]] = field(default_factory=list)
    """`found` as it was before the current run has located anything; empty between runs."""
    done: list[dict[str, Any]] = field(default_factory=list)
    before: list[dict[str, Any]] = field(default_factory=list)
    """Affected segments as they were."""
    needles: list[dict[str, Any]] = field(default_factory=list)
    left_out: int = 0
    """Values that are not searched for, as there were too many."""
    is_manual_clock: bool = False
    """True if a manual clock was in use at any time."""
    runs: int = 0
    """Number of times that it was begun or resumed."""
    retries: int = 0
    """Number of scans that failed to certify."""

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> RedactionIntent:
        """Return what `to_bytes` gave. ValueError for anything else."""
        try:
            fields: Mapping[str, Any] = json.loads(data)
            intent = cls(**fields)
            parse_where(intent.where, intent.undecided)
            for one in intent.needles:
                Needle.from_fields(one)
        except (TypeError, KeyError) as error:
            raise ValueError(f"it is no intent of this version: {error}") from None
        return intent


def redaction_path(directory: str, intent_id: str) -> str:
    """Return where an intent lies."""
    return f"{directory}/{PREFIX}{intent_id}{SUFFIX}"


def write_redaction(env: Env, directory: str, intent: RedactionIntent, key: SigningKey) -> None:
    """Put the intent on disk, durably, in place of an earlier one. Blocks; OSError."""
    write_private(env, redaction_path(directory, intent.id), key.encrypt(intent.to_bytes()))


def remove_redaction(env: Env, directory: str, intent_id: str) -> None:
    """Remove it, durably."""
    remove_private(env, redaction_path(directory, intent_id))


def redaction_ids(env: Env, directory: str) -> list[str]:
    """Return the ids of the redactions that are not over."""
    return [
        name[len(PREFIX) : -len(SUFFIX)]
        for name in env.list_dir(directory)
        if name.startswith(PREFIX) and name.endswith(SUFFIX)
    ]


def read_redaction(env: Env, directory: str, intent_id: str, key: SigningKey) -> RedactionIntent:
    """Return an intent. ValueError if it cannot be read with this secret; OSError."""
    path = redaction_path(directory, intent_id)
    if env.file_size(path) > MAX_BYTES:
        raise ValueError(f"{path}: more than {MAX_BYTES} bytes")
    return RedactionIntent.from_bytes(key.decrypt(env.read_bytes(path)))
