"""The account of a certifying scan: what it has read of each file, held against what the census of the directory has.

A file that is there in the end and was not read, or not wholly, or is not as it was read, is reported, whatever passed
it over. (One that only grows is read up to where it was: it is a log that is being written.) Whether one may be passed
over as it came with a segment that was begun after the recorded end of its log is asked here once more, by other code.

One thread. Memory: that of `FileCensus`, and 1 KB for each file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from diamant.cleaner.evidence.scan.coverage import FileRow
from diamant.cleaner.evidence.scan.report import ScanReport
from diamant.cleaner.evidence.search.file_census import FileCensus, FileKey, Identity, Listed
from diamant.cleaner.evidence.search.findings import Unreadable
from diamant.cleaner.evidence.search.offset_order import LogEnd, overlapping
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition

MAX_MISSED_LOOKS = 5
"""Looks of the census in a row that may have a file that listings do not find. Such a file need not be hidden: a
program that replaces a file writes it under another name and renames it, and a listing may fall before that when the
look falls after it."""

MAX_REREADS = 3
"""Number of rereads of a file that was written while the scan ran, or that could not be read, and has grown since."""


class CoverageAccount:
    """Of one scan."""

    def __init__(self, census: FileCensus, ends: Mapping[TopicPartition, LogEnd]) -> None:
        self._census = census
        self._ends = ends
        self.oldest: frozenset[Identity] = frozenset()
        """The files that were there when it began, whatever they are called by now."""
        self._passed_over: set[Identity] = set()
        """Segments that were begun after the recorded ends."""
        self._rows: dict[FileKey, FileRow] = {}
        self._read: set[Identity] = set()
        """Files that were read, under whatever name."""
        self._next_offsets: dict[FileKey, int] = {}
        """Of segments the offset behind their last batch."""
        self._missing: dict[FileKey, int] = {}
        """Files that the census had and that were not read, at the last look; and in how many looks in a row."""
        self._rereads: Counter[FileKey] = Counter()
        """Number of rereads of files because they had grown, of those with places that could not be read."""

    @property
    def problem(self) -> str:
        """Why the other directory of the census cannot be listed; "" if it can."""
        return self._census.problem

    def begin(self) -> None:
        """See what is there before anything is read. Blocks; OSError."""
        self._census.look()
        self.oldest = frozenset(identity for _, identity in self._census.files)

    def add(self, key: FileKey, row: FileRow, next_offset: int | None) -> None:
        """Record a file that was read. `next_offset`: of a segment, behind its last batch."""
        self._rows[key] = row
        self._read.add(key[1])
        if next_offset is not None:
            self._next_offsets[key] = next_offset

    def outdated(self, keys: Iterable[FileKey]) -> list[FileKey]:
        """Return the names that files have no more which are there: under those that they have they were read since."""
        there = {identity for _, identity in self._census.files}
        return [key for key in keys if key[1] in there and key not in self._census.files]

    def look(self) -> tuple[bool, set[FileKey]]:
        """Return whether everything was read that is there, or is not read by trying again; and what is to be read once more.

        Blocks; OSError.
        """
        before, census = self._missing, self._census
        census.look()
        missing = (key for key, listed in census.files.items() if not self._has(key, listed))
        self._missing = {key: before.get(key, 0) + 1 for key in missing}
        files = census.files.items()
        again = {key for key, listed in files if self._may_be_whole_now(key, listed) or self._is_other(key, listed)}
        again = {key for key in again if self._rereads[key] < MAX_REREADS}
        self._rereads.update(again)
        is_complete = not again and all(looks > MAX_MISSED_LOOKS for looks in self._missing.values())
        return is_complete, again.union(self._missing)

    def _may_be_whole_now(self, key: FileKey, listed: Listed) -> bool:
        """Tell whether a file that could not be read has grown since, as one does that was being written."""
        row = self._rows.get(key)
        return row is not None and row.problems > 0 and listed.latest_size > row.size + row.beyond_end

    def _is_other(self, key: FileKey, listed: Listed) -> bool:
        """Tell whether a file has been changed since it was read, and is none of a running log, which changes its own."""
        row = self._rows.get(key)
        return row is not None and row.changed != listed.changed and not self._is_of_running_log(key[0])

    def _is_of_running_log(self, name: str) -> bool:
        found = self._log_of(name)
        return found is not None and found[0].size_of(found[1].offset) is not None

    def _log_of(self, name: str) -> tuple[LogEnd, names.SegmentFileName] | None:
        """Return the end of the log in use that gives files such a name, and what that says; None if there is none."""
        directory, _, file = name.rpartition("/")
        parsed = names.parse_segment_file(file)
        try:
            partition = names.parse_partition_dir(directory)
        except ValueError:
            return None
        end = self._ends.get(partition)
        is_own = directory == names.partition_dir_name(*partition)
        if end is None or parsed is None or not is_own or not file.startswith(f"{parsed.offset:020d}."):
            return None
        return end, parsed

    def _has(self, key: FileKey, listed: Listed) -> bool:
        row = self._rows.get(key)
        if row is None:
            return self._is_beyond_ends(*key)
        return bool(row.problems) or row.size + row.beyond_end >= listed.size

    def _is_beyond_ends(self, name: str, identity: Identity) -> bool:
        """Tell whether a file came with a segment of a log in use that was begun after its recorded end."""
        found = self._log_of(name)
        if found is None or identity in self.oldest:
            return False
        end, parsed = found
        if parsed.offset < end.log_end_offset or parsed.offset == end.active_base_offset:
            return False
        if parsed.suffix == names.LOG_SUFFIX and not parsed.stage and end.has_file(parsed.offset, identity):
            self._passed_over.add(identity)
        if identity in self._passed_over:
            return True
        # What comes with such a segment is read as it is listed, and there may always be more.
        is_small = parsed.suffix != names.LOG_SUFFIX or bool(parsed.stage)
        return is_small and end.size_of(parsed.offset) is not None and identity not in self._read

    def put_into(self, report: ScanReport, shown: Callable[[str], str]) -> None:
        """Put down what was read of each file that is there, and what was not. `shown`: what a file without a row is called."""
        files = self._census.files
        report.files_listed = len(files)
        there = {key[0]: self._next_offsets[key] for key in files if key in self._next_offsets}
        rows = {key[0]: self._rows[key] for key in files if key in self._rows}
        for name, reason in overlapping(there):
            into = rows[name]
            into.problems += 1
            report.add_unreadable(Unreadable(into.topic, into.partition, into.file, None, reason))
        for key, listed in files.items():
            row = self._rows.get(key)
            name = shown(key[0]) if row is None else row.file
            is_missing = key in self._missing
            if is_missing:
                report.unaccounted.append(Unreadable(None, None, name, None, "the scan has not read it"))
            if row is None:
                beyond_end = 0 if is_missing else listed.size
                row = FileRow.from_fields({"file": name, "bytes": listed.size, "beyond_end": beyond_end, "read": {}})
                row.sort = "not read" if is_missing else "after the recorded end"
            elif self._is_other(key, listed) and listed.latest_size <= row.size + row.beyond_end:
                reason = "it was rewritten again and again while the scan ran"
                report.unaccounted.append(Unreadable(None, None, name, None, reason))
            elif not row.adds_up and not row.problems:
                reason = f"the scan has looked at {row.read}, there are {row.declared or row.size}"
                report.unaccounted.append(Unreadable(None, None, name, None, reason))
            report.rows.append(row)
