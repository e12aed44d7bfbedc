"""The certifying scan: reads and decompresses everything that a data directory holds, and says of each partition what is left.

It asks no index, no filter and no summary: what a file holds is what its bytes say. A log that takes appends is scanned up to
its recorded end (`LogEnd`). Files come and go meanwhile, so the directory is listed again until nothing in it is new: a segment
that was renamed, or written anew by the cleaner, is not missed.

What a partition is in the end:

    inconclusive     something in it cannot be read, or bytes of a value lie outside of its records
    values-present   there is a record of the key that has a value, below the partition's claim
    values-gone      there is none; a tombstone still names the key
    key-gone         neither

A claim ends at an offset: what was written from there on is named, and claims nothing.

Any thread. Memory: that of `record_search`, for each of `threads`, and some MB for findings.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from diamant.cleaner.evidence.places import BATCHES, Place, list_places
from diamant.cleaner.evidence.record_search import (
    MAX_LISTED,
    RAW,
    SAME_BYTES,
    SAME_KEY,
    TOMBSTONE,
    VALUE,
    CompiledSearch,
    Counts,
    FileSearch,
    Finding,
    OnRecord,
    Subject,
    Unreadable,
    file_size,
    search_plain,
)
from diamant.storage import names
from diamant.storage.checkpoints import TopicPartition
from diamant.storage.env import Env
from diamant.storage.errors import StorageError

INCONCLUSIVE = "inconclusive"
VALUES_PRESENT = "values-present"
VALUES_GONE = "values-gone"
KEY_GONE = "key-gone"

MAX_LISTINGS = 50
"""How often a directory that never comes to rest is listed; then the scan is inconclusive."""

MAX_RETRIES = 3
"""How often a file is read again that changed while it was read."""

COMPILED_FROM_BYTES = 64 * 1024 * 1024
"""Below this loading the compiled walk takes longer than it saves."""

Advance = Callable[[int, int], object]
"""Is told of the bytes scanned so far, and of those found so far to be scanned. Any thread."""


class LogEnd(NamedTuple):
    """Up to where a log in use is scanned; taken by its owner in one turn."""

    log_end_offset: int
    active_base_offset: int
    active_size: int


@dataclass(slots=True)
class ScanReport:
    """What was read and found."""

    findings: list[Finding] = field(default_factory=list)
    unlisted: dict[str, int] = field(default_factory=dict)
    unlisted_values: dict[TopicPartition, int] = field(default_factory=dict)
    """Records of the key beyond those that are listed, by partition: where they are nobody knows."""
    unreadable: list[Unreadable] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    files_by_sort: dict[str, int] = field(default_factory=dict)
    vanished: int = 0
    """Files that were listed and gone when their turn came; what replaced them was scanned."""
    later: int = 0
    """Segments that were begun after the recorded end."""
    engine: str = "plain"
    seconds: float = 0.0
    partitions: set[TopicPartition] = field(default_factory=set)
    """Those of the erasure's topics of which files were scanned."""

    @property
    def gigabytes_per_second(self) -> float:
        """What was read of files in a second, as they lie on the disk."""
        return self.counts.bytes / 1e9 / self.seconds if self.seconds else 0.0

    def of(self, partition: TopicPartition) -> list[Finding]:
        """Return what was found in a partition's directories."""
        return [one for one in self.findings if (one.topic, one.partition) == partition]

    def problems(self, partition: TopicPartition) -> list[Unreadable]:
        """Return what could not be read of a partition."""
        return [one for one in self.unreadable if (one.topic, one.partition) == partition]

    def state(self, partition: TopicPartition, claim_end: int, key_digest: str) -> str:
        """Return what a partition is, for offsets below `claim_end`. Directories set aside count whole."""
        found = self.of(partition)
        live = names.partition_dir_name(*partition) + "/"
        claimed = [
            one for one in found if one.offset is None or one.offset < claim_end or not one.file.startswith(live)
        ]
        raw = [one for one in claimed if one.what == RAW]
        if self.problems(partition) or any(one.digest != key_digest for one in raw):
            return INCONCLUSIVE
        if any(one.what == VALUE for one in claimed) or self.unlisted_values.get(partition):
            return VALUES_PRESENT
        if any(one.what == TOMBSTONE for one in claimed):
            return VALUES_GONE
        return INCONCLUSIVE if raw else KEY_GONE

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

    @property
    def elsewhere(self) -> list[Finding]:
        """Return the same key in other topics, and the same bytes under other keys."""
        return [one for one in self.findings if one.what in (SAME_KEY, SAME_BYTES)]

    @property
    def astray(self) -> list[Finding]:
        """Return bytes found in files that belong to no partition."""
        return [one for one in self.findings if one.what == RAW and one.topic is None]

    def coverage(self) -> dict[str, Any]:
        """Return what was read, for a certificate."""
        counts = self.counts
        return {
            "files": counts.files,
            "files_by_sort": dict(sorted(self.files_by_sort.items())),
            "bytes": counts.bytes,
            "decompressed_bytes": counts.decompressed_bytes,
            "batches": counts.batches,
            "records": counts.records,
            "files_gone_meanwhile": self.vanished,
            "segments_after_the_recorded_end": self.later,
            "engine": self.engine,
            "duration_ms": round(self.seconds * 1000),
            "unreadable": [one.to_fields() for one in self.unreadable[:MAX_LISTED]],
        }


