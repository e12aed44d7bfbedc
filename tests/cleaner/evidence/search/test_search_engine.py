"""The choice of the search, and its name in the report."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from diamant.cleaner.evidence.scan.scan import scan_directory
from diamant.cleaner.evidence.search.findings import VALUE
from diamant.cleaner.evidence.search.needles import Needles
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.protocol.batches.header import Record
from diamant.protocol.batches.records import build_batch
from diamant.storage.env.env import RealEnv

PLACES = (0, 77, 199)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A segment with the key in a few of its 200 batches."""
    rng = random.Random(3)
    directory = tmp_path / "data" / "users-0"
    directory.mkdir(parents=True)
    batches = []
    for index in range(200):
        keys = [b"other-%d" % index, b"customer-42" if index in PLACES else b"nobody"]
        records = [Record(2 * index + delta, 1, key, rng.randbytes(50)) for delta, key in enumerate(keys)]
        batches.append(bytes(build_batch(records, codec=index % 5)))
    (directory / "00000000000000000000.log").write_bytes(b"".join(batches))
    return tmp_path / "data"


@pytest.mark.parametrize(("is_compiled", "engine", "clean"), [(False, "plain", 0), (True, "compiled", 197)])
def test_both_searches_find_the_same_and_the_report_names_which_has_read(
    directory: Path, is_compiled: bool, engine: str, clean: int
) -> None:
    """The compiled search hands batches with findings to the plain one."""
    subject = Subject(b"customer-42", frozenset({"users"}), Needles(b"s" * 32))
    report = scan_directory(RealEnv(), str(directory), subject, {}, is_compiled=is_compiled)
    offsets = sorted(one.offset or 0 for one in report.findings if one.what == VALUE)
    assert offsets == [2 * place + 1 for place in PLACES]
    assert (report.counts.batches, report.counts.records, report.unaccounted) == (200, 400, [])
    assert (report.engine, report.counts.compiled_batches) == (engine, clean)


def test_where_the_key_is_not_known_every_record_is_looked_at_plainly(directory: Path) -> None:
    """The compiled search cannot compare keys with a digest."""
    subject = Subject(None, frozenset({"users"}), Needles(b"s" * 32), b"x" * 32)
    report = scan_directory(RealEnv(), str(directory), subject, {}, is_compiled=True)
    assert (report.engine, report.counts.compiled_batches, report.counts.records) == ("plain", 0, 400)
