"""The account of a scan, which compares what was read with the files that exist; and the check of the account in a certificate.

The two sides of the comparison share no code: the scan counts what it reads (`FileSearch.amounts`), and `file_census` counts what
exists. A skipped file, batch or record shows as a difference, whichever part of the scan is at fault. Then nothing is certified.

In a certificate, `coverage.ledger` has a row for each file:

    file        relative to the data directory
    bytes       its size
    read        what was searched: [batches, records, bytes on disk] by codec, or under "bytes" if outside batches
    declared    the same counts from batch headers; only for segments, because batches in other files are recognised by content
    beyond_end  bytes above the recorded end of a log in use, if any
    problems    number of unreadable places, if any

If there are more than `MAX_ROWS` files, each directory has a single row for its files that do not belong to a requested topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from diamant.cleaner.evidence.search.file_census import Amounts, add_to

MAX_ROWS = 20_000


@dataclass(slots=True)
class FileRow:
    """What was read of one file, or of several files in one directory."""

    file: str
    topic: str | None
    partition: int | None
    sort: str
    size: int
    """Number of bytes to read: the whole file, or up to the recorded end of its log."""
    beyond_end: int = 0
    read: Amounts = field(default_factory=dict)
    declared: Amounts | None = None
    """Amounts that a segment's batch headers declare; None for other files."""
    problems: int = 0
    files: int = 1
    changed: int = 0
    """Time of the last change before the file was read (`file_census.changed_at`); not part of a certificate."""

    @property
    def adds_up(self) -> bool:
        """True if everything in the file was read."""
        read = {name: amounts for name, amounts in self.read.items() if any(amounts)}
        if sum(amounts[2] for amounts in read.values()) != self.size:
            return False
        return self.declared is None or read == self.declared

    def to_fields(self) -> dict[str, object]:
        fields: dict[str, object] = {"file": self.file, "bytes": self.size + self.beyond_end, "read": self.read}
        if self.declared is not None:
            fields["declared"] = self.declared
        for name in ("beyond_end", "problems"):
            if getattr(self, name):
                fields[name] = getattr(self, name)
        if self.files != 1:
            fields["files"] = self.files
        return fields

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> FileRow:
        """Parse the output of `to_fields`. Raises ValueError, TypeError or KeyError for any other input."""
        beyond_end = _count(fields.get("beyond_end", 0))
        directory = str(fields["file"]).partition("/")[0]
        topic, _, partition = directory.rpartition("-")
        return cls(
            str(fields["file"]),
            topic or None,
            int(partition) if topic and partition.isdecimal() else None,
            "",
            _count(fields["bytes"]) - beyond_end,
            beyond_end,
            _amounts(fields["read"]),
            _amounts(fields["declared"]) if "declared" in fields else None,
            _count(fields.get("problems", 0)),
            _count(fields.get("files", 1)),
        )


def _amounts(fields: Mapping[str, Any]) -> Amounts:
    found = {str(name): [_count(one) for one in amounts] for name, amounts in fields.items()}
    if any(len(amounts) != 3 for amounts in found.values()):
        raise ValueError("expected three counts: batches, records and bytes")
    return found


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"expected a count, got {type(value).__name__}")
    return value


def totals(rows: Iterable[FileRow]) -> dict[str, object]:
    """Return the total numbers of `files`, `bytes`, `batches` and `records` that were read, and the amounts by codec."""
    codecs: Amounts = {}
    files = size = 0
    for row in rows:
        files += row.files
        size += row.size
        for name, amounts in row.read.items():
            add_to(codecs, name, *amounts)
    return {
        "files": files,
        "bytes": size,
        "batches": sum(amounts[0] for amounts in codecs.values()),
        "records": sum(amounts[1] for amounts in codecs.values()),
        "codecs": dict(sorted(codecs.items())),
    }


def ledger(rows: Iterable[FileRow], topics: frozenset[str]) -> list[dict[str, object]]:
    """Return the rows for a certificate, sorted by file. If there are too many, sum those outside `topics` by directory."""
    kept = sorted(rows, key=lambda row: row.file)
    if len(kept) > MAX_ROWS:
        sums: dict[str, FileRow] = {}
        own = []
        for row in kept:
            if row.topic in topics:
                own.append(row)
                continue
            directory = row.file.rpartition("/")[0]
            _add_row(sums.setdefault(directory, _sum_row(directory, row)), row)
        kept = sorted([*own, *sums.values()], key=lambda row: row.file)
    return [row.to_fields() for row in kept]


def _sum_row(directory: str, row: FileRow) -> FileRow:
    name = f"{directory}/*" if directory else "*"
    return FileRow(name, row.topic, row.partition, row.sort, 0, declared={}, files=0)


def _add_row(total: FileRow, row: FileRow) -> None:
    total.files += row.files
    total.size += row.size
    total.beyond_end += row.beyond_end
    total.problems += row.problems
    assert total.declared is not None
    for mine, its in ((total.read, row.read), (total.declared, row.read if row.declared is None else row.declared)):
        for name, amounts in its.items():
            add_to(mine, name, *amounts)


def coverage_problems(certificate: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each contradiction in a certificate's account of its scan.

    The account may be any JSON: fields that are missing or cannot be parsed count as contradictions.
    """
    coverage = certificate.get("coverage")
    try:
        if not isinstance(coverage, Mapping):
            raise TypeError("it is missing")
        rows = [FileRow.from_fields(one) for one in coverage["ledger"]]
        return _problems(certificate, coverage, rows)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return [f"The account of the scan is not in the expected form: {error!r}."]


def _problems(certificate: Mapping[str, Any], coverage: Mapping[str, Any], rows: list[FileRow]) -> list[str]:
    found = []
    counted = totals(rows)
    for name, expected in counted.items():
        if coverage[name] != expected:
            found.append(
                f"The {name} of the scan are given as {coverage[name]}, but those of its files add up to {expected}."
            )
    if coverage["files_listed"] != counted["files"]:
        found.append(f"{coverage['files_listed']} files were there, but {counted['files']} are accounted for.")
    if len({row.file for row in rows}) != len(rows):
        found.append("A file is listed twice.")
    claimed = {(str(one["topic"]), int(one["partition"])) for one in certificate["claims"]}
    if coverage["not_read"] and claimed:
        found.append(f"{len(coverage['not_read'])} files were not read, but there are claims.")
    # Certificates of earlier versions have no known positives.
    known = coverage.get("known_positives", {"planted": 1, "seen": 1})
    if claimed and not 0 < _count(known["planted"]) == _count(known["seen"]):
        found.append(f"The scan found {known['seen']} of {known['planted']} known positives, but there are claims.")
    for row in rows:
        is_claimed = (row.topic, row.partition) in claimed
        if (not row.adds_up and not row.problems) or (is_claimed and (row.problems or not row.adds_up)):
            found.append(f"{row.file}: part of it was not read.")
    for topic, partition in sorted(claimed - {(row.topic or "", row.partition or 0) for row in rows}):
        found.append(f"{topic}-{partition} has a claim, but no file of it was read.")
    return found