def scan_directory(
    env: Env,
    directory: str,
    subject: Subject,
    ends: Mapping[TopicPartition, LogEnd],
    *,
    threads: int = 2,
    is_compiled: bool | None = None,
    advance: Advance | None = None,
    on_record: OnRecord | None = None,
) -> ScanReport:
    """Scan everything in `directory`; blocks. `is_compiled` None: if there is enough to read for it to pay.

    `ends` are those of the logs in use; others are scanned whole. OSError if the directory cannot be listed.
    """
    return _Scan(env, directory, subject, ends, on_record).run(threads, is_compiled, advance)


def scan_partitions(
    env: Env,
    directory: str,
    subject: Subject,
    ends: Mapping[TopicPartition, LogEnd],
    partitions: Iterable[TopicPartition],
    *,
    threads: int = 2,
    is_compiled: bool | None = None,
    advance: Advance | None = None,
    on_record: OnRecord | None = None,
    skip: Callable[[Place], bool] | None = None,
) -> ScanReport:
    """Look for the key in some partitions only, and not in files that `skip` names: to locate it, never to certify."""
    scan = _Scan(env, directory, subject, ends, on_record)
    scan.only = frozenset(partitions)
    scan.skip = skip
    return scan.run(threads, is_compiled, advance)


class _Listed(NamedTuple):
    """A file that is to be read."""

    place: Place
    size: int
    identity: tuple[Any, ...]


