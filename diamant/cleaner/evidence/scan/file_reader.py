"""Reads and searches the files of a scan one at a time, and creates their rows of the account."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from diamant.cleaner.evidence.scan.coverage import FileRow
from diamant.cleaner.evidence.scan.file_listing import BATCHES, MAX_DEPTH, NOTHING, TOO_DEEP, Place
from diamant.cleaner.evidence.scan.file_names import hits_in_name, masked
from diamant.cleaner.evidence.scan.files_to_read import FilesToRead, FoundFile, Scope
from diamant.cleaner.evidence.search.batch_finder import find_batches
from diamant.cleaner.evidence.search.file_census import RAW, add_to, changed_at, declared
from diamant.cleaner.evidence.search.findings import FoundList, ListCapacity
from diamant.cleaner.evidence.search.joint_subject import JointSubject
from diamant.cleaner.evidence.search.offset_order import order_of
from diamant.cleaner.evidence.search.record_search import FileSearch, OnRecord, file_size
from diamant.cleaner.evidence.search.search_engine import SearchEngine
from diamant.protocol.batches.compression import MAX_BATCH_BYTES
from diamant.storage.env.env import Env, File
from diamant.storage.errors import StorageError

Advance = Callable[[int, int], object]
"""Takes the number of bytes scanned so far, and the total to scan as far as it is known. May be called in any thread."""

MAX_RETRIES = 3
"""Maximum number of attempts to read a file that changes while it is read."""


class FileReader:
    """Reads the files of one scan. Thread-safe."""

    def __init__(
        self,
        env: Env,
        subject: JointSubject,
        files: FilesToRead,
        scope: Scope,
        capacities: Sequence[ListCapacity],
        *,
        check: Callable[[], object],
        advance: Advance | None,
        on_record: OnRecord | None = None,
    ) -> None:
        """`capacities` limit the lists of findings; there is one for each subject."""
        self._env = env
        self._subject = subject
        self._files = files
        self._scope = scope
        self._on_record = on_record
        self._check = check
        self._advance = advance
        self.capacities = capacities
        self._lock = threading.Lock()
        self._read_bytes = 0

    def search(self, found: FoundFile, engine: SearchEngine) -> tuple[FileSearch, FileRow] | None:
        """Search a file; return the search and the file's row, or None if the file is gone."""
        named = hits_in_name(found.place, self._subject.needles) if self._scope.is_certifying else []
        name = masked(found.place, named) if named else found.place.name
        outcome = self._search(found, name, engine, self._on_record)
        if outcome is None:
            return None
        search, _ = outcome
        for hit in named:
            search.add_raw(hit, 0)
        # Shorten the findings now, because they stay in memory until all earlier files have been read.
        settle(search, self.capacities)
        with self._lock:
            self._read_bytes += search.counts.bytes
            if self._advance is not None:
                self._advance(self._read_bytes, max(self._files.bytes, self._read_bytes))
        return outcome

    def search_known(self, found: FoundFile, engine: SearchEngine) -> FileSearch | None:
        """Search a file of known positives; return None if it is gone. Its findings are not reported and use no capacity."""
        outcome = self._search(found, found.place.name, engine, None)
        if outcome is None:
            return None
        settle(outcome[0], [ListCapacity(one.limits) for one in self.capacities])
        return outcome[0]

    def _search(
        self, found: FoundFile, name: str, engine: SearchEngine, on_record: OnRecord | None
    ) -> tuple[FileSearch, FileRow] | None:
        place, subjects = found.place, self._subject.subjects
        for attempt in range(1, MAX_RETRIES + 1):
            order = order_of(place.name, self._files.end_of_order(found))
            search = FileSearch(
                self._subject if len(subjects) > 1 else subjects[0],
                place.topic,
                place.partition,
                name,
                on_record,
                order,
                self._scope.is_locating,
                FoundList(self.capacities[0].limits.listed),
                check=self._check,
                members=self._members(place, name) if len(subjects) > 1 else (),
            )
            search.check()
            row = FileRow(name, place.topic, place.partition, place.sort, found.size)
            try:
                if place.content == NOTHING:
                    break
                before = self._env.file_size(place.path), self._env.mtime_ms(place.path)
                row.changed = changed_at(self._env, place.path)
                self._read(found, search, row, engine, has_limit=attempt == 1)
                is_whole = not self._scope.is_certifying or row.adds_up
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
        row.read = search.amounts
        row.problems = len(search.found.unreadable)
        return search, row

    def _members(self, place: Place, name: str) -> list[FileSearch]:
        return [
            FileSearch(one, place.topic, place.partition, name, found=FoundList(capacity.limits.listed))
            for one, capacity in zip(self._subject.subjects, self.capacities, strict=True)
        ]

    def _read(
        self, found: FoundFile, search: FileSearch, row: FileRow, engine: SearchEngine, *, has_limit: bool
    ) -> None:
        place = found.place
        if place.sort == TOO_DEEP:
            raise StorageError(f"{MAX_DEPTH} nested directories; deeper ones are not searched")
        file = self._env.open(place.path, read_only=True)
        try:
            whole = file_size(file)
            # A limit in the middle of a batch was recorded for another file with this name, so later attempts ignore it.
            limit = self._files.limit(found, whole) if has_limit else None
            size = whole if limit is None else limit
            search.counts.bytes = row.size = size
            row.beyond_end = whole - size
            row.read = search.amounts
            if place.content == BATCHES:
                engine.search(search, file, size)
                if self._scope.is_certifying:
                    # This costs little, because the file was just read and is in the page cache.
                    row.declared = declared(file, size, MAX_BATCH_BYTES)
            else:
                self._search_bytes(search, file, size, engine)
        finally:
            file.close()

    def _search_bytes(self, search: FileSearch, file: File, size: int, engine: SearchEngine) -> None:
        """Search a file that is not named like a segment: its plain bytes, and any batches in it."""
        in_batches = 0
        for start, end in find_batches(file, size, search.fail, self._check):
            in_batches += end - start
            engine.search(search, file, end, start)
        if not self._scope.is_locating:
            search.search_raw(file, 0, size)
        if in_batches:
            add_to(search.amounts, RAW, 0, 0, -in_batches)


def settle(search: FileSearch, capacities: Sequence[ListCapacity]) -> None:
    """Shorten the lists of findings in a searched file, each to the capacity left for its subject."""
    for one, capacity in zip(search.parts, capacities, strict=True):
        one.found.settle(capacity)
