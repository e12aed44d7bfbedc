"""The intent of a redaction: what a broker that was stopped in the middle needs to resume.

It is written once everything is located and before anything is changed, is there while everything is
scanned, and goes when the certificate is on disk. Resuming means to locate again what is left, so it does not matter
where the broker was stopped.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from diamant.cleaner.evidence.certificates.private_files import REDACTION_PREFIX, IntentFiles
from diamant.cleaner.evidence.certificates.topic_scope import TopicScope, scopes_of
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
    scope: dict[str, TopicScope] = field(default_factory=dict)
    """By topic; empty in intents of versions before."""
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
            fields: dict[str, Any] = json.loads(data)
            intent = cls(**{**fields, "scope": scopes_of(fields.get("scope", {}))})
            parse_where(intent.where, intent.undecided)
            for one in intent.needles:
                Needle.from_fields(one)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"it is no intent of this version: {error}") from None
        return intent


def redaction_files(env: Env, directory: str) -> IntentFiles[RedactionIntent]:
    """Return the intents of the redactions in a data directory."""
    return IntentFiles(env, directory, REDACTION_PREFIX, RedactionIntent.from_bytes)