class _Scan:
    def __init__(
        self,
        env: Env,
        directory: str,
        subject: Subject,
        ends: Mapping[TopicPartition, LogEnd],
        on_record: OnRecord | None,
    ) -> None:
        self._env = env
        self._directory = directory
        self._subject = subject
        self._ends = ends
        self._on_record = on_record
        self.only: frozenset[TopicPartition] | None = None
        self.skip: Callable[[Place], bool] | None = None
        self.report = ScanReport()
        self._lock = threading.Lock()
        self._local = threading.local()
        self._seen: set[tuple[Any, ...]] = set()
        self._later: set[str] = set()
        self._scanned_bytes = 0
        self._known_bytes = 0

    def run(self, threads: int, is_compiled: bool | None, advance: Advance | None) -> ScanReport:
        started_s = time.monotonic()
        self._advance = advance
        self._is_compiled = is_compiled
        with ThreadPoolExecutor(max(1, threads), "certifying-scan") as pool:
            for _ in range(MAX_LISTINGS):
                places = self._new_places()
                if not places:
                    break
                if self._is_compiled is None:
                    large = sum(one.size for one in places if one.place.content == BATCHES)
                    self._is_compiled = large >= COMPILED_FROM_BYTES and self._subject.key is not None
                searches = pool.map(self._search, [one.place for one in places])
                for one, search in zip(places, searches, strict=True):
                    if search is None:
                        # Under another name it is the same file, and nobody has read it yet.
                        self._seen.discard(one.identity)
                    self._take(search)
            else:
                reason = f"files came and went all the time, after {MAX_LISTINGS} listings there were new ones still"
                for topic, partition in sorted(self._named_partitions()):
                    self.report.unreadable.append(
                        Unreadable(topic, partition, names.partition_dir_name(topic, partition), None, reason)
                    )
        self.report.engine = "compiled" if self._is_compiled else "plain"
        self.report.later = len(self._later)
        self.report.seconds = time.monotonic() - started_s
        return self.report

    def _named_partitions(self) -> set[TopicPartition]:
        return {one for one in self._ends if one[0] in self._subject.topics} | self.report.partitions

    def _new_places(self) -> list[_Listed]:
        """Return the files that were not scanned yet, large ones first."""
        found = []
        for place in list_places(self._env, self._directory):
            if not self._is_wanted(place):
                continue
            try:
                identity, size = self._identity(place)
            except FileNotFoundError:
                continue
            if identity not in self._seen:
                self._seen.add(identity)
                found.append(_Listed(place, size, identity))
        self._known_bytes += sum(one.size for one in found)
        return sorted(found, key=lambda one: -one.size)

    def _is_wanted(self, place: Place) -> bool:
        if self.only is not None and (place.topic, place.partition) not in self.only:
            return False
        if self.skip is not None and self.skip(place):
            return False
        end = self._end(place)
        if end is not None and place.base_offset is not None and place.base_offset > end.active_base_offset:
            # An output of the cleaner may begin higher than a source, never above the active segment.
            self._later.add(place.name)
            return False
        return True

    def _end(self, place: Place) -> LogEnd | None:
        if place.topic is None or place.partition is None or place.base_offset is None:
            return None
        return self._ends.get((place.topic, place.partition))

    def _identity(self, place: Place) -> tuple[tuple[Any, ...], int]:
        """Return what tells a file from another one of its name. Renaming it, or appending to it, makes it no other."""
        born = self._env.birth_ms(place.path)
        size = self._env.file_size(place.path)
        try:
            found = os.stat(place.path)
        except OSError:
            # A file system in memory has no such numbers.
            return (place.path, size, self._env.mtime_ms(place.path)), size
        if born is None:
            born = found.st_mtime_ns
        return (found.st_dev, found.st_ino, born), size

    def _search(self, place: Place) -> FileSearch | None:
        """Search one file; None if it is gone."""
        for attempt in range(1, MAX_RETRIES + 1):
            search = FileSearch(self._subject, place.topic, place.partition, place.name, self._on_record)
            try:
                before = self._env.file_size(place.path), self._env.mtime_ms(place.path)
                self._read(place, search, has_limit=attempt == 1)
                if not search.unreadable or attempt == MAX_RETRIES:
                    break
                if attempt > 1 and before == (self._env.file_size(place.path), self._env.mtime_ms(place.path)):
                    break
            except FileNotFoundError:
                return None
            except (OSError, StorageError) as error:
                search.fail(None, f"it cannot be read: {getattr(error, 'strerror', None) or error}")
                break
        search.counts.files = 1
        with self._lock:
            self.report.files_by_sort[place.sort] = self.report.files_by_sort.get(place.sort, 0) + 1
            self._scanned_bytes += search.counts.bytes
            if self._advance is not None:
                self._advance(self._scanned_bytes, max(self._known_bytes, self._scanned_bytes))
        return search

    def _read(self, place: Place, search: FileSearch, *, has_limit: bool) -> None:
        file = self._env.open(place.path, read_only=True)
        try:
            end = self._end(place)
            is_active = end is not None and end.active_base_offset == place.base_offset
            # If the limit cuts a batch, the file is not the one any more that it was recorded of.
            size = file_size(file, end.active_size if end is not None and is_active and has_limit else None)
            search.counts.bytes = size
            if place.content != BATCHES:
                search.search_raw(file, 0, size)
            elif self._is_compiled:
                self._compiled().search(search, file, size)
            else:
                search_plain(search, file, size)
        finally:
            file.close()

    def _compiled(self) -> CompiledSearch:
        found: CompiledSearch | None = getattr(self._local, "compiled", None)
        if found is None:
            with self._lock:
                found = self._local.compiled = CompiledSearch()
        return found

    def _take(self, search: FileSearch | None) -> None:
        report = self.report
        if search is None:
            report.vanished += 1
            return
        report.counts.add(search.counts)
        report.unreadable += search.unreadable
        partition = (search.topic or "", search.partition or 0)
        if search.topic is not None and search.is_in_scope:
            report.partitions.add(partition)
        room: dict[str, int] = {}
        for finding in search.findings:
            listed = room.setdefault(
                finding.what,
                MAX_LISTED - sum(1 for one in report.findings if one.what == finding.what),
            )
            # What decides about a partition is kept, whatever else there is.
            if listed > 0 or finding.what in (VALUE, TOMBSTONE):
                room[finding.what] -= 1
                report.findings.append(finding)
            else:
                report.unlisted[finding.what] = report.unlisted.get(finding.what, 0) + 1
        for what, count in search.unlisted.items():
            report.unlisted[what] = report.unlisted.get(what, 0) + count
            if what == VALUE:
                report.unlisted_values[partition] = report.unlisted_values.get(partition, 0) + count
