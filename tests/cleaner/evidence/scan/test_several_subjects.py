"""One scan for several subjects says of each what a scan for it alone says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diamant.cleaner.evidence.scan.report import ScanReport
from diamant.cleaner.evidence.scan.scan import scan_directory
from diamant.cleaner.evidence.search.findings import RAW, SAME_BYTES, UNDECIDED, VALUE
from diamant.cleaner.evidence.search.needles import Needles
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.cleaner.redaction.claims import WHERE, Redacted
from diamant.cleaner.redaction.where import parse_where
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.compression import GZIP, NONE
from diamant.storage.env.env import RealEnv
from tests.cleaner.evidence.scan.scanned_files import LOG, PERSON, put, record, scan, subject, whats

OTHER = b'{"name": "Bruno Weber", "city": "Genf"}'
ORDERS = "orders-0/00000000000000000000.log"


def redacted(text: str = 'value.email == "anna.schmidt@example.com"') -> Redacted:
    """Return the subject of a redaction in the topic orders."""
    where, needles = parse_where(text), Needles(b"s" * 32)
    for one in where.needles:
        needles.add(WHERE, one)
    return Redacted(where, frozenset({"orders"}), needles)


def of_digest() -> Subject:
    """Return a key that is known by its digest only."""
    known = subject(b"customer-43", OTHER)
    found = Subject(None, frozenset({"users"}), known.needles)
    found.key_digest = known.key_digest
    return found


def fill(directory: Path) -> None:
    """Records of all subjects in two topics, with copies, damage and a file that is no segment."""
    mail = b'{"email": "anna.schmidt@example.com", "total": 7}'
    put(
        directory,
        LOG,
        build_batch([record(b"customer-42", PERSON, 0), record(b"customer-44", b"nothing", 1)], codec=NONE),
        build_batch([record(b"customer-43", OTHER, 2)], codec=GZIP),
        build_batch([record(b"customer-45", b"x" * 30, 3)], codec=NONE),
    )
    put(
        directory,
        ORDERS,
        build_batch([record(b"1", mail, 0), record(b"2", b'{"email": "x@y.z"}', 1)], codec=GZIP),
        build_batch([record(b"3", b"anna.schmidt@example.com, but no JSON", 2)], codec=NONE),
        build_batch([record(b"4", b'{"email": "b@y.z"}', 3)], codec=NONE),
    )
    put(directory, "orders-0/00000000000000000005.log", b"damage")
    put(directory, "exports/anna.txt", b"..." + PERSON + b"...", OTHER)


def said(report: ScanReport) -> dict[str, Any]:
    """Return a report without what differs between two scans of the same."""
    found = sorted(report.findings, key=str)
    rows = sorted((row.file, row.size, str(sorted(row.read.items())), row.problems) for row in report.rows)
    places = [(one.file, one.position, one.reason) for one in report.unreadable]
    return {
        "findings": found,
        "astray": sorted(report.astray, key=str),
        "in_the_way": sorted(report.in_the_way, key=str),
        "rows": [row for row in rows if "known-positives" not in row[0]],
        "unreadable": sorted(places, key=str),
        "unaccounted": report.unaccounted,
        "partitions": report.partitions,
        "sight": (report.planted, report.seen),
    }


@pytest.mark.parametrize("is_compiled", [True, False])
def test_each_report_is_that_of_a_scan_for_one_subject(tmp_path: Path, is_compiled: bool) -> None:
    """Findings, damage and account are the same, and each subject finds every known positive."""
    fill(tmp_path)
    subjects = [subject(), of_digest(), redacted(), redacted("value.total == 7"), subject(b"customer-99", OTHER)]
    reports = scan_directory(RealEnv(), str(tmp_path), subjects, {}, is_compiled=is_compiled)
    assert [said(one) for one in reports] == [said(scan(tmp_path, one, is_compiled=is_compiled)) for one in subjects]
    assert [VALUE in whats(one) for one in reports] == [True, True, True, True, False]
    assert [(whats(one).count(SAME_BYTES), whats(one).count(RAW)) for one in reports] == [
        (0, 1), (0, 1), (1, 0), (0, 0), (1, 1),
    ]  # fmt: skip
    assert UNDECIDED not in whats(reports[2])
    assert all(one.planted == one.seen > 0 for one in reports)


def test_both_engines_judge_every_record(tmp_path: Path) -> None:
    """A redaction decides about records that hold no text of it: numbers, and values that cannot be decoded."""
    fill(tmp_path)
    put(tmp_path, "orders-1/00000000000000000000.log", build_batch([record(b"9", b"\0\0\0\0\x07\x02", 0)], codec=GZIP))
    by_engine = [scan(tmp_path, redacted("value.total == 7"), is_compiled=one) for one in (True, False)]
    assert whats(by_engine[0]) == whats(by_engine[1]) == [UNDECIDED, VALUE]
