"""Finds the records of a key in all partitions of some topics before the erasure, and keeps digests of their values.

Segments may be skipped here because of their filters. If a stale filter hides records, the certifying scan finds them.

Can be used in any thread. Memory: at most `MAX_COUNTED` offsets per partition until the caller clears `LocatedKey.seen`, then
`MAX_OFFSETS`; and needles for at most `needles.MAX_NEEDLES` values.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from diamant.cleaner.erasure_state.intent import Found
from diamant.cleaner.evidence.scan.file_listing import Place, is_in_use, is_of_log
from diamant.cleaner.evidence.scan.file_reader import Advance
from diamant.cleaner.evidence.scan.report import ScanReport
from diamant.cleaner.evidence.scan.scan import scan_partitions
from diamant.cleaner.evidence.search.file_census import FileKey, file_identity
from diamant.cleaner.evidence.search.needles import (
    KEY,
    MAX_NEEDLES,
    Needle,
    Sample,
    is_telling,
    keyed_digest,
    make_needle,
)
from diamant.cleaner.evidence.search.needles import VALUE as VALUE_NEEDLE
from diamant.cleaner.evidence.search.offset_order import LogEnd
from diamant.cleaner.evidence.search.record_search import FileSearch, Subject
from diamant.cleaner.facts.key_filter import cannot_hold
from diamant.cleaner.segments.strict_reader import read_chunks
from diamant.protocol.batches.batch_records import records_payload
from diamant.protocol.batches.header import BatchHeader, Record
from diamant.protocol.errors import CorruptBatch
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env
from diamant.storage.errors import CorruptLog

MAX_OFFSETS = 100
"""Maximum number of values in a partition that are listed with offset and digest."""
MAX_OFFSETS_IN_ALL = 20_000
"""Maximum number for all partitions, so that a certificate about thousands of them is not too large to send. Each partition may
list at least one value."""
MAX_COUNTED = 100_000
"""Maximum number of distinct offsets that are remembered per partition; beyond it, copies count as records."""
MAX_SAMPLED = 16
SAMPLE_BYTES = 512 * 1024


@dataclass(slots=True)
class LocatedKey:
    """The records of the key in one partition."""

    topic: str
    partition: int
    values: int = 0
    """Number of records with a value, without copies."""
    copies: int = 0
    """Number of records with a value, including copies, such as those in files that are waiting to be deleted."""
    tombstones: int = 0
    first_offsets: list[int] = field(default_factory=list)
    """The lowest offsets of values, ascending; `locate_key` decides how many."""
    value_digests: list[str] = field(default_factory=list)
    last_said_offset: int = -1
    """Highest offset in the log itself at which the key has data: a value, or a tombstone with headers, which may describe the
    superseded value."""
    last_tombstone_offset: int = -1
    """Highest offset, in a segment in use, of a tombstone without headers that is not transactional, so that no abort can undo
    it."""
    files: set[str] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)
    """Distinct offsets of values, at most `MAX_COUNTED`. The caller clears them."""

    @property
    def needs_tombstone(self) -> bool:
        """True unless a tombstone without headers supersedes all values, and all tombstones with headers."""
        return self.last_said_offset > self.last_tombstone_offset

    def shown(self, names_shown: Mapping[str, str]) -> Found:
        """Return the records in the form for certificates. `names_shown`: the names that certificates show, by file name."""
        files = tuple(sorted(names_shown[name] for name in self.files))
        offsets, digests = tuple(self.first_offsets), tuple(self.value_digests)
        return Found(self.values, self.copies, self.tombstones, offsets, digests, files)


def locate_key(
    env: Env,
    directory: str,
    subject: Subject,
    ends: Mapping[TopicPartition, LogEnd],
    partitions: Iterable[TopicPartition],
    *,
    uses_filters: bool = False,
    advance: Advance | None = None,
    check: Callable[[], object] = bool,
) -> tuple[list[LocatedKey], ScanReport]:
    """Find the key's records; return them by partition, in ascending order, with the scan's report. Does blocking I/O.

    Adds needles for the key and the values to the subject. If `uses_filters`, segments whose filter excludes the key are skipped.
    """
    wanted = sorted(partitions)
    sample = take_sample(env, directory, wanted)
    assert subject.key is not None
    subject.needles.add(KEY, subject.key, sample)
    listed = max(1, min(MAX_OFFSETS, MAX_OFFSETS_IN_ALL // max(1, len(wanted))))
    collector = _Collector(subject.needles.secret, sample, listed, ends)
    skip = filter_skip(env, directory, subject.key) if uses_filters else None
    report = scan_partitions(
        env,
        directory,
        subject,
        ends,
        wanted,
        advance=advance,
        on_record=collector.add,
        skip=skip,
        check=check,
    )
    for needle in collector.needles.values():
        subject.needles.add_needle(needle)
    subject.needles.left_out += collector.left_out
    for one in collector.found.values():
        one.first_offsets = sorted(one.seen)[:listed]
    return [collector.found[key] for key in sorted(collector.found)], report


def filter_skip(env: Env, directory: str, key: bytes | None) -> Callable[[Place], bool] | None:
    """Return a function that tells whether a segment's filter excludes a key; None without a key or if there are no filters.

    The function caches its answer for each file, because scans list the same files repeatedly. It is not thread-safe.
    """
    if key is None:
        return None
    try:
        hash_key: bytes = env.read_bytes(f"{directory}/{names.HASH_KEY}")
    except OSError:
        return None

    known: dict[FileKey, bool] = {}

    def can_skip(place: Place) -> bool:
        if place.base_offset is None:
            return False
        try:
            identity, size = file_identity(env, place.path)
        except OSError:
            return False
        file = place.path, identity
        if file not in known:
            known[file] = cannot_hold(env, place.path, place.base_offset, size, [key], hash_key)
        return known[file]

    return can_skip


def take_sample(env: Env, directory: str, partitions: Iterable[TopicPartition]) -> Sample:
    """Count how often short byte sequences (windows) occur at the beginning of some partitions' logs."""
    sample = Sample()
    for topic, partition in list(partitions)[:MAX_SAMPLED]:
        path = f"{directory}/{names.partition_dir_name(topic, partition)}"
        try:
            segments = [name for name in env.list_dir(path) if name.endswith(names.LOG_SUFFIX)]
            if segments:
                _sample_segment(env, f"{path}/{segments[0]}", sample)
        except (OSError, CorruptLog, CorruptBatch):
            continue  # The sample only affects speed.
    return sample


