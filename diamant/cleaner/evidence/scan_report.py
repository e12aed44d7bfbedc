"""What a certifying scan has read and found, and what that makes of each partition.

    inconclusive     something in it cannot be read, bytes of a value lie outside of its records, the scan cannot account for
                     everything that there is (`coverage`), or a file of no partition has what is to be gone
    values-present   there is a record of the key that has a value, below the partition's claim
    values-gone      there is none; a tombstone still names the key
    key-gone         neither
    not-there        there is no file of it at all

A claim ends at an offset: what was written from there on is named, and claims nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from diamant.cleaner.evidence.coverage import FileRow, ledger, totals
from diamant.cleaner.evidence.findings import (
    DECIDING,
    RAW,
    SAME_BYTES,
    SAME_KEY,
    TOMBSTONE,
    UNDECIDED,
    VALUE,
    Finding,
    Unreadable,
)
from diamant.cleaner.evidence.found_list import MAX_LISTED
from diamant.cleaner.evidence.record_search import Counts
from diamant.storage import names
from diamant.storage.checkpoints import TopicPartition

INCONCLUSIVE = "inconclusive"
VALUES_PRESENT = "values-present"
VALUES_GONE = "values-gone"
KEY_GONE = "key-gone"
NOT_THERE = "not-there"

MAX_REASONS = 10
"""Why a partition has no claim: so many places are told."""

_REASONS = {
    VALUE: "there is a record that is to be gone",
    TOMBSTONE: "there is a record that is to be gone",
    RAW: "bytes of what is to be gone lie outside of records",
    UNDECIDED: "nobody can tell whether this record is meant",
}
_IN_THE_WAY = "what is to be gone lies, or may lie, in a file that belongs to no partition"


@dataclass(slots=True)
class ScanReport:
    """What was read and found.

    `findings` is not complete where there is very much, but nothing that decides hides behind others (`found_list`).
    """

    findings: list[Finding] = field(default_factory=list, init=False)
    elsewhere: list[Finding] = field(default_factory=list, init=False)
    """The same key in other topics, the same bytes under other keys, and those outside of records of other topics."""
    astray: list[Finding] = field(default_factory=list, init=False)
    """What is in files that belong to no partition, and may be of any: bytes, records of copied segments."""
    in_the_way: list[Finding] = field(default_factory=list, init=False)
    """Those of `astray` because of which nothing can be claimed of any partition (`Subject.is_in_the_way`)."""
    unlisted: Counter[str] = field(default_factory=Counter, init=False)
    """Findings beyond those that are listed, by what they are."""
    unlisted_undecided: Counter[TopicPartition] = field(default_factory=Counter, init=False)
    """Those of them that nobody can decide, by partition; copies, and what lies above the claims, included."""
    unreadable: list[Unreadable] = field(default_factory=list, init=False)
    unreadable_astray: list[Unreadable] = field(default_factory=list, init=False)
    """Files that belong to no partition and cannot be read: they may hold anything of any partition."""
    _found_in: dict[TopicPartition, list[Finding]] = field(default_factory=dict, init=False)
    _unreadable_in: dict[TopicPartition, list[Unreadable]] = field(default_factory=dict, init=False)
    counts: Counts = field(default_factory=Counts)
    rows: list[FileRow] = field(default_factory=list)
    """What was read of each file that was there in the end; about 1 KB each."""
    files_listed: int = 0
    """The files that were there in the end, by a count of their own."""
    unaccounted: list[Unreadable] = field(default_factory=list)
    """What the scan passed over, wherever it is: then nothing is certain."""
    vanished: int = 0
    """Files that were listed and gone when their turn came; what replaced them was scanned."""
    later: int = 0
    """Segments that were begun after the recorded end."""
    engine: str = "plain"
    seconds: float = 0.0
    staging: dict[str, Any] | None = None
    """What the staging place of jobs on Spark was (`staging_place`); None: none is configured."""
    partitions: set[TopicPartition] = field(default_factory=set)
    """Those of the erasure's topics of which files were scanned."""

    @property
    def gigabytes_per_second(self) -> float:
        """What was read of files in a second, as they lie on the disk."""
        return self.counts.bytes / 1e9 / self.seconds if self.seconds else 0.0

    def add(self, finding: Finding, *, is_in_the_way: bool = False) -> None:
        """Put down what was found, once `partitions` is complete."""
        self.findings.append(finding)
        if finding.topic is None or finding.partition is None:
            self.astray.append(finding)
            if is_in_the_way:
                self.in_the_way.append(finding)
            return
        partition = (finding.topic, finding.partition)
        self._found_in.setdefault(partition, []).append(finding)
        if finding.what in (SAME_KEY, SAME_BYTES) or (finding.what == RAW and partition not in self.partitions):
            self.elsewhere.append(finding)

    def add_unreadable(self, place: Unreadable) -> None:
        """Put down what cannot be read."""
        self.unreadable.append(place)
        if place.topic is None or place.partition is None:
            self.unreadable_astray.append(place)
        else:
            self._unreadable_in.setdefault((place.topic, place.partition), []).append(place)

    def of(self, partition: TopicPartition) -> list[Finding]:
        """Return what was found in a partition's directories; not to be changed."""
        return self._found_in.get(partition, [])

    def problems(self, partition: TopicPartition) -> list[Unreadable]:
        """Return what could not be read of a partition, or belongs to none, and what the scan cannot account for anywhere.

        `MAX_REASONS` at most.
        """
        own = self._unreadable_in.get(partition, ())
        return list(islice(chain(own, self.unreadable_astray, self.unaccounted), MAX_REASONS))

    def state(self, partition: TopicPartition, claim_end: int, key_digest: str) -> str:
        """Return what a partition is, for offsets below `claim_end`."""
        if partition not in self.partitions and not self.problems(partition):
            return NOT_THERE
        claimed = self.claimed(partition, claim_end)
        raw = [one for one in claimed if one.what == RAW]
        if self.problems(partition) or any(one.digest != key_digest for one in raw):
            return INCONCLUSIVE
        if any(one.what == VALUE for one in claimed):
            return VALUES_PRESENT
        if self.in_the_way:
            return INCONCLUSIVE
        if any(one.what == TOMBSTONE for one in claimed):
            return VALUES_GONE
        return INCONCLUSIVE if raw else KEY_GONE

    def claimed(self, partition: TopicPartition, claim_end: int) -> list[Finding]:
        """Return what was found of a partition below `claim_end`, and outside of records. Directories set aside count whole."""
        live = names.partition_dir_name(*partition) + "/"
        return [
            one
            for one in self.of(partition)
            if one.offset is None or one.offset < claim_end or not one.file.startswith(live)
        ]

    def reasons(
        self, partition: TopicPartition, claim_end: int, *, is_key_wanted: bool = False
    ) -> list[dict[str, Any]]:
        """Return why nothing can be claimed of a partition, place by place, `MAX_REASONS` at most.

        `is_key_wanted`: that not even the key is there was to be claimed.
        """
        found = [one.to_fields() for one in self.problems(partition)]
        if partition not in self.partitions:
            found.append({"file": names.partition_dir_name(*partition), "reason": "there is no file of it"})
        own = [(one, _REASONS[one.what]) for one in self.claimed(partition, claim_end) if one.what in _REASONS]
        astray = (self.astray if is_key_wanted else self.in_the_way)[: MAX_REASONS // 2]
        for one, reason in [*((one, _IN_THE_WAY) for one in astray), *own[:MAX_REASONS]]:
            where = {} if one.offset is None else {"offset": one.offset}
            found.append({"file": one.file, "position": one.position, **where, "reason": reason})
        return found[:MAX_REASONS]

    def written_since(self, partition: TopicPartition, claim_end: int) -> list[Finding]:
        """Return the records of the key with a value at `claim_end` and above, ascending."""
        live = names.partition_dir_name(*partition) + "/"
        found = [
            one
            for one in self.of(partition)
            if one.what == VALUE and one.offset is not None and one.offset >= claim_end and one.file.startswith(live)
        ]
        return sorted(found, key=lambda one: one.offset or 0)

    def tombstones(self, partition: TopicPartition, claim_end: int) -> list[Finding]:
        """Return the tombstones of the key below `claim_end`."""
        return [
            one
            for one in self.of(partition)
            if one.what == TOMBSTONE and one.offset is not None and one.offset < claim_end
        ]

    def elsewhere_not_listed(self, listed: int) -> int:
        """Return how much was found besides the first so many that are listed of `elsewhere` and `astray`."""
        unlisted = sum(count for what, count in self.unlisted.items() if what not in DECIDING)
        return unlisted + max(0, len(self.elsewhere) + len(self.astray) - listed)

    def coverage(self, topics: frozenset[str] = frozenset()) -> dict[str, Any]:
        """Return what was read, for a certificate about some topics."""
        sorts: dict[str, int] = {}
        for row in self.rows:
            sorts[row.sort] = sorts.get(row.sort, 0) + 1
        return {
            **totals(self.rows),
            "files_by_sort": dict(sorted(sorts.items())),
            "files_listed": self.files_listed,
            "not_read": [one.to_fields() for one in self.unaccounted[:MAX_LISTED]],
            "decompressed_bytes": self.counts.decompressed_bytes,
            "files_gone_meanwhile": self.vanished,
            "segments_after_the_recorded_end": self.later,
            "staging": self.staging,
            "engine": self.engine,
            "duration_ms": round(self.seconds * 1000),
            "unreadable": [one.to_fields() for one in self.unreadable[:MAX_LISTED]],
            "ledger": ledger(self.rows, topics),
        }
