"""A redaction in progress, and its result."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diamant.broker.client.errors import NotPossible, VerbError
from diamant.cleaner.redaction.intent import RedactionIntent, Removed
from diamant.cleaner.redaction.locate import MAX_OFFSET_BYTES, LocatedRecords
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.log.log import Log

EVERYTHING_MATCHES = "everything-matches"
"""In a certificate, `ended.what` of a redaction that would have emptied its topic without the caller's consent."""


@dataclass(frozen=True, slots=True)
class RedactLimits:
    """The bounds of one redaction."""

    offset_bytes: int = MAX_OFFSET_BYTES
    """The memory for the offsets of what goes, of all partitions."""
    ranges: int = 10_000
    """Runs of offsets that a certificate lists, of all partitions."""
    offsets: int = 100
    """Offsets that it lists one by one, of a partition."""


class EverythingMatches(NotPossible):
    """Every record of the topic matches, and the caller has not confirmed that."""

    code = "everything-matches"


class RedactFailed(VerbError):
    """The redaction could not continue; its intent stays, and the broker tries again."""


@dataclass(frozen=True, slots=True)
class Redaction:
    """The result of one call."""

    id: str
    state: str
    """`records-gone`, `nothing-matched` or `not-certified`: that of the certificate."""
    removed: int
    """Records, older values on compacted topics included."""
    certificate: dict[str, Any]
    certificate_path: str
    public_key: str
    """PEM, for the verifier to pin."""
    next_due_ms: int | None
    """Time of the next attempt, if something is left; else None."""

    @property
    def unmatched(self) -> dict[str, Any] | None:
        """If no record matched, how many of the topic hold what was looked for all the same, and the first of them; else None."""
        found: dict[str, Any] | None = self.certificate["unmatched"]
        return found

    def to_fields(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "state": self.state,
            "removed": self.removed,
            "unmatched": self.unmatched,
            "next_due_ms": self.next_due_ms,
            "certificate": self.certificate,
            "certificate_path": self.certificate_path,
            "public_key": self.public_key,
        }


@dataclass(slots=True)
class Work:
    """One partition of a redaction in progress."""

    log: Log
    located: LocatedRecords
    rewritten: int = 0
    """Segments."""
    was_rolled: bool = False
    files: list[str] = field(default_factory=list)
    """Affected segments, relative to the data directory."""


def with_found(
    found: Mapping[TopicPartition, Removed], work: Work, limits: RedactLimits
) -> Mapping[TopicPartition, Removed]:
    """Return the records that go, and those of one more partition: where they are, and how many.

    Blocks for some 0.1 s with millions of runs. Memory: `limits.ranges` runs.
    """
    located, place = work.located, (work.log.topic, work.log.partition)
    if place not in found and not located.removed and not located.undecided:
        return found
    known = found.get(place, Removed())
    offsets, listed, not_listed = [*known.offsets], [*known.offset_ranges], known.offset_ranges_not_listed
    room = limits.ranges - sum(len(one.offset_ranges) for one in found.values())
    for base in sorted(located.offsets):
        ranges, count = located.offsets[base].ranges(max(room, limits.offsets))
        for first, last in ranges:
            offsets += range(first, min(last + 1, first + limits.offsets - len(offsets)))
        listed += ranges[:room]
        not_listed += count - min(room, count)
        room -= min(room, count)
    removed = Removed(
        known.records + located.removed,
        known.matched + located.matched,
        known.superseded + located.superseded,
        tuple(offsets),
        tuple(listed),
        not_listed,
        tuple(sorted({*known.files, *work.files})),
        located.undecided,
        tuple(located.undecided_offsets),
    )
    return {**found, place: removed}


def everything_matches(intent: RedactionIntent, works: Sequence[Work]) -> str | None:
    """Say so if all readable records are to go, the caller has not agreed, and nothing was removed yet; else None.

    Earlier runs that removed something removed less than everything: other records stayed.
    """
    if intent.is_all_agreed or intent.records_found:
        return None
    records = sum(work.located.records for work in works)
    if not records or any(work.located.kept for work in works):
        return None
    unread = " that can be read" if any(work.located.problems for work in works) else ""
    return f"all {records} records of {intent.topic}{unread} match, so nothing was changed: set yes_all if that is what is meant"


def relative_path(log: Log, path: str) -> str:
    return f"{names.partition_dir_name(log.topic, log.partition)}/{os.path.basename(path)}"
