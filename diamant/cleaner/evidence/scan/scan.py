"""The certifying scan: reads and decompresses everything in a data directory, and reports what is left in each partition.

The scan uses no index, filter or summary, only the bytes of the files. A log that takes appends is scanned up to its recorded
end (`LogEnd`). Only segments that the log has begun since are skipped. A file's name is no proof of that: the running log must
have the file as a segment, and the file must not have existed when the scan began. A directory belongs to the partition in its
name if that partition is known to exist (`Partitions`); otherwise its files have no owner. Files are created and removed during
the scan, so the directory is listed again until nothing in it is new. Thus the scan misses no segment that was renamed or
rewritten.

The scan has to account for everything: before and after it, `file_census` lists the directory independently and counts what the
segments declare. If a file was not read completely, whatever the cause, everything is inconclusive (`coverage_account`). The same
applies if the scan misses a record that was planted for it (`known_positives`).

`report` holds the findings and the resulting states of partitions; `findings` limits how many findings are kept.

Thread-safe. Memory: that of `record_search` for each of `threads` threads, that of `findings`, and 1 KB per file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat

from diamant.cleaner.evidence.scan.coverage import FileRow
from diamant.cleaner.evidence.scan.coverage_account import CoverageAccount
from diamant.cleaner.evidence.scan.file_listing import Place, is_in_use
from diamant.cleaner.evidence.scan.file_reader import Advance, FileReader
from diamant.cleaner.evidence.scan.files_to_read import FilesToRead, FoundFile, Partitions, Scope
from diamant.cleaner.evidence.scan.report import ScanReport
from diamant.cleaner.evidence.scan.staging_files import StagingPlace
from diamant.cleaner.evidence.search.file_census import FileCensus, FileKey
from diamant.cleaner.evidence.search.findings import ListCapacity, Unreadable
from diamant.cleaner.evidence.search.joint_subject import JointSubject
from diamant.cleaner.evidence.search.known_positives import KnownPositives, make_known_positives
from diamant.cleaner.evidence.search.offset_order import LogEnd
from diamant.cleaner.evidence.search.record_search import FileSearch, OnRecord, Subject
from diamant.cleaner.evidence.search.search_engine import SearchEngine
from diamant.kernels import ARE_COMPILED
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env

MAX_LISTINGS = 50
"""Maximum number of listings of a directory that keeps changing; after them the scan is inconclusive."""


MAX_SHOWN = 5
"""Maximum number of missed known positives that are listed in the reason."""


class SightCheck:
    """Checks once that a scan finds its known positives."""

    def __init__(self, env: Env, known: KnownPositives, directory: str) -> None:
        """`directory`: where the known positives are written."""
        self._env = env
        self._known = known
        self._directory = directory
        self._is_over = False
        self.planted = 0
        self.seen = 0
        self.blind = "the scan ended before it looked for the known positives that prove that it sees"
        """Why it is not proven that the scan finds what it looks for; "" if it is proven."""

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
        """Check that `engine`, and the plain search that it relies on, find all known positives for each subject.

        Does nothing if the check was already made, or if the known positives could not be written.
        """
        if self._is_over:
            return
        self._is_over = True
        missed: set[str] = set()
        files = [*files]
        for is_compiled in {False, engine.is_compiled}:
            asked = SearchEngine(is_compiled=is_compiled)
            searches = [reader.search_known(found, asked) for found in files]
            of_subjects = zip(*(search.parts for search in searches if search), strict=True)
            for parts in [*of_subjects] or [()]:
                missed |= self._known.missed(one for part in parts for one in part.found.findings)
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
    subjects: Sequence[Subject],
    ends: Mapping[TopicPartition, LogEnd],
    *,
    threads: int = 2,
    is_compiled: bool = ARE_COMPILED,
    advance: Advance | None = None,
    check: Callable[[], object] = bool,
    staging: StagingPlace | None = None,
    partitions: Partitions | None = None,
    prove_in: str | None = None,
    census: FileCensus | None = None,
    capacities: Sequence[ListCapacity] = (),
) -> list[ScanReport]:
    """Scan everything in `directory` and at the staging location of Spark jobs once; return a report about each subject.

    `subjects`: their digests must all use the same secret. `ends`: the ends of the logs in use; other logs are scanned to the end
    of their files. `prove_in`: the directory for the known positives; None for `directory`. A local staging location gets known
    positives as well. If they cannot be written or found, nothing can be claimed.
    If `is_compiled` is False, the plain search reads everything. If `partitions` is None, the names of directories are trusted.
    `census` and `capacities` are created if they are not given. `check` is called every few MiB, in several threads; its
    exceptions end the scan. Does blocking I/O. Raises OSError if the directory cannot be listed.
    """
    started_s = time.monotonic()
    scope, prove_in = Scope(), prove_in or directory
    account = CoverageAccount(census or FileCensus(env, directory, _besides(staging)), ends)
    account.begin()
    is_apart = staging is not None and staging.is_apart(env, directory)
    known = make_known_positives(subjects[0].needles.secret, staging.path_for if staging and is_apart else None)
    if staging and is_apart:
        staging = staging.with_known(known.staged, (known.topic, 0))
    subject = JointSubject(subjects).with_known(known)
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
    capacities = capacities or [ListCapacity() for _ in subjects]
    reader = FileReader(env, subject, files, scope, capacities, check=check, advance=advance)
    sight = SightCheck(env, known, prove_in)
    scan = _Scan(subject, ends, files, reader, SearchEngine(is_compiled=is_compiled), account, sight)
    try:
        sight.write()
        scan.read_everything(threads)
    finally:
        sight.remove()
    scan.sum_up()
    if staging is not None:
        # List the staging location after all sources were read: a copy made before that is then found, unless it was removed.
        for report in scan.reports:
            staging.account(report, account.problem, check)
    account.put_into(scan.reports, files.shown)
    for report in scan.reports:
        if sight.blind:
            report.unaccounted.append(Unreadable(None, None, sight.topic, None, sight.blind))
        report.planted, report.seen = sight.planted, sight.seen
        report.seconds = time.monotonic() - started_s
    return scan.reports


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
    """Search some partitions for records of the key, in order to locate the key; this never certifies anything.

    Files for which `skip` returns True are not read. If `on_record` is given, it gets each record, and there are no findings.
    """
    started_s = time.monotonic()
    scope = Scope(frozenset(partitions), skip, is_locating=on_record is not None)
    account = CoverageAccount(FileCensus(env, directory), ends)
    joint = JointSubject([subject])
    files = FilesToRead(env, directory, joint, ends, account, scope)
    reader = FileReader(env, joint, files, scope, [ListCapacity()], on_record=on_record, check=check, advance=advance)
    scan = _Scan(joint, ends, files, reader, SearchEngine(is_compiled=is_compiled), account)
    scan.read_everything(threads)
    scan.sum_up()
    [report] = scan.reports
    report.seconds = time.monotonic() - started_s
    return report


def _besides(staging: StagingPlace | None) -> tuple[str, str] | None:
    return None if staging is None or staging.root is None else (staging.root, staging.owner)


@dataclass(slots=True)
class _Scan:
    """Reads the listed files until no new ones are listed."""

    subject: JointSubject
    ends: Mapping[TopicPartition, LogEnd]
    files: FilesToRead
    reader: FileReader
    engine: SearchEngine
    account: CoverageAccount
    sight: SightCheck | None = None
    """None if the scan only locates the key."""
    reports: list[ScanReport] = field(default_factory=list)
    """The report about each subject."""
    found: dict[FileKey, FileSearch] = field(default_factory=dict)
    """The searches of files that have findings or are unreadable."""

    def __post_init__(self) -> None:
        self.reports = [ScanReport() for _ in self.subject.subjects]

    def read_everything(self, threads: int) -> None:
        """Read all files, the largest of each listing first."""
        with ThreadPoolExecutor(max(1, threads), "certifying-scan") as pool:
            for _ in range(MAX_LISTINGS):
                found = self.files.new()
                outcomes = pool.map(self.reader.search, found, repeat(self.engine))
                for one, outcome in zip(found, outcomes, strict=True):
                    self._take(one, outcome)
                # Segments that were just begun do not count, because a log that keeps rolling always has new ones.
                if all(one.is_of_later for one in found) and (self.sight is None or self._is_done(self.sight)):
                    break
            else:
                reason = f"files were created and removed all the time; after {MAX_LISTINGS} listings there were still new ones"
                for report, subject in zip(self.reports, self.subject.subjects, strict=True):
                    named = {one for one in self.ends if one[0] in subject.topics} | report.partitions
                    for topic, partition in sorted(named):
                        directory = names.partition_dir_name(topic, partition)
                        report.add_unreadable(Unreadable(topic, partition, directory, None, reason))

    def _is_done(self, sight: SightCheck) -> bool:
        """Check the known positives, and tell whether the account is complete; if it is not, files will be read again."""
        sight.look(self.files.known.values(), self.reader, self.engine)
        is_complete, again = self.account.look()
        for key in again:
            self.files.forget(key)
        return is_complete

    def _take(self, found: FoundFile, outcome: tuple[FileSearch, FileRow] | None) -> None:
        if outcome is None:
            # If the file was renamed, the next listing finds it.
            self.files.forget(found.key)
            for report in self.reports:
                report.vanished += 1
            return
        search, row = outcome
        # A file that has grown is read again, and its new findings replace the earlier ones.
        before = self.found.pop(found.key, None)
        if before is not None:
            for part, capacity in zip(before.parts, self.reader.capacities, strict=True):
                capacity.give_back(part.found.taken)
        if any(part.found.findings or part.found.unreadable for part in search.parts):
            self.found[found.key] = search
        self.account.add(found.key, row, None if search.order is None else search.order.next_offset)
        for report, part in zip(self.reports, search.parts, strict=True):
            report.counts.add(search.counts)
            if part.topic is not None and part.is_in_scope:
                report.partitions.add((part.topic, part.partition or 0))

    def sum_up(self) -> None:
        """Put the findings into the reports."""
        for key in self.account.outdated(self.found):
            del self.found[key]
        for index, report in enumerate(self.reports):
            self._sum_up(report, index)

    def _sum_up(self, report: ScanReport, index: int) -> None:
        for (_, identity), whole in self.found.items():
            search = whole.parts[index]
            for finding in search.found.findings:
                is_in_the_way = finding.topic is None and search.subject.is_in_the_way(finding)
                report.add(finding, is_in_the_way=is_in_the_way)
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
