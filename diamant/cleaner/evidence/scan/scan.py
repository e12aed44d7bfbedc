"""The certifying scan: reads and decompresses everything that a data directory holds, and says of each partition what is left.

It asks no index, no filter and no summary: what a file holds is what its bytes say. A log that takes appends is scanned
up to its recorded end (`LogEnd`). Passed over is what the log has begun since, and nothing else, whatever its name: it
has to be the file that the running log has as a segment by now, and was not there when the scan began. A directory is a
partition's if there is such a partition, as far as that is known (`Partitions`); else its files have no owner. Files
come and go during the scan, so the directory is listed again until nothing in it is new: a segment that was renamed, or
rewritten by the cleaner, is not missed.

The scan is accountable: at its beginning and end `census` lists the directory by itself and counts what segments
declare. A file that was not read, or not wholly, makes everything inconclusive (`coverage_account`), whatever passed it
over. So does a scan that does not find what was written for it to find (`known_positives`).

What is found, and what that makes of a partition, is in `report`; how much of it is kept, in `findings`.

Any thread. Memory: that of `record_search`, for each of `threads`, that of `findings`, and 1 KB for each file.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from diamant.cleaner.evidence.scan.coverage import FileRow
from diamant.cleaner.evidence.scan.coverage_account import CoverageAccount
from diamant.cleaner.evidence.scan.file_listing import (
    BATCHES,
    MAX_DEPTH,
    OTHER,
    TOO_DEEP,
    Place,
    is_in_use,
    list_places,
    place_named,
)
from diamant.cleaner.evidence.scan.file_names import hits_in_name, masked, shown_name
from diamant.cleaner.evidence.scan.report import INCONCLUSIVE, KEY_GONE, VALUES_GONE, VALUES_PRESENT, ScanReport
from diamant.cleaner.evidence.scan.staging_files import StagingPlace
from diamant.cleaner.evidence.search.batch_finder import find_batches
from diamant.cleaner.evidence.search.file_census import (
    RAW,
    FileCensus,
    FileKey,
    Identity,
    add_to,
    changed_at,
    declared,
    file_identity,
)
from diamant.cleaner.evidence.search.findings import ListCapacity, Unreadable
from diamant.cleaner.evidence.search.known_positives import KnownPositives, make_known_positives
from diamant.cleaner.evidence.search.offset_order import LogEnd, order_of
from diamant.cleaner.evidence.search.record_search import MAX_BATCH_BYTES, FileSearch, OnRecord, Subject, file_size
from diamant.cleaner.evidence.search.search_engine import SearchEngine
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env, File
from diamant.storage.errors import StorageError

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
"""Times that a directory that never comes to rest is listed; then the scan is inconclusive."""

MAX_RETRIES = 3
"""Times that a file is read again that changed while it was read."""

MAX_SHOWN = 5
"""Of known positives that were not found."""

COMPILED_FROM_BYTES = 64 * 1024 * 1024
"""Below this loading the compiled walk takes longer than it saves."""

Advance = Callable[[int, int], object]
"""Is told of the bytes scanned so far, and of those found so far to be scanned. Any thread."""

Partitions = Callable[[str], Collection[int]]
"""Returns the partitions that a topic has now; none if there is no such topic. Any thread."""


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
    check: Callable[[], object] = bool,
    staging: StagingPlace | None = None,
    partitions: Partitions | None = None,
    prove_in: str | None = None,
) -> ScanReport:
    """Scan everything in `directory`, and what jobs on Spark have at their staging place; blocks.

    `prove_in`: where known positives are written to; None: into `directory`. Those of a local staging place are written there.
    What cannot be found, or not be written, lets nothing be claimed.
    `is_compiled` None: if there is enough to read for it to pay. `partitions` None: directories are what they are called.
    `ends` are those of the logs in use; others are scanned whole. `check` is called every few MiB, in several threads: what it
    raises ends the scan. OSError if the directory cannot be listed.
    """
    scan = _Scan(env, directory, subject, ends, on_record, check, staging)
    scan.partitions = partitions
    scan.prove_in = prove_in or directory
    return scan.run(threads, is_compiled, advance)


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
    check: Callable[[], object] = bool,
) -> ScanReport:
    """Look for records of the key in some partitions only, and not in files that `skip` names: to locate it, never to certify.

    With `on_record`, which is told of everything, the report has no findings.
    """
    scan = _Scan(env, directory, subject, ends, on_record, check)
    scan.is_locating = on_record is not None
    scan.only = frozenset(partitions)
    scan.skip = skip
    return scan.run(threads, is_compiled, advance)


class _Found(NamedTuple):
    """A file that is to be read."""

    place: Place
    size: int
    identity: Identity
    is_of_later: bool
    """True if its name is that of a file of a segment that was begun since."""

    @property
    def key(self) -> FileKey:
        return self.place.name, self.identity


class _Scan:
    def __init__(
        self,
        env: Env,
        directory: str,
        subject: Subject,
        ends: Mapping[TopicPartition, LogEnd],
        on_record: OnRecord | None,
        check: Callable[[], object],
        staging: StagingPlace | None = None,
    ) -> None:
        self._check = check
        self._staging = staging
        self._env = env
        self._directory = directory
        self._subject = subject
        self._ends = ends
        self._on_record = on_record
        self.only: frozenset[TopicPartition] | None = None
        self.skip: Callable[[Place], bool] | None = None
        self.is_locating = False
        self.partitions: Partitions | None = None
        self._owned: set[str] = set()
        """Directories of partitions that there are, or were when a listing had them."""
        self.prove_in = directory
        self._known: KnownPositives | None = None
        self._known_found: dict[str, _Found] = {}
        """The files of known positives, as listings have them."""
        self._is_proven = False
        self._blind = "the scan has not come to looking for what was written for it to find"
        """Why nothing proves that the scan sees; "" if it is proven."""
        self.report = ScanReport()
        self._room = ListCapacity()
        self._found: dict[FileKey, FileSearch] = {}
        """The findings in files, of those in which there was something."""
        self._engine = SearchEngine()
        self._lock = threading.Lock()
        self._seen: set[FileKey] = set()
        """The files looked at. A file counts once under each name that it has or gets: the name tells as what."""
        self._passed_over: set[Identity] = set()
        """Segments that were begun after the recorded ends."""
        besides = None if staging is None or staging.root is None else (staging.root, staging.owner)
        self._books = CoverageAccount(FileCensus(env, directory, besides), ends)
        self._later: set[str] = set()
        self._scanned_bytes = 0
        self._known_bytes = 0

    def run(self, threads: int, is_compiled: bool | None, advance: Advance | None) -> ScanReport:
        started_s = time.monotonic()
        self._advance = advance
        is_certifying = self.only is None
        if is_compiled is not None:
            self._engine.force(is_compiled=is_compiled)
        if is_certifying:
            self._books.begin()
            self._known = self._make_known(self._staging)
            self._subject = self._subject.with_known(self._known)
        try:
            if self._known is not None:
                self._write_known(self._known)
            self._look_everywhere(threads, is_certifying=is_certifying)
        finally:
            if self._known is not None:
                self._known.remove(self._env, self.prove_in)
        self._sum_up()
        if is_certifying:
            self._account()
        self.report.engine = self._engine.name
        self.report.later = len(self._later)
        self.report.seconds = time.monotonic() - started_s
        return self.report

    def _look_everywhere(self, threads: int, *, is_certifying: bool) -> None:
        with ThreadPoolExecutor(max(1, threads), "certifying-scan") as pool:
            for _ in range(MAX_LISTINGS):
                found = self._new_files()
                large = sum(one.size for one in found if one.place.content == BATCHES)
                self._engine.is_wanted |= large >= COMPILED_FROM_BYTES
                for one, search in zip(found, pool.map(self._search, found), strict=True):
                    self._take(one, search)
                # A log that rolls all the time always has new ones of its own.
                if all(one.is_of_later for one in found) and (not is_certifying or self._is_done()):
                    break
            else:
                reason = f"files came and went all the time, after {MAX_LISTINGS} listings there were new ones still"
                for topic, partition in sorted(self._named_partitions()):
                    self.report.add_unreadable(
                        Unreadable(topic, partition, names.partition_dir_name(topic, partition), None, reason)
                    )

    def _named_partitions(self) -> set[TopicPartition]:
        return {one for one in self._ends if one[0] in self._subject.topics} | self.report.partitions

    def _new_files(self) -> list[_Found]:
        """Return the files that were not scanned yet, large ones first."""
        found = []
        # Jobs copy from the data directory to there, so this is the order in which no copy is missed.
        staged = () if self._staging is None else self._staging.files(self._env)
        proving = () if self.prove_in == self._directory else list_places(self._env, self.prove_in, self._note_link)
        own = map(self._owned_place, list_places(self._env, self._directory, self._note_link))
        for place in chain(own, staged, proving):
            if not self._is_wanted(place):
                continue
            try:
                identity, size = file_identity(self._env, place.path)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                self._note_link(place.name)  # It leads to itself.
                continue
            is_of_later = self._is_of_later(place, identity)
            if is_of_later and self._is_passed_over(place, identity):
                continue
            one = _Found(place, size, identity, is_of_later)
            if self._known is not None and place.name in self._known.files:
                self._known_found[place.name] = one
                continue
            if one.key not in self._seen:
                self._seen.add(one.key)
                found.append(one)
        self._known_bytes += sum(one.size for one in found)
        return sorted(found, key=lambda one: -one.size)

    def _note_link(self, name: str) -> None:
        self.report.links.add(self._shown(name))

    def _shown(self, name: str) -> str:
        return shown_name(self._owned_place(place_named(name)), self._subject.needles)

    def _owned_place(self, place: Place) -> Place:
        """Return a place, without an owner if its directory is only called like that of a partition.

        What was set aside of another topic is that topic's, as long as there is one; for the request's own see
        `ScanReport.disown`.
        """
        directory = place.name.partition("/")[0]
        if place.topic is None or self.partitions is None or directory in self._owned:
            return place
        is_ours = place.topic in self._subject.topics
        if not is_ours and names.set_aside_suffix(directory) != names.DELETE_DIR_SUFFIX:
            there = (0,) if place.topic == names.METADATA_TOPIC else self.partitions(place.topic)
            if not there or not (place.is_set_aside or place.partition in there):
                return replace(place, topic=None, partition=None, base_offset=None, named_offset=None)
        self._owned.add(directory)
        return place

    def _is_wanted(self, place: Place) -> bool:
        if self.only is not None and (place.topic, place.partition) not in self.only:
            return False
        # Locating looks into unknown files, too: values that are only there have to be known.
        is_content = place.content == BATCHES or self.only is None or (self.is_locating and place.sort == OTHER)
        return is_content and (self.skip is None or not self.skip(place))

    def _is_of_later(self, place: Place, identity: Identity) -> bool:
        """Tell whether a file may have come with a segment that was begun after the recorded end of its log.

        The log has to have such a segment, and the file not to have been there from the beginning. An output of the cleaner may
        begin higher than any of its sources; what it holds of them is below that end, and so is what it begins with.
        """
        if place.topic is None or place.partition is None or place.named_offset is None:
            return False
        end = self._ends.get((place.topic, place.partition))
        if end is None or not end.is_before(place.named_offset) or identity in self._books.oldest:
            return False
        return end.size_of(place.named_offset) is not None or identity in self._passed_over

    def _is_passed_over(self, place: Place, identity: Identity) -> bool:
        """Tell whether such a file need not be read: certifying goes by the file that the log has, not by its name."""
        if self.only is not None:
            return True
        if place.base_offset is not None and self._end_has(place, identity):
            self._passed_over.add(identity)
            self._later.add(place.name)
        return identity in self._passed_over

    def _end_has(self, place: Place, identity: Identity) -> bool:
        end = self._end(place)
        return end is not None and place.base_offset is not None and end.has_file(place.base_offset, identity)

    def _end(self, place: Place) -> LogEnd | None:
        if place.topic is None or place.partition is None or place.base_offset is None:
            return None
        return self._ends.get((place.topic, place.partition))

    def _end_of_order(self, found: _Found) -> LogEnd | None:
        """Return the end that all of a segment has to be below; None if none is known."""
        end, base_offset = self._end(found.place), found.place.base_offset
        if end is None or base_offset is None or found.identity not in self._books.oldest:
            return None
        # It was rolled between recording the end and looking what is there.
        return None if end.is_before(base_offset) and end.size_of(base_offset) is not None else end

    def _limit(self, found: _Found, size: int) -> int | None:
        """Return how much of a file with `size` bytes is to be read; None: all of it."""
        end, base_offset = self._end(found.place), found.place.base_offset
        if end is None or base_offset is None or base_offset != end.active_base_offset or size <= end.active_size:
            return None
        if self.only is None and found.identity not in self._books.oldest:
            return None  # It is another file by now.
        written = end.size_of(base_offset)
        # What is behind the end, and not of the log, is read.
        return None if written is None or written < size else end.active_size

    # -- one file ------------------------------------------------------------------------------------------------------

    def _search(self, found: _Found) -> tuple[FileSearch, FileRow] | None:
        """Search one file; None if it is gone."""
        place = found.place
        is_known = self._known is not None and place.name in self._known.files
        named = hits_in_name(place, self._subject.needles) if self.only is None and not is_known else []
        name = masked(place, named) if named else place.name
        for attempt in range(1, MAX_RETRIES + 1):
            order = order_of(place.name, self._end_of_order(found))
            search = FileSearch(
                self._subject,
                place.topic,
                place.partition,
                name,
                None if is_known else self._on_record,
                order,
                self.is_locating,
                check=self._check,
            )
            search.check()
            row = FileRow(name, place.topic, place.partition, place.sort, found.size)
            try:
                before = self._env.file_size(place.path), self._env.mtime_ms(place.path)
                row.changed = changed_at(self._env, place.path)
                self._read(found, search, row, has_limit=attempt == 1)
                is_whole = self.only is not None or row.adds_up
                if attempt == MAX_RETRIES or (is_whole and not search.found.unreadable):
                    break
                if attempt > 1 and before == (self._env.file_size(place.path), self._env.mtime_ms(place.path)):
                    break
            except FileNotFoundError:
                return None
            except (OSError, StorageError) as error:
                search.fail(None, f"it cannot be read: {getattr(error, 'strerror', None) or error}")
                break
        search.counts.files = 1
        for hit in named:
            search.add_raw(hit, 0)
        row.read = search.amounts
        row.problems = len(search.found.unreadable)
        # Here, since what was found waits until files before it are through.
        search.found.settle(ListCapacity() if is_known else self._room)
        with self._lock:
            self._scanned_bytes += search.counts.bytes
            if self._advance is not None:
                self._advance(self._scanned_bytes, max(self._known_bytes, self._scanned_bytes))
        return search, row

    def _read(self, found: _Found, search: FileSearch, row: FileRow, *, has_limit: bool) -> None:
        place = found.place
        if place.sort == TOO_DEEP:
            raise StorageError(f"{MAX_DEPTH} directories in one another, what is deeper is not looked into")
        file = self._env.open(place.path, read_only=True)
        try:
            whole = file_size(file)
            # If the limit cuts a batch, the file is not the one any more that it was recorded of.
            limit = self._limit(found, whole) if has_limit else None
            size = whole if limit is None else limit
            search.counts.bytes = row.size = size
            row.beyond_end = whole - size
            row.read = search.amounts
            if place.content == BATCHES:
                self._engine.search(search, file, size)
                if self.only is None:
                    # While what was read is still in memory.
                    row.declared = declared(file, size, MAX_BATCH_BYTES)
            else:
                self._search_bytes(search, file, size)
        finally:
            file.close()

    def _search_bytes(self, search: FileSearch, file: File, size: int) -> None:
        """Search a file that is none of batches by its name: as bytes, and the batches in it all the same."""
        in_batches = 0
        for start, end in find_batches(file, size, search.fail, self._check):
            in_batches += end - start
            self._engine.is_wanted |= end - start >= COMPILED_FROM_BYTES
            self._engine.search(search, file, end, start)
        if not self.is_locating:
            search.search_raw(file, 0, size)
        if in_batches:
            add_to(search.amounts, RAW, 0, 0, -in_batches)

    def _take(self, found: _Found, outcome: tuple[FileSearch, FileRow] | None) -> None:
        report = self.report
        if outcome is None:
            # Under another name it is listed again.
            self._seen.discard(found.key)
            report.vanished += 1
            return
        search, row = outcome
        # If it has grown, and is read once more, what was found before counts no more.
        before = self._found.pop(found.key, None)
        if before is not None:
            self._room.give_back(before.found.taken)
        if search.found.findings or search.found.unreadable:
            self._found[found.key] = search
        self._books.add(found.key, row, None if search.order is None else search.order.next_offset)
        report.counts.add(search.counts)
        if search.topic is not None and search.is_in_scope:
            report.partitions.add((search.topic, search.partition or 0))

    def _sum_up(self) -> None:
        """Put down what was found."""
        report = self.report
        for key in self._books.outdated(self._found):
            del self._found[key]
        for (_, identity), search in self._found.items():
            for finding in search.found.findings:
                report.add(finding, is_in_the_way=finding.topic is None and self._subject.is_in_the_way(finding))
            for place in search.found.unreadable:
                report.add_unreadable(place)
            report.unlisted += search.found.unlisted
            if search.topic is not None and search.partition is not None:
                partition = (search.topic, search.partition)
                end = self._ends.get(partition)
                if end is not None and is_in_use(search.name, *partition):
                    base_offset = names.offset_of(search.name.rpartition("/")[2])
                    if not end.has_file(base_offset, identity):
                        report.unknown.add(search.name)
                for what, count in search.found.unlisted.items():
                    report.unlisted_in[partition, what] += count

    # -- the account ---------------------------------------------------------------------------------------------------

    def _is_done(self) -> bool:
        """Tell whether everything was read, by the account, and the scan sees what it looks for."""
        if not self._is_proven and self._known is not None:
            self._is_proven = True
            self._prove(self._known)
        return self._is_accounted()

    def _make_known(self, staging: StagingPlace | None) -> KnownPositives:
        """Return known positives for every root that is read."""
        secret = self._subject.needles.secret
        if staging is None or not staging.is_apart(self._env, self._directory):
            return make_known_positives(secret)
        known = make_known_positives(secret, staging.path_for)
        self._staging = staging.with_known(known.staged, (known.topic, 0))
        return known

    def _write_known(self, known: KnownPositives) -> None:
        try:
            known.write(self._env, self.prove_in)
            self.report.planted = len(known.expected)
        except OSError as error:
            known.remove(self._env, self.prove_in)
            reason = str(error.strerror or error)
            if error.filename:
                reason += f": {os.fsdecode(error.filename).removeprefix(f'{self.prove_in}/')}"
            self._blind = (
                f"what proves that the scan sees could not be written, and without it nothing is certain: {reason}"
            )
            self._is_proven = True

    def _prove(self, known: KnownPositives) -> None:
        """See that each engine that reads finds all known positives; no other engine reads from then on."""
        missed: set[str] = set()
        for is_compiled in self._engine.settle():
            self._engine.force(is_compiled=is_compiled)
            outcomes = [self._search(found) for found in self._known_found.values()]
            missed |= known.missed(one for outcome in outcomes if outcome for one in outcome[0].found.findings)
        known.remove(self._env, self.prove_in)
        self.report.seen = self.report.planted - len(missed)
        shown = ", ".join(sorted(missed)[:MAX_SHOWN])
        self._blind = shown and f"the scan has not found what was written for it to find, and may be blind: {shown}"

    def _is_accounted(self) -> bool:
        is_complete, again = self._books.look()
        self._seen -= again
        return is_complete

    def _account(self) -> None:
        if self._staging is not None:
            # Now: what was copied to there before its source was read is there still, or gone.
            self._staging.account(self.report, self._books.problem, self._check)
        self._books.put_into(self.report, self._shown)
        if self._blind and self._known is not None:
            self.report.unaccounted.append(Unreadable(None, None, self._known.topic, None, self._blind))
