"""The report of a certifying scan: what it has read and found, and the state of each partition that follows.

    inconclusive     something in it cannot be read, bytes of a value lie outside of its records, the scan cannot account for
                     everything that there is (`coverage`), or a file of no partition has what is to be gone
    values-present   there is a record of the key that has a value, or a tombstone with headers, below the partition's claim
    values-gone      there is none; a tombstone still names the key
    key-gone         neither
    not-there        there is no file of it at all

A claim ends at an offset: what was written from there on is named, and claims nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from diamant.cleaner.evidence.scan.coverage import FileRow, ledger, totals
from diamant.cleaner.evidence.scan.file_listing import is_in_use, is_of_log
from diamant.cleaner.evidence.search.findings import (
    DECIDING,
    MAX_LISTED,
    RAW,
    SAME_BYTES,
    SAME_KEY,
    TOMBSTONE,
    UNDECIDED,
    VALUE,
    Finding,
    Unreadable,
)
from diamant.cleaner.evidence.search.record_search import Counts, Subject
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition

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
_SET_ASIDE = "; its directory was set aside, and there is no such partition: if it is not needed, remove it"


@dataclass(slots=True)
class ScanReport:
    """The amounts read and the findings.

    `findings` is not complete where there is very much, but nothing that decides hides behind others (`findings`).
    """

    findings: list[Finding] = field(default_factory=list, init=False)
    elsewhere: list[Finding] = field(default_factory=list, init=False)
    """The same key in other topics, the same bytes under other keys, and those outside of records of other topics."""
    astray: list[Finding] = field(default_factory=list, init=False)
    """Findings in files that belong to no partition, and may be of any: bytes, records of copied segments."""
    in_the_way: list[Finding] = field(default_factory=list, init=False)
    """Those of `astray` because of which nothing can be claimed of any partition (`Subject.is_in_the_way`)."""
    unlisted: Counter[str] = field(default_factory=Counter, init=False)
    """Findings beyond those that are listed, by what they are."""
    unlisted_in: Counter[tuple[TopicPartition, str]] = field(default_factory=Counter, init=False)
    """The same by partition and by what they are; copies, and what lies above the claims, included."""
    unreadable: list[Unreadable] = field(default_factory=list, init=False)
    unreadable_astray: list[Unreadable] = field(default_factory=list, init=False)
    """Files that belong to no partition and cannot be read: they may hold anything of any partition."""
    _found_in: dict[TopicPartition, list[Finding]] = field(default_factory=dict, init=False)
    _unreadable_in: dict[TopicPartition, list[Unreadable]] = field(default_factory=dict, init=False)
    unknown: set[str] = field(default_factory=set)
    """Files that are called like segments in use, and that their log does not have: their offsets are none of its."""
    counts: Counts = field(default_factory=Counts)
    rows: list[FileRow] = field(default_factory=list)
    """The amount read of each file that was there in the end; about 1 KB each."""
    files_listed: int = 0
    """The files that were there in the end, by a count of their own."""
    unaccounted: list[Unreadable] = field(default_factory=list)
    """The files that the scan passed over, wherever they are: then nothing is certain."""
    vanished: int = 0
    """Files that were listed and gone when their turn came; what replaced them was scanned."""
    later: int = 0
    """Segments that were begun after the recorded end."""
    planted: int = 0
    """Known positives that were written for this scan."""
    seen: int = 0
    """Those of them that each engine has found."""
    engine: str = "plain"
    seconds: float = 0.0
    staging: dict[str, Any] | None = None
    """The staging place of jobs on Spark at the time of the scan (`staging_files`); None: none is configured."""
    links: set[str] = field(default_factory=set)
    """Names of symbolic links that were not followed (`places`)."""
    partitions: set[TopicPartition] = field(default_factory=set)
    """Those of the erasure's topics of which files were scanned."""

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

    def disown(
        self,
        subject: Subject,
        topics: Collection[str],
        known: Collection[TopicPartition],
        later: Collection[TopicPartition],
    ) -> None:
        """Take what was found in directories of partitions that some topics do not have for what it is: of no partition.

        `known`: what claims are, or would be, about; what was set aside of these counts with them. `later`: what the topics have
        besides; what was set aside under their numbers is not theirs. Call it in the turn in which that was told.
        """
        for partition in sorted({*self._found_in, *self._unreadable_in} - set(known)):
            if partition[0] in topics:
                self._disown(subject, partition, is_later=partition in later)

    def _disown(self, subject: Subject, partition: TopicPartition, *, is_later: bool) -> None:
        found, unreadable = self._found_in.pop(partition, []), self._unreadable_in.pop(partition, [])
        if is_later:
            self._found_in[partition] = [one for one in found if not _is_set_aside(one.file)]
            self._unreadable_in[partition] = [one for one in unreadable if not _is_set_aside(one.file)]
            found = [one for one in found if _is_set_aside(one.file)]
            unreadable = [one for one in unreadable if _is_set_aside(one.file)]
        else:
            for what in (VALUE, TOMBSTONE):
                count = self.unlisted_in.pop((partition, what), 0)
                self.unlisted.update({what: -count, SAME_KEY: count})
        # The same bytes under other keys are told wherever they are.
        astray = [_of_nobody(one) for one in found if one.what != SAME_BYTES]
        self.astray += astray
        self.in_the_way += [one for one in astray if subject.is_in_the_way(one)]
        self.unreadable_astray += [one._replace(topic=None, partition=None) for one in unreadable]

    def set_aside(self, files: Collection[str]) -> bool:
        """List findings in files of no partition, known for what they are, as `elsewhere`; return True if there are any."""
        self.elsewhere += [one for one in self.astray if one.file in files]
        self.astray = [one for one in self.astray if one.file not in files]
        self.in_the_way = [one for one in self.in_the_way if one.file not in files]
        return bool(files)

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
        if any(_is_telling(one) for one in claimed):
            return VALUES_PRESENT
        if self.in_the_way:
            return INCONCLUSIVE
        if any(one.what == TOMBSTONE for one in claimed):
            return VALUES_GONE
        return INCONCLUSIVE if raw else KEY_GONE

    def claimed(self, partition: TopicPartition, claim_end: int) -> list[Finding]:
        """Return what was found of a partition below `claim_end`, and outside of records.

        What is no segment of the log counts whole, as directories that were set aside do: its offsets are another log's.
        """
        above = {id(one) for one in self.above(partition, claim_end)}
        return [one for one in self.of(partition) if id(one) not in above]

    def above(self, partition: TopicPartition, claim_end: int) -> list[Finding]:
        """Return what was found in the partition's log at `claim_end` and above.

        Outputs of a round hold nothing that the log does not have itself. One that does is another log's.
        """
        found = [one for one in self.of(partition) if one.offset is not None and one.offset >= claim_end]
        found = [one for one in found if one.file not in self.unknown and is_of_log(one.file, *partition)]
        had = {
            (one.offset, one.digest)
            for one in found
            if is_in_use(one.file, *partition) or one.file.endswith(names.DELETED_SUFFIX)
        }
        return [one for one in found if (one.offset, one.digest) in had]

    def reasons(
        self, partition: TopicPartition, claim_end: int, *, is_key_wanted: bool = False, may_stay: str = ""
    ) -> list[dict[str, Any]]:
        """Return why nothing can be claimed of a partition, place by place, `MAX_REASONS` at most.

        `is_key_wanted`: that not even the key is there was to be claimed. `may_stay`: findings that are no reason.
        """
        found = [one.to_fields() for one in self.problems(partition)]
        if partition not in self.partitions:
            found.append({"file": names.partition_dir_name(*partition), "reason": "there is no file of it"})
        against = {what: reason for what, reason in _REASONS.items() if what != may_stay}
        claimed = self.claimed(partition, claim_end)
        own = [(one, _REASONS[one.what]) for one in claimed if one.what in against or one.has_headers]
        listed = (self.astray if is_key_wanted else self.in_the_way)[: MAX_REASONS // 2]
        astray = [(one, _IN_THE_WAY + _SET_ASIDE * _is_set_aside(one.file)) for one in listed]
        for one, reason in [*astray, *own[:MAX_REASONS]]:
            where = {} if one.offset is None else {"offset": one.offset}
            found.append({"file": one.file, "position": one.position, **where, "reason": reason})
        return found[:MAX_REASONS]

    def written_since(self, partition: TopicPartition, claim_end: int) -> list[Finding]:
        """Return the records of the key with a value at `claim_end` and above, ascending."""
        return self._since(partition, claim_end, VALUE)

    def tombstones_since(self, partition: TopicPartition, claim_end: int) -> list[Finding]:
        """Return the tombstones of the key at `claim_end` and above, each once, ascending."""
        values = {one.offset for one in self.written_since(partition, claim_end)}
        found = {one.offset: one for one in self._since(partition, claim_end, TOMBSTONE)}
        return [one for offset, one in found.items() if offset not in values]

    def _since(self, partition: TopicPartition, claim_end: int, what: str) -> list[Finding]:
        found = [one for one in self.above(partition, claim_end) if one.what == what]
        return sorted(found, key=lambda one: one.offset or 0)

    def unlisted_since(self, partition: TopicPartition, claim_end: int, whats: Collection[str] = (VALUE,)) -> int:
        """Return how many records there are at `claim_end` and above besides those that are listed.

        Of each file the lowest one is listed, so if that is not below the claim's end none of them is. Else 0: nothing can be
        claimed then, and it is unknown which of them were written since.
        """
        if any(one.what in whats for one in self.claimed(partition, claim_end)):
            return 0
        return sum(self.unlisted_in[partition, what] for what in whats)

    def has_telling(self, partition: TopicPartition, claim_end: int) -> bool:
        """Tell whether there are values below `claim_end`, or tombstones whose headers may say what they have deleted."""
        return any(_is_telling(one) for one in self.claimed(partition, claim_end))

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
            "links_not_followed": sorted(self.links)[:MAX_LISTED],
            "not_read": [one.to_fields() for one in self.unaccounted[:MAX_LISTED]],
            "decompressed_bytes": self.counts.decompressed_bytes,
            "files_gone_meanwhile": self.vanished,
            "segments_after_the_recorded_end": self.later,
            "known_positives": {"planted": self.planted, "seen": self.seen},
            "staging": self.staging,
            "engine": self.engine,
            "duration_ms": round(self.seconds * 1000),
            "unreadable": [one.to_fields() for one in self.unreadable[:MAX_LISTED]],
            "ledger": ledger(self.rows, topics),
        }


