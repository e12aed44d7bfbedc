"""The report of a certifying scan: amounts read, findings, and the resulting state of each partition.

    inconclusive     part of the partition is unreadable, bytes of a value lie outside its records, the scan cannot account for
                     everything that exists (`coverage`), or a file of no partition contains something to be removed
    values-present   below the end of the claim, there is a record of the key with a value, or a tombstone with headers
    values-gone      there is no such record, but a tombstone still names the key
    key-gone         there is neither a record nor a tombstone of the key
    not-there        the partition has no file at all

A claim ends at an offset. Records at or above that offset are listed, but do not affect the claim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

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
from diamant.cleaner.evidence.search.needles import Needle
from diamant.cleaner.evidence.search.record_search import Counts, Subject
from diamant.cleaner.evidence.search.remains import values_of
from diamant.storage import names
from diamant.storage.certificate_states import KEY_GONE, VALUES_GONE
from diamant.storage.checkpoints.checkpoints import TopicPartition

INCONCLUSIVE = "inconclusive"
VALUES_PRESENT = "values-present"
NOT_THERE = "not-there"

MAX_REASONS = 10
"""Maximum number of places that are listed as reasons why a partition has no claim."""

MAY_MATCH = "it cannot be decided whether this record matches"
_REASONS = {
    VALUE: "there is a record that is to be gone",
    TOMBSTONE: "there is a record that is to be gone",
    RAW: "bytes to be removed lie outside of records",
    UNDECIDED: MAY_MATCH,
}
_IN_THE_WAY = {
    SAME_KEY: "a record to be removed is in this file",
    UNDECIDED: "a record that may be one to be removed is in this file",
}
_BYTES_IN_THE_WAY = "bytes to be removed are in this file"
_OF_NOBODY = ", which belongs to no partition: remove it, or move it out of the data directory"
_SET_ASIDE = "; its directory was set aside, and there is no such partition: if it is not needed, remove it"


@dataclass(slots=True)
class ScanReport:
    """The amounts read and the findings.

    If there are very many findings, `findings` is incomplete, but always includes those that decide (module `findings`).
    """

    findings: list[Finding] = field(default_factory=list, init=False)
    elsewhere: list[Finding] = field(default_factory=list, init=False)
    """The same key in other topics, the same bytes under other keys, and bytes outside records in other topics."""
    astray: list[Finding] = field(default_factory=list, init=False)
    """Findings in files that belong to no partition, such as copied segments, and so may concern any partition."""
    in_the_way: list[Finding] = field(default_factory=list, init=False)
    """The findings in `astray` that prevent claims about all partitions (`Subject.is_in_the_way`)."""
    kept_on_purpose: set[str] = field(default_factory=set, init=False)
    """Files whose findings are harmless (`set_aside`)."""
    values: frozenset[bytes] = frozenset()
    """Digests of the values that were searched for."""
    unlisted: Counter[str] = field(default_factory=Counter, init=False)
    """Number of findings that are not listed, by kind."""
    unlisted_in: Counter[tuple[TopicPartition, str]] = field(default_factory=Counter, init=False)
    """Number of findings that are not listed, by partition and kind, including copies and records above the claims."""
    unreadable: list[Unreadable] = field(default_factory=list, init=False)
    unreadable_astray: list[Unreadable] = field(default_factory=list, init=False)
    """Unreadable files that belong to no partition, and so may contain records of any partition."""
    _found_in: dict[TopicPartition, list[Finding]] = field(default_factory=dict, init=False)
    _unreadable_in: dict[TopicPartition, list[Unreadable]] = field(default_factory=dict, init=False)
    unknown: set[str] = field(default_factory=set)
    """Files that are named like segments in use, but that their log does not have. Their offsets are not the log's."""
    counts: Counts = field(default_factory=Counts)
    rows: list[FileRow] = field(default_factory=list)
    """The amount read of each file that existed at the end; about 1 KB each."""
    files_listed: int = 0
    """Number of files that the census saw at the end."""
    unaccounted: list[Unreadable] = field(default_factory=list)
    """Files that the scan missed. If there are any, anywhere in the directory, nothing can be claimed."""
    vanished: int = 0
    """Number of listed files that disappeared before they were read; their replacements were scanned."""
    later: int = 0
    """Number of segments that were skipped because their logs began them after the recorded ends."""
    planted: int = 0
    """Number of known positives written for this scan."""
    seen: int = 0
    """Number of known positives that each engine found."""
    engine: str = "plain"
    seconds: float = 0.0
    staging: dict[str, object] | None = None
    """The staging location of Spark jobs at the time of the scan (`staging_files`); None if none is configured."""
    links: set[str] = field(default_factory=set)
    """Names of symbolic links that were not followed (`file_listing`)."""
    snapshot_places: list[str] = field(default_factory=list)
    """Directories that were checked for snapshots of the data; existing snapshots are `unaccounted`."""
    partitions: set[TopicPartition] = field(default_factory=set)
    """The partitions of the erasure's topics that had files to scan."""

    def add(self, finding: Finding, *, is_in_the_way: bool = False) -> None:
        """Add a finding. Must not be called before `partitions` is complete."""
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
        """Add an unreadable place."""
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
        """Detach findings from partitions that these topics do not have, so that they belong to no partition.

        `known`: partitions that have or may get claims; they keep all findings. `later`: other existing partitions; they lose
        only the findings in directories that were set aside. Must be called in the turn of the event loop that read both.
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
        # The same bytes under other keys are reported wherever they are.
        astray = [_of_nobody(one) for one in found if one.what != SAME_BYTES]
        self.astray += astray
        self.in_the_way += [one for one in astray if subject.is_in_the_way(one)]
        self.unreadable_astray += [one._replace(topic=None, partition=None) for one in unreadable]

    def set_aside(self, files: Collection[str]) -> bool:
        """Move the findings in these harmless files of no partition to `elsewhere`; return False if `files` is empty."""
        self.kept_on_purpose.update(files)
        self.elsewhere += [one for one in self.astray if one.file in files]
        self.astray = [one for one in self.astray if one.file not in files]
        self.in_the_way = [one for one in self.in_the_way if one.file not in files]
        return bool(files)

    def of(self, partition: TopicPartition) -> list[Finding]:
        """Return the findings in a partition's directories. The caller must not change the list."""
        return self._found_in.get(partition, [])

    def problems(self, partition: TopicPartition) -> list[Unreadable]:
        """Return the unreadable places of a partition, those in files of no partition, and the files that the scan missed.

        Returns at most `MAX_REASONS` of them.
        """
        own = self._unreadable_in.get(partition, ())
        return list(islice(chain(own, self.unreadable_astray, self.unaccounted), MAX_REASONS))

    def state(self, partition: TopicPartition, claim_end: int, key_digest: str) -> str:
        """Return the state of a partition for offsets below `claim_end`."""
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
        """Return a partition's findings below `claim_end`, and its findings outside records.

        Findings that are not in segments of its log, or in directories that were set aside, are included whatever their offset,
        because it is not an offset of this log.
        """
        above = {id(one) for one in self.above(partition, claim_end)}
        return [one for one in self.of(partition) if id(one) not in above]

    def above(self, partition: TopicPartition, claim_end: int) -> list[Finding]:
        """Return the findings in the partition's log at `claim_end` and above.

        A cleaning round outputs only records of its log. So a finding in such output counts only if the log has the record, too;
        otherwise the offset may be another log's.
        """
        found = [one for one in self.of(partition) if one.offset is not None and one.offset >= claim_end]
        found = [one for one in found if one.file not in self.unknown and is_of_log(one.file, *partition)]
        had = {
            (one.offset, one.digest)
            for one in found
            if is_in_use(one.file, *partition) or one.file.endswith(names.DELETED_SUFFIX)
        }
        return [one for one in found if (one.offset, one.digest) in had]

    def has_seen_gone(self, needles: Iterable[Needle]) -> bool:
        """Tell whether everything was searched for all these values, and none was found outside the records of a partition.

        Findings in any topic's directories count, because the bytes may prevent another job's claims.
        """
        if not self.rows or self.unreadable or self.unaccounted or any(self.unlisted.values()):
            return False
        digests = {one.digest for one in values_of(needles)}
        outside = (one for one in chain(self.findings, self.astray) if one.what == RAW or one.topic is None)
        seen = {bytes.fromhex(one.digest) for one in outside if one.file not in self.kept_on_purpose}
        return digests <= self.values - seen

    def reasons(
        self, partition: TopicPartition, claim_end: int, *, is_key_wanted: bool = False, may_stay: str = ""
    ) -> list[dict[str, object]]:
        """Return the reasons against a claim about a partition, one for each place, but at most `MAX_REASONS`.

        `is_key_wanted`: True if the claim says that the key is gone, too. `may_stay`: a kind of finding that may remain.
        """
        found = [one.to_fields() for one in self.problems(partition)]
        if partition not in self.partitions:
            found.append({"file": names.partition_dir_name(*partition), "reason": "the partition has no file"})
        against = {what: reason for what, reason in _REASONS.items() if what != may_stay}
        claimed = self.claimed(partition, claim_end)
        own = [(one, _REASONS[one.what]) for one in claimed if one.what in against or one.has_headers]
        listed = (self.astray if is_key_wanted else self.in_the_way)[: MAX_REASONS // 2]
        astray = [(one, _reason_astray(one)) for one in listed]
        for one, reason in [*astray, *own[:MAX_REASONS]]:
            where = {} if one.offset is None else {"offset": one.offset}
            found.append({"file": one.file, "position": one.position, **where, "reason": reason})
        return found[:MAX_REASONS]

    def written_since(self, partition: TopicPartition, claim_end: int) -> list[Finding]:
        """Return the records of the key at `claim_end` and above that have a value, sorted by offset."""
        return self._since(partition, claim_end, VALUE)

    def tombstones_since(self, partition: TopicPartition, claim_end: int) -> list[Finding]:
        """Return the tombstones of the key at `claim_end` and above, each once, sorted by offset."""
        values = {one.offset for one in self.written_since(partition, claim_end)}
        found = {one.offset: one for one in self._since(partition, claim_end, TOMBSTONE)}
        return [one for offset, one in found.items() if offset not in values]

    def _since(self, partition: TopicPartition, claim_end: int, what: str) -> list[Finding]:
        found = [one for one in self.above(partition, claim_end) if one.what == what]
        return sorted(found, key=lambda one: one.offset or 0)

    def unlisted_since(self, partition: TopicPartition, claim_end: int, whats: Collection[str] = (VALUE,)) -> int:
        """Return the number of records at `claim_end` and above that are not listed.

        The lowest record of each file is always listed. So if no listed record is below `claim_end`, no unlisted one is. If one
        is, returns 0: it is unknown which of the unlisted records are above `claim_end`, and nothing can be claimed anyway.
        """
        if any(one.what in whats for one in self.claimed(partition, claim_end)):
            return 0
        return sum(self.unlisted_in[partition, what] for what in whats)

    def has_telling(self, partition: TopicPartition, claim_end: int) -> bool:
        """Tell whether there are values below `claim_end`, or tombstones whose headers may describe what they deleted."""
        return any(_is_telling(one) for one in self.claimed(partition, claim_end))

    def tombstones(self, partition: TopicPartition, claim_end: int) -> list[Finding]:
        """Return the tombstones of the key below `claim_end`."""
        return [
            one
            for one in self.of(partition)
            if one.what == TOMBSTONE and one.offset is not None and one.offset < claim_end
        ]

    def elsewhere_not_listed(self, listed: int) -> int:
        """Return the number of findings beyond the first `listed` of `elsewhere` and `astray`."""
        unlisted = sum(count for what, count in self.unlisted.items() if what not in DECIDING)
        return unlisted + max(0, len(self.elsewhere) + len(self.astray) - listed)

    def coverage(self, topics: frozenset[str] = frozenset()) -> dict[str, object]:
        """Return the `coverage` of a certificate about the given topics."""
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
            "snapshots_looked_for": self.snapshot_places,
            "engine": self.engine,
            "duration_ms": round(self.seconds * 1000),
            "unreadable": [one.to_fields() for one in self.unreadable[:MAX_LISTED]],
            "ledger": ledger(self.rows, topics),
        }


