"""The account of a certifying scan, which compares what was read of each file with the census of the directory.

A file that exists at the end is reported if it was not read completely, or has changed since. (A file that only grows belongs to
a log in use; it must have been read up to the smallest size that the census saw.) A file may be skipped if it belongs to a
segment that its log began after the recorded end; this module checks that a second time, with its own code.

Not thread-safe. Memory: that of `FileCensus`, and 1 KB per file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from diamant.cleaner.evidence.scan.coverage import FileRow
from diamant.cleaner.evidence.scan.report import ScanReport
from diamant.cleaner.evidence.search.file_census import FileCensus, FileKey, Identity, Listed
from diamant.cleaner.evidence.search.findings import Unreadable
from diamant.cleaner.evidence.search.offset_order import LogEnd, overlapping
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import TopicPartition

MAX_MISSED_LOOKS = 5
"""Number of consecutive looks at which the census may see a file that was not read, before the scan gives up. The reason may be
harmless: a program may have renamed a temporary file to this name after the listing and before the look."""

MAX_REREADS = 3
"""Maximum number of times that a file is read again because it was changed, or was unreadable and has grown."""


class CoverageAccount:
    """The account of one scan."""

    def __init__(self, census: FileCensus, ends: Mapping[TopicPartition, LogEnd]) -> None:
        self._census = census
        self._ends = ends
        self.oldest: frozenset[Identity] = frozenset()
        """The files that existed when the scan began, whatever their names are now."""
        self._passed_over: set[Identity] = set()
        """Segments that logs began after the recorded ends."""
        self._rows: dict[FileKey, FileRow] = {}
        self._read: set[Identity] = set()
        """Files that were read, under any name."""
        self._next_offsets: dict[FileKey, int] = {}
        """Offset after the last batch of each segment."""
        self._missing: dict[FileKey, int] = {}
        """Files that had not been read at the census's last look, and for how many consecutive looks this was so."""
        self._rereads: Counter[FileKey] = Counter()
        """Number of times that files were read again because they were changed, or were unreadable and had grown."""

    @property
    def problem(self) -> str:
        """Why the second directory of the census (`FileCensus.besides`) cannot be listed; "" if it can."""
        return self._census.problem

    def begin(self) -> None:
        """Record which files exist before anything is read. Does blocking I/O; raises OSError."""
        self._census.look()
        self.oldest = frozenset(identity for _, identity in self._census.files)

    def add(self, key: FileKey, row: FileRow, next_offset: int | None) -> None:
        """Record a file that was read. `next_offset` is the offset after a segment's last batch."""
        self._rows[key] = row
        self._read.add(key[1])
        if next_offset is not None:
            self._next_offsets[key] = next_offset

    def outdated(self, keys: Iterable[FileKey]) -> list[FileKey]:
        """Return those of `keys` whose files were renamed since, and were read again under their new names."""
        there = {identity for _, identity in self._census.files}
        return [key for key in keys if key[1] in there and key not in self._census.files]

    def look(self) -> tuple[bool, set[FileKey]]:
        """Look at the directory again. Return whether the scan can end, and the files to read again.

        Does blocking I/O; raises OSError.
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
        """Tell whether a file that was unreadable has grown since, so that it may be complete now."""
        row = self._rows.get(key)
        return row is not None and row.problems > 0 and listed.latest_size > row.size + row.beyond_end

    def _is_other(self, key: FileKey, listed: Listed) -> bool:
        """Tell whether a file has changed since it was read. False for files of running logs, which may change at any time."""
        row = self._rows.get(key)
        return row is not None and row.changed != listed.changed and not self._is_of_running_log(key[0])

    def _is_of_running_log(self, name: str) -> bool:
        found = self._log_of(name)
        return found is not None and found[0].size_of(found[1].offset) is not None

    def _log_of(self, name: str) -> tuple[LogEnd, names.SegmentFileName] | None:
        """Return the end of the log in use to which a file belongs by name, and the parsed name; None if there is no such log."""
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
        """Tell whether a file belongs to a segment that a log in use began after the recorded end."""
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
        # The small files of such a segment are read if they are listed, but further ones may appear at any time.
        is_small = parsed.suffix != names.LOG_SUFFIX or bool(parsed.stage)
        return is_small and end.size_of(parsed.offset) is not None and identity not in self._read

    def put_into(self, reports: Sequence[ScanReport], shown: Callable[[str], str]) -> None:
        """Add all files to the reports, as read or as missed. `shown` returns the name to display for a file without a row."""
        files = self._census.files
        rows_of_all: list[FileRow] = []
        unaccounted: list[Unreadable] = []
        there = {key[0]: self._next_offsets[key] for key in files if key in self._next_offsets}
        rows = {key[0]: self._rows[key] for key in files if key in self._rows}
        for name, reason in overlapping(there):
            into = rows[name]
            into.problems += 1
            for report in reports:
                report.add_unreadable(Unreadable(into.topic, into.partition, into.file, None, reason))
        for key, listed in files.items():
            row = self._rows.get(key)
            name = shown(key[0]) if row is None else row.file
            is_missing = key in self._missing
            if is_missing:
                unaccounted.append(Unreadable(None, None, name, None, "the scan has not read it"))
            if row is None:
                beyond_end = 0 if is_missing else listed.size
                row = FileRow.from_fields({"file": name, "bytes": listed.size, "beyond_end": beyond_end, "read": {}})
                row.sort = "not read" if is_missing else "after the recorded end"
            elif self._is_other(key, listed) and listed.latest_size <= row.size + row.beyond_end:
                reason = "it was rewritten repeatedly while the scan ran"
                unaccounted.append(Unreadable(None, None, name, None, reason))
            elif not row.adds_up and not row.problems:
                reason = f"the scan has read {row.read} of {row.declared or row.size}"
                unaccounted.append(Unreadable(None, None, name, None, reason))
            rows_of_all.append(row)
        for report in reports:
            report.files_listed = len(files)
            report.rows += rows_of_all
            report.unaccounted += unaccounted