def _sample_segment(env: Env, path: str, sample: Sample) -> None:
    file = env.open(path, read_only=True)
    try:
        for chunk in read_chunks(file, 0, file.size(), SAMPLE_BYTES):
            for at, header in chunk.headers:
                if header.magic == 2 and header.record_count:
                    sample.add(records_payload(chunk.data, at, header, max_bytes=4 * 1024 * 1024))
            return
    finally:
        file.close()


class _Collector:
    def __init__(self, secret: bytes, sample: Sample, listed: int, ends: Mapping[TopicPartition, LogEnd]) -> None:
        self.found: dict[TopicPartition, LocatedKey] = {}
        self.needles: dict[bytes, Needle] = {}
        self.left_out = 0
        self._secret = secret
        self._sample = sample
        self._listed = listed
        self._ends = ends
        self._lock = threading.Lock()

    def add(self, search: FileSearch, record: Record, header: BatchHeader) -> None:
        assert search.topic is not None
        assert search.partition is not None
        value = record.value
        digest = b"" if value is None else keyed_digest(self._secret, value)
        with self._lock:
            one = self.found.setdefault((search.topic, search.partition), LocatedKey(search.topic, search.partition))
            one.files.add(search.name)
            # Offsets in other files belong to another log: that of an earlier topic with this name, or of a copy.
            end = self._ends.get((search.topic, search.partition))
            is_own = is_of_log(search.name, search.topic, search.partition) and (
                end is None or record.offset < end.log_end_offset
            )
            if value is None:
                one.tombstones += 1
                is_used = is_in_use(search.name, search.topic, search.partition)
                if record.headers:
                    one.last_said_offset = max(one.last_said_offset, record.offset if is_own else -1)
                elif is_used and not header.is_transactional:
                    one.last_tombstone_offset = max(one.last_tombstone_offset, record.offset)
                return
            one.copies += 1
            if record.offset not in one.seen:
                one.values += 1
                if len(one.seen) < MAX_COUNTED:
                    one.seen.add(record.offset)
            if is_own:
                one.last_said_offset = max(one.last_said_offset, record.offset)
            if len(one.value_digests) < self._listed and digest.hex() not in one.value_digests:
                one.value_digests.append(digest.hex())
            if digest in self.needles or not is_telling(value):
                return
            if len(self.needles) >= MAX_NEEDLES:
                self.left_out += 1
                return
            self.needles[digest] = make_needle(VALUE_NEEDLE, value, digest, self._sample)
