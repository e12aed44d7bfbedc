"""The intent of a redaction: what a broker that was stopped in the middle needs to resume.

It is written once everything is located and before anything is changed, is there while everything is
scanned, and goes when the certificate is on disk. Resuming means to locate again what is left, so it does not matter
where the broker was stopped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from diamant.cleaner.evidence.certificates.intent_parts import FileDigest, TopicScope, from_rows, rows
from diamant.cleaner.evidence.certificates.private_files import REDACTION_PREFIX, IntentFiles
from diamant.cleaner.evidence.search.needles import Needle
from diamant.cleaner.redaction.where import HOLD, parse_where
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env

LOCATING = "locating"
"""Nothing is changed yet; there is no intent on disk in this phase."""
REWRITING = "rewriting"
"""The records that `found` names may still be there."""
REWRITTEN = "rewritten"
"""The records that `found` names are gone; a certificate is missing."""
HELD = "held"
"""Something is left: records that belong to open transactions, or in what cannot be read. It is tried again."""


@dataclass(frozen=True, slots=True)
class Removed:
    """The records that go from one partition, located before they were removed; those of all runs so far."""

    records: int = 0
    matched: int = 0
    superseded: int = 0
    offsets: tuple[int, ...] = ()
    offset_ranges: tuple[tuple[int, int], ...] = ()
    offset_ranges_not_listed: int = 0
    files: tuple[str, ...] = ()
    undecided: int = 0
    """In the last run, as are their offsets."""
    undecided_offsets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Rewriting:
    """What was done in one partition."""

    segments_rewritten: int = 0
    was_rolled: bool = False
    files_removed_at_once: int = 0


@dataclass(frozen=True, slots=True)
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
    ends: Mapping[int, int] = field(default_factory=dict)
    """By partition: its end when the redaction was asked for: what was written later is no part of it."""
    stable: Mapping[int, int] = field(default_factory=dict)
    """The same to where records were located up to, in the last run that located them: the last stable offset, or the end."""
    scope: Mapping[str, TopicScope] = field(default_factory=dict)
    """By topic; empty in intents of versions before."""
    due_ms: int | None = None
    found: Mapping[TopicPartition, Removed] = field(default_factory=dict)
    found_before: Mapping[TopicPartition, Removed] = field(default_factory=dict)
    """`found` as it was before the current run has located anything; empty between runs."""
    done: Mapping[TopicPartition, Rewriting] = field(default_factory=dict)
    before: tuple[FileDigest, ...] = ()
    """Affected segments as they were."""
    needles: tuple[Needle, ...] = ()
    left_out: int = 0
    """Values that are not searched for, as there were too many."""
    is_manual_clock: bool = False
    """True if a manual clock was in use at any time."""
    runs: int = 0
    """Number of times that it was begun or resumed."""
    retries: int = 0
    """Number of scans that failed to certify."""

    @property
    def records_found(self) -> int:
        """Records that go from all partitions."""
        return sum(one.records for one in self.found.values())

    def to_bytes(self) -> bytes:
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        parts = {
            "scope": {name: asdict(one) for name, one in self.scope.items()},
            "found": rows(self.found),
            "found_before": rows(self.found_before),
            "done": rows(self.done),
            "before": [asdict(one) for one in self.before],
            "needles": [one.to_fields() for one in self.needles],
        }
        return json.dumps({**plain, **parts}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> RedactionIntent:
        """Return what `to_bytes` gave. ValueError for anything else."""
        try:
            plain: dict[str, Any] = json.loads(data)
            parts = {
                "ends": {int(index): end for index, end in plain.get("ends", {}).items()},
                "stable": {int(index): end for index, end in plain.get("stable", {}).items()},
                "scope": {name: TopicScope(**one) for name, one in plain.get("scope", {}).items()},
                "found": from_rows(Removed, plain.get("found", ())),
                "found_before": from_rows(Removed, plain.get("found_before", ())),
                "done": from_rows(Rewriting, plain.get("done", ())),
                "before": tuple(FileDigest(**one) for one in plain.get("before", ())),
                "needles": tuple(Needle.from_fields(one) for one in plain.get("needles", ())),
            }
            intent = cls(**{**plain, **parts})
            parse_where(intent.where, intent.undecided)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"it is no intent of this version: {error}") from None
        return intent


def redaction_files(env: Env, directory: str) -> IntentFiles[RedactionIntent]:
    """Return the intents of the redactions in a data directory."""
    return IntentFiles(env, directory, REDACTION_PREFIX, RedactionIntent.from_bytes)
