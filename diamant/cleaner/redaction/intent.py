"""The intent of a redaction: everything a broker needs to resume the redaction after an interruption.

It is written when all records have been located, before any is changed, and kept until the certificate is on disk. To resume,
the broker locates the remaining records again, so it does not matter at which point it was interrupted.
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
"""Nothing has been changed yet; no intent is on disk in this phase."""
REWRITING = "rewriting"
"""The records in `found` may not have been removed or changed yet."""
REWRITTEN = "rewritten"
"""The records in `found` have been removed or changed; the certificate is not written yet."""
HELD = "held"
"""Some records remain, in open transactions or unreadable places. The redaction will be retried."""


@dataclass(frozen=True, slots=True)
class Removed:
    """The records of one partition that were located for removal or change, summed over all runs unless stated otherwise."""

    records: int = 0
    matched: int = 0
    superseded: int = 0
    unchanged: int | None = None
    """Number of matching records that needed no change in the last run; None if the request names no fields."""
    fields: tuple[str, ...] | None = None
    """The named fields that at least one matching record or its schema has; None if the request names no fields."""
    offsets: tuple[int, ...] = ()
    offset_ranges: tuple[tuple[int, int], ...] = ()
    offset_ranges_not_listed: int = 0
    files: tuple[str, ...] = ()
    undecided: int = 0
    """Number of undecided records in the last run; `undecided_offsets` lists the first of them."""
    undecided_offsets: tuple[int, ...] = ()
    unchangeable: int | None = None
    """Number of undecided records in the last run that match but cannot be changed. Without named fields, this and the next
    two attributes are None."""
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
    """The fate of undecided records: `HOLD`, `REMOVE` or `KEEP`."""
    ends: Mapping[int, int] = field(default_factory=dict)
    """End offset of each partition at the time of the request; records written later are not redacted."""
    stable: Mapping[int, int] = field(default_factory=dict)
    """Exclusive end of the last search in each partition: the last stable offset, but at most the offset in `ends`."""
    scope: Mapping[str, TopicScope] = field(default_factory=dict)
    due_ms: int | None = None
    found: Mapping[TopicPartition, Removed] = field(default_factory=dict)
    found_before: Mapping[TopicPartition, Removed] = field(default_factory=dict)
    """The value of `found` when the current run began; empty between runs."""
    done: Mapping[TopicPartition, Rewriting] = field(default_factory=dict)
    before: tuple[FileDigest, ...] = ()
    needles: tuple[Needle, ...] = ()
    left_out: int = 0
    """Number of removed values that exceed the limit of needles, so the scan does not search for them."""
    is_manual_clock: bool = False
    runs: int = 0
    """Number of times the redaction was started or resumed."""
    retries: int = 0
    keys: tuple[str, ...] = ()
    """The keys whose values are among `needles`, in the form of `Remains.keys`."""
    blank: tuple[str, ...] = ()
    """The fields to change in matching records (`redaction/blanking.py`); empty to remove the records, unless `set` is given."""
    blank_with: str = NULL
    set: tuple[str, ...] = ()
    registry: str | None = None
    """The schema registry to use instead of the configured one."""

    @property
    def records_found(self) -> int:
        """Number of records to remove or change in all partitions."""
        return sum(one.records for one in self.found.values())

    @property
    def matches_found(self) -> int:
        """Number of records to remove or change, plus matching records that need no change or cannot be changed."""
        return self.records_found + sum((one.unchanged or 0) + (one.unchangeable or 0) for one in self.found.values())

    def parsed_where(self, values: Values | None = None) -> Where:
        """Return the parsed condition, with the fields to change. Raises WhereError."""
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
                # Version 0.2 did not store keys.
                "keys": tuple(plain.get("keys", (ANY_KEY,))),
                "blank": tuple(plain.get("blank", ())),
                "set": tuple(plain.get("set", ())),
            }

        return cls.parsed(data, Removed, Rewriting, own)


def redaction_files(env: Env, directory: str) -> IntentFiles[RedactionIntent]:
    """Return the files that store the intents of the redactions in a data directory."""
    return IntentFiles(env, directory, names.REDACTION_PREFIX, RedactionIntent.from_bytes)
