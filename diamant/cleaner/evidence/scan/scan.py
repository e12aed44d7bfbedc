"""The certifying scan: reads and decompresses everything in a data directory, and reports what is left in each partition.

The scan uses no index, filter or summary, only the bytes of the files. A log that takes appends is scanned up to its recorded
end (`LogEnd`). Only segments that the log has begun since are skipped, whatever a file's name: the running log must have this
file as a segment, and the file must not have existed when the scan began. A directory belongs to a partition if that partition
exists, as far as this is known (`Partitions`); otherwise its files have no owner. Files are created and removed during the scan,
so the directory is listed again until nothing in it is new: the scan misses no segment that was renamed, or rewritten by
the cleaner.

The scan is accountable: at its beginning and end `file_census` lists the directory by itself and counts what segments declare.
A file that was not read, or not wholly, makes everything inconclusive (`coverage_account`), whatever the cause. So does a scan
that misses one of the records that were planted for it (`known_positives`).

`report` holds the findings and the resulting states of partitions; `findings` limits how many findings are kept.

Any thread. Memory: that of `record_search`, for each of `threads`, that of `findings`, and 1 KB for each file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat

from diamant.cleaner.evidence.scan.coverage import FileRow
from diamant.cleaner.evidence.scan.coverage_account import CoverageAccount
from diamant.cleaner.evidence.scan.file_listing import Place, is_in_use
from diamant.cleaner.evidence.scan.file_reader import Advance, FileReader
from diamant.cleaner.evidence.scan.files_to_read import FilesToRead, FoundFile, Partitions, Scope
from diamant.cleaner.evidence.scan.report import INCONCLUSIVE, KEY_GONE, VALUES_GONE, VALUES_PRESENT, ScanReport
from diamant.cleaner.evidence.scan.staging_files import StagingPlace
from diamant.cleaner.evidence.search.file_census import FileCensus, FileKey
from diamant.cleaner.evidence.search.findings import ListCapacity, Unreadable
from diamant.cleaner.evidence.search.known_positives import KnownPositives, make_known_positives
from diamant.cleaner.evidence.search.offset_order import LogEnd
from diamant.cleaner.evidence.search.record_search import FileSearch, OnRecord, Subject
from diamant.cleaner.evidence.search.search_engine import SearchEngine
from diamant.kernels import ARE_COMPILED
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env

__all__ = [
    "INCONCLUSIVE",
    "KEY_GONE",
    "VALUES_GONE",
    "VALUES_PRESENT",
    "Advance",
    "LogEnd",
    "ScanReport",
    "scan_directory",
    "scan_partitions",
]

MAX_LISTINGS = 50
"""Listings of a directory that keeps changing; after that the scan is inconclusive."""


MAX_SHOWN = 5
"""Missed known positives that the reason lists."""


class SightCheck:
    """The check of one scan."""

    def __init__(self, env: Env, known: KnownPositives, directory: str) -> None:
        """`directory`: where the known positives are written."""
        self._env = env
        self._known = known
        self._directory = directory
        self._is_over = False
        self.planted = 0
        self.seen = 0
        self.blind = "the scan ended before it looked for the known positives that prove that it sees"
        """Reason why the scan is not proven to see; "" if it is."""

    @property
    def topic(self) -> str:
        """The topic of the known positives."""
        return self._known.topic

    def write(self) -> None:
        """Write the known positives. If that fails, nothing can be claimed."""
        known = self._known
        try:
            known.write(self._env, self._directory)
            self.planted = len(known.expected)
        except OSError as error:
            self.remove()
            reason = str(error.strerror or error)
            if error.filename:
                reason += f": {os.fsdecode(error.filename).removeprefix(f'{self._directory}/')}"
            self.blind = (
                f"known positives, which prove that the scan sees, could not be written; nothing is certain: {reason}"
            )
            self._is_over = True

    def look(self, files: Iterable[FoundFile], reader: FileReader, engine: SearchEngine) -> None:
        """Check, once, that `engine` finds all known positives, and that the plain search, which it relies on, does as well."""
        if self._is_over:
            return
        self._is_over = True
        missed: set[str] = set()
        files = [*files]
        for is_compiled in {False, engine.is_compiled}:
            asked = SearchEngine(is_compiled=is_compiled)
            searches = [reader.search_known(found, asked) for found in files]
            missed |= self._known.missed(one for search in searches if search for one in search.found.findings)
        self.remove()
        self.seen = self.planted - len(missed)
        shown = ", ".join(sorted(missed)[:MAX_SHOWN])
        self.blind = shown and f"the scan missed known positives that were written for it, and may be blind: {shown}"

    def remove(self) -> None:
        """Remove the known positives."""
        self._known.remove(self._env, self._directory)


def scan_directory(
    env: Env,
    directory: str,
    subject: Subject,
    ends: Mapping[TopicPartition, LogEnd],
    *,
    threads: int = 2,
    is_compiled: bool = ARE_COMPILED,
    advance: Advance | None = None,
    on_record: OnRecord | None = None,
    check: Callable[[], object] = bool,
    staging: StagingPlace | None = None,
    partitions: Partitions | None = None,
    prove_in: str | None = None,
    census: FileCensus | None = None,
    capacity: ListCapacity | None = None,
) -> ScanReport:
    """Scan everything in `directory`, and what jobs on Spark have at their staging place. Blocks.

    `prove_in`: the directory for the known positives; None: `directory`. Those of a local staging place are written there. If
    they cannot be written or found, nothing can be claimed.
    `is_compiled` False: the plain search reads everything. `partitions` None: names of directories are trusted.
    `census` and `capacity` None: new ones.
    `ends` are those of the logs in use; other logs are scanned whole. `check` is called every few MiB, in several threads; its
    exceptions end the scan. OSError if the directory cannot be listed.
    """
    started_s = time.monotonic()
    scope, prove_in = Scope(), prove_in or directory
    account = CoverageAccount(census or FileCensus(env, directory, _besides(staging)), ends)
    account.begin()
    is_apart = staging is not None and staging.is_apart(env, directory)
    known = make_known_positives(subject.needles.secret, staging.path_for if staging and is_apart else None)
    if staging and is_apart:
        staging = staging.with_known(known.staged, (known.topic, 0))
    subject = subject.with_known(known)
    files = FilesToRead(
        env,
        directory,
        subject,
        ends,
        account,
        scope,
        partitions=partitions,
        staging=staging,
        prove_in=prove_in,
        known_names=known.files,
    )
    capacity = capacity or ListCapacity()
    reader = FileReader(env, subject, files, scope, capacity, on_record=on_record, check=check, advance=advance)
    sight = SightCheck(env, known, prove_in)
    scan = _Scan(subject, ends, files, reader, SearchEngine(is_compiled=is_compiled), account, sight)
    try:
        sight.write()
        scan.read_everything(threads)
    finally:
        sight.remove()
    scan.sum_up()
    report = scan.report
    if staging is not None:
        # After all sources: a copy made before its source was read must be in the listing, unless it was removed.
        staging.account(report, account.problem, check)
    account.put_into(report, files.shown)
    if sight.blind:
        report.unaccounted.append(Unreadable(None, None, sight.topic, None, sight.blind))
    report.planted, report.seen = sight.planted, sight.seen
    report.seconds = time.monotonic() - started_s
    return report


def scan_partitions(
    env: Env,
    directory: str,
    subject: Subject,
    ends: Mapping[TopicPartition, LogEnd],
    partitions: Iterable[TopicPartition],
    *,
    threads: int = 2,
    is_compiled: bool = ARE_COMPILED,
    advance: Advance | None = None,
    on_record: OnRecord | None = None,
    skip: Callable[[Place], bool] | None = None,
    check: Callable[[], object] = bool,
) -> ScanReport:
    """Search some partitions for records of the key, except files that `skip` names: to locate it, never to certify.

    With `on_record`, which takes every record, the report has no findings.
    """
    started_s = time.monotonic()
    scope = Scope(frozenset(partitions), skip, is_locating=on_record is not None)
    account = CoverageAccount(FileCensus(env, directory), ends)
    files = FilesToRead(env, directory, subject, ends, account, scope)
    reader = FileReader(env, subject, files, scope, ListCapacity(), on_record=on_record, check=check, advance=advance)
    scan = _Scan(subject, ends, files, reader, SearchEngine(is_compiled=is_compiled), account)
    scan.read_everything(threads)
    scan.sum_up()
    scan.report.seconds = time.monotonic() - started_s
    return scan.report


def _besides(staging: StagingPlace | None) -> tuple[str, str] | None:
    return None if staging is None or staging.root is None else (staging.root, staging.owner)


@dataclass(slots=True)
class _Scan:
    """Reads the listed files until no new ones are listed."""

    subject: Subject
    ends: Mapping[TopicPartition, LogEnd]
    files: FilesToRead
    reader: FileReader
    engine: SearchEngine
    account: CoverageAccount
    sight: SightCheck | None = None
    """None: the scan only locates."""
    report: ScanReport = field(default_factory=ScanReport)
    found: dict[FileKey, FileSearch] = field(default_factory=dict)
    """The searches of files with findings."""

    def read_everything(self, threads: int) -> None:
        """Read all files, large ones first."""
        with ThreadPoolExecutor(max(1, threads), "certifying-scan") as pool:
            for _ in range(MAX_LISTINGS):
                found = self.files.new()
                outcomes = pool.map(self.reader.search, found, repeat(self.engine))
                for one, outcome in zip(found, outcomes, strict=True):
                    self._take(one, outcome)
                # A log that rolls all the time always has new segments.
                if all(one.is_of_later for one in found) and (self.sight is None or self._is_done(self.sight)):
                    break
            else:
                reason = f"files were created and removed all the time; after {MAX_LISTINGS} listings there were still new ones"
                for topic, partition in sorted(self._named_partitions()):
                    self.report.add_unreadable(
                        Unreadable(topic, partition, names.partition_dir_name(topic, partition), None, reason)
                    )

    def _named_partitions(self) -> set[TopicPartition]:
        return {one for one in self.ends if one[0] in self.subject.topics} | self.report.partitions

    def _is_done(self, sight: SightCheck) -> bool:
        """Tell whether the account is complete and the scan has found the known positives."""
        sight.look(self.files.known.values(), self.reader, self.engine)
        is_complete, again = self.account.look()
        for key in again:
            self.files.forget(key)
        return is_complete

    def _take(self, found: FoundFile, outcome: tuple[FileSearch, FileRow] | None) -> None:
        report = self.report
        if outcome is None:
            # If it was renamed, it is listed again.
            self.files.forget(found.key)
            report.vanished += 1
            return
        search, row = outcome
        # A file that has grown is read once more, and earlier findings are replaced.
        before = self.found.pop(found.key, None)
        if before is not None:
            self.reader.capacity.give_back(before.found.taken)
        if search.found.findings or search.found.unreadable:
            self.found[found.key] = search
        self.account.add(found.key, row, None if search.order is None else search.order.next_offset)
        report.counts.add(search.counts)
        if search.topic is not None and search.is_in_scope:
            report.partitions.add((search.topic, search.partition or 0))

    def sum_up(self) -> None:
        """Put the findings into the report."""
        report = self.report
        for key in self.account.outdated(self.found):
            del self.found[key]
        for (_, identity), search in self.found.items():
            for finding in search.found.findings:
                report.add(finding, is_in_the_way=finding.topic is None and self.subject.is_in_the_way(finding))
            for place in search.found.unreadable:
                report.add_unreadable(place)
            report.unlisted += search.found.unlisted
            if search.topic is not None and search.partition is not None:
                partition = (search.topic, search.partition)
                end = self.ends.get(partition)
                if end is not None and is_in_use(search.name, *partition):
                    base_offset = names.offset_of(search.name.rpartition("/")[2])
                    if not end.has_file(base_offset, identity):
                        report.unknown.add(search.name)
                for what, count in search.found.unlisted.items():
                    report.unlisted_in[partition, what] += count
        report.links |= self.files.links
        report.engine = self.engine.name
        report.later = len(self.files.later)