def _is_telling(finding: Finding) -> bool:
    return finding.what == VALUE or (finding.what == TOMBSTONE and bool(finding.has_headers))


def _is_set_aside(file: str) -> bool:
    return bool(names.set_aside_suffix(file.partition("/")[0]))


def _reason_astray(finding: Finding) -> str:
    what = _IN_THE_WAY.get(finding.what, _BYTES_IN_THE_WAY)
    return what + (_SET_ASIDE if _is_set_aside(finding.file) else _OF_NOBODY)


def _of_nobody(finding: Finding) -> Finding:
    """Return a finding as if its file belonged to no partition."""
    if finding.what not in (VALUE, TOMBSTONE):
        return finding._replace(topic=None, partition=None)
    return finding._replace(what=SAME_KEY, topic=None, partition=None, has_value=finding.what == VALUE)


def written_since_fields(found: Sequence[Finding], unlisted: int) -> dict[str, object]:
    """Return a certificate's fields about records written since. `unlisted`: the number of such records missing in `found`."""
    return {
        "written_since": [one.to_fields() for one in found[:MAX_LISTED]],
        "written_since_not_listed": unlisted + max(0, len(found) - MAX_LISTED),
    }


def tombstones_since_fields(report: ScanReport, ends: Iterable[tuple[TopicPartition, int]]) -> dict[str, object]:
    """Return a certificate's fields about tombstones of the key above its claims. `ends`: where the claims end."""
    found, unlisted = [], 0
    for partition, end in ends:
        found += report.tombstones_since(partition, end)
        unlisted += report.unlisted_since(partition, end, (TOMBSTONE,))
    return {
        "tombstones_since": [one.to_fields() for one in found[:MAX_LISTED]],
        "tombstones_since_not_listed": unlisted + max(0, len(found) - MAX_LISTED),
    }
