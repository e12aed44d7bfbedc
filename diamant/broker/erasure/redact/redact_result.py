"""The partitions of a redaction in progress, and its result."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diamant.broker.erasure.jobs.removal import RemovalResult
from diamant.broker.operation_errors import NotPossible, OperationError
from diamant.cleaner.evidence.certificates.page_words import fields_not_seen
from diamant.cleaner.redaction.intent import RedactionIntent, Removed
from diamant.cleaner.redaction.locate import MAX_OFFSET_BYTES, LocatedRecords
from diamant.json_types import JsonObject
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.log.log import Log

EVERYTHING_MATCHES = "everything-matches"
"""`ended.what` in the certificate of a redaction that matched every record of its topic without the caller's consent."""


@dataclass(frozen=True, slots=True)
class RedactLimits:
    """The bounds of one redaction."""

    offset_bytes: int = MAX_OFFSET_BYTES
    """The maximum memory for the offsets of removed records, in all partitions together."""
    ranges: int = 10_000
    """The maximum number of offset ranges that a certificate lists, in all partitions together."""
    offsets: int = 100
    """The maximum number of single offsets that a certificate lists for each partition."""


class EverythingMatches(NotPossible):
    """Every record of the topic matches, and the caller has not agreed to that."""

    code = "everything-matches"


class RedactFailed(OperationError):
    """The redaction could not continue. Its intent remains, and the broker retries."""


@dataclass(frozen=True, slots=True)
class Redaction(RemovalResult):
    """The result of a call to `broker.redact`.

    Its state is `records-gone`, `fields-blanked`, `nothing-matched` or `not-certified`.
    """

    removed: int
    """The number of removed or changed records, including older values on compacted topics."""

    @property
    def unmatched(self) -> JsonObject | None:
        """If no record matched: how many records contain the strings of the condition, and the first of them. Otherwise None."""
        found: JsonObject | None = self.certificate["unmatched"]
        return found

    @property
    def fields_not_seen(self) -> list[str]:
        """The requested fields that no matching record has. Their paths may be wrong."""
        return fields_not_seen(self.certificate)

    def own_fields(self) -> Mapping[str, Any]:
        return {
            "removed": self.removed,
            "fields_not_seen": self.fields_not_seen,
            "unmatched": self.unmatched,
            "next_due_ms": self.next_due_ms,
        }


@dataclass(slots=True)
class Work:
    """The state of a partition in a redaction in progress."""

    log: Log
    located: LocatedRecords
    rewritten: int = 0
    """The number of segments rewritten."""
    was_rolled: bool = False
    files: list[str] = field(default_factory=list)
    """The files of the affected segments, relative to the data directory."""


def with_found(
    found: Mapping[TopicPartition, Removed], work: Work, limits: RedactLimits, *, is_changing: bool
) -> Mapping[TopicPartition, Removed]:
    """Return `found` with the records located in one more partition added to it, as ranges of offsets and as counts.

    `is_changing`: they are changed, not removed. Blocking, about 0.1 s for millions of ranges. Memory: `limits.ranges` ranges.
    """
    located, place = work.located, (work.log.topic, work.log.partition)
    if place not in found and not (located.removed or located.unchanged or located.undecided):
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
        located.unchanged if is_changing else None,
        tuple(sorted({*(known.fields or ()), *located.fields})) if is_changing else None,
        tuple(offsets),
        tuple(listed),
        not_listed,
        tuple(sorted({*known.files, *work.files})),
        located.undecided,
        tuple(located.undecided_offsets),
        located.unchangeable if is_changing else None,
        tuple(located.unchangeable_offsets) if is_changing else None,
        located.unchangeable_reason if is_changing else None,
    )
    return {**found, place: removed}


def everything_matches(intent: RedactionIntent, works: Sequence[Work]) -> str | None:
    """Return an error message if all readable records match and the caller has not agreed to that; else None.

    Returns None if an earlier run has removed records, since at that time some record did not match.
    """
    if intent.is_all_agreed or intent.records_found:
        return None
    records = sum(work.located.records for work in works)
    if not records or any(work.located.kept for work in works):
        return None
    unread = " that can be read" if any(work.located.problems for work in works) else ""
    done = "change" if intent.blank or intent.set else "remove"
    return (
        f"all {records} records of {intent.topic}{unread} match, so nothing was changed: set yes_all to {done} them all"
    )


def relative_path(log: Log, path: str) -> str:
    return f"{names.partition_dir_name(log.topic, log.partition)}/{os.path.basename(path)}"