def _is_telling(finding: Finding) -> bool:
    return finding.what == VALUE or (finding.what == TOMBSTONE and bool(finding.has_headers))


def _is_set_aside(file: str) -> bool:
    return bool(names.set_aside_suffix(file.partition("/")[0]))


def _of_nobody(finding: Finding) -> Finding:
    """Return what a finding is in a file that belongs to no partition."""
    if finding.what not in (VALUE, TOMBSTONE):
        return finding._replace(topic=None, partition=None)
    return finding._replace(what=SAME_KEY, topic=None, partition=None, has_value=finding.what == VALUE)


def written_since_fields(found: Sequence[Finding], unlisted: int) -> dict[str, Any]:
    """Return what a certificate says of records that were written since; `unlisted`: how many there are besides those found."""
    return {
        "written_since": [one.to_fields() for one in found[:MAX_LISTED]],
        "written_since_not_listed": unlisted + max(0, len(found) - MAX_LISTED),
    }


def tombstones_since_fields(report: ScanReport, ends: Iterable[tuple[TopicPartition, int]]) -> dict[str, Any]:
    """Return what a certificate says of tombstones of the key behind its claims; `ends`: where these end, by partition."""
    found, unlisted = [], 0
    for partition, end in ends:
        found += report.tombstones_since(partition, end)
        unlisted += report.unlisted_since(partition, end, (TOMBSTONE,))
    return {
        "tombstones_since": [one.to_fields() for one in found[:MAX_LISTED]],
        "tombstones_since_not_listed": unlisted + max(0, len(found) - MAX_LISTED),
    }
