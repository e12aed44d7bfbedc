"""The intent of a redaction: all that a broker needs to resume the redaction after a stop in the middle.

It is written once everything is located and before anything is changed. It stays during the scan, and is removed when the
certificate is on disk. To resume, the broker locates the remaining records again, so it does not matter where it was stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diamant.cleaner.evidence.certificates.intent_parts import FileDigest, RemovalIntent, TopicScope, from_rows, rows
from diamant.cleaner.evidence.certificates.private_files import IntentFiles
from diamant.cleaner.evidence.search.needles import Needle
from diamant.cleaner.evidence.search.remains import ANY_KEY, Remains, values_of
from diamant.cleaner.redaction.blanking import parse_blanking
from diamant.cleaner.redaction.where import HOLD, Where, parse_where
from diamant.cleaner.values.edits import NULL
from diamant.cleaner.values.schemas import Values
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env

LOCATING = "locating"
"""Nothing is changed yet; this phase has no intent on disk."""
REWRITING = "rewriting"
"""The records in `found` may still be there."""
REWRITTEN = "rewritten"
"""The records in `found` are gone; the certificate is missing."""
HELD = "held"
"""Some records are left, in open transactions or unreadable places. The redaction is tried again."""


@dataclass(frozen=True, slots=True)
class Removed:
    """The records to remove from one partition, or to change, as located beforehand; sums over all runs so far."""

    records: int = 0
    matched: int = 0
    superseded: int = 0
    unchanged: int | None = None
    """With fields to change: matching records that needed no change in the last run. Else None."""
    fields: tuple[str, ...] | None = None
    """With fields to change: the fields that at least one matching record has. Else None."""
    offsets: tuple[int, ...] = ()
    offset_ranges: tuple[tuple[int, int], ...] = ()
    offset_ranges_not_listed: int = 0
    files: tuple[str, ...] = ()
    undecided: int = 0
    """Undecided records in the last run, as listed in `undecided_offsets`."""
    undecided_offsets: tuple[int, ...] = ()
    unchangeable: int | None = None
    """With fields to change: undecided records that match but cannot be changed. Else None, as are the next two fields."""
    unchangeable_offsets: tuple[int, ...] | None = None
    unchangeable_reason: str | None = None
    """Why the first of these records cannot be changed."""


@dataclass(frozen=True, slots=True)
class Rewriting:
    """The work done in one partition."""

    segments_rewritten: int = 0
    was_rolled: bool = False
    files_removed_at_once: int = 0


@dataclass(frozen=True, slots=True)
class RedactionIntent(RemovalIntent):
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
    """End of each partition at the time of the request; later records are not part of the redaction."""
    stable: Mapping[int, int] = field(default_factory=dict)
    """By partition, the end of the range in which the last locating run searched: the last stable offset, or the end."""
    scope: Mapping[str, TopicScope] = field(default_factory=dict)
    due_ms: int | None = None
    found: Mapping[TopicPartition, Removed] = field(default_factory=dict)
    found_before: Mapping[TopicPartition, Removed] = field(default_factory=dict)
    """`found` before the current run located anything; empty between runs."""
    done: Mapping[TopicPartition, Rewriting] = field(default_factory=dict)
    before: tuple[FileDigest, ...] = ()
    needles: tuple[Needle, ...] = ()
    left_out: int = 0
    """Number of values beyond the limit, which are not searched for."""
    is_manual_clock: bool = False
    runs: int = 0
    """Number of times the redaction was begun or resumed."""
    retries: int = 0
    keys: tuple[str, ...] = ()
    """The keys that had the values among `needles` (`Remains.keys`)."""
    blank: tuple[str, ...] = ()
    """The fields to change in matching records, which then stay (`redaction/blanking.py`)."""
    blank_with: str = NULL
    set: tuple[str, ...] = ()
    registry: str | None = None
    """The schema registry to use in place of the configured one."""

    @property
    def records_found(self) -> int:
        """Number of records to remove or change in all partitions."""
        return sum(one.records for one in self.found.values())

    @property
    def matches_found(self) -> int:
        """Number of records to remove or change, and of matching records that need no change or cannot be changed."""
        return self.records_found + sum((one.unchanged or 0) + (one.unchangeable or 0) for one in self.found.values())

    def parsed_where(self, values: Values | None = None) -> Where:
        """Return the condition, with the fields to change. Raises WhereError."""
        blanking = parse_blanking(self.blank, self.blank_with, self.set)
        return parse_where(self.where, self.undecided, values, blanking)

    def topic_names(self) -> tuple[str, ...]:
        return (self.topic,)

    def remains(self, secret: bytes) -> Remains:
        del secret
        return Remains(self.id, (self.topic,), self.keys, values_of(self.needles))

    def to_bytes(self) -> bytes:
        return self.to_json(found_before=rows(self.found_before))

    @classmethod
    def from_bytes(cls, data: bytes) -> RedactionIntent:
        """Undo `to_bytes`. Raises ValueError for any other input."""

        def own(plain: Mapping[str, Any]) -> Mapping[str, Any]:
            parse_where(plain["where"], plain.get("undecided", HOLD))
            parse_blanking(plain.get("blank", ()), plain.get("blank_with", NULL), plain.get("set", ()))
            return {
                "ends": {int(index): end for index, end in plain.get("ends", {}).items()},
                "stable": {int(index): end for index, end in plain.get("stable", {}).items()},
                "found_before": from_rows(Removed, plain.get("found_before", ())),
                # Version 0.2 kept no keys.
                "keys": tuple(plain.get("keys", (ANY_KEY,))),
                "blank": tuple(plain.get("blank", ())),
                "set": tuple(plain.get("set", ())),
            }

        return cls.parsed(data, Removed, Rewriting, own)


def redaction_files(env: Env, directory: str) -> IntentFiles[RedactionIntent]:
    """Return the intents of the redactions in a data directory."""
    return IntentFiles(env, directory, names.REDACTION_PREFIX, RedactionIntent.from_bytes)
