"""Names of files: they are searched like other bytes, and appear in the certificate's account."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diamant.cleaner.evidence.scan.report import INCONCLUSIVE, KEY_GONE
from diamant.cleaner.evidence.search.file_census import FileCensus
from diamant.cleaner.evidence.search.findings import RAW
from diamant.protocol.batches.records import build_batch
from diamant.storage.env.env import RealEnv
from tests.cleaner.evidence.scan.listed_env import ListedEnv
from tests.cleaner.evidence.scan.scanned_files import LOG, put, record, scan, state, subject

KEY = "customer-000042"
SECRET = "Anna Schmidt of Bern"


@pytest.mark.parametrize(
    "name", [f"{KEY}.csv", f"users-0/{KEY}", f"exports/{KEY}/0", f"users-0.{'0' * 32}-stray/{KEY}"]
)
def test_a_name_with_the_key_is_a_finding(tmp_path: Path, name: str) -> None:
    """The key in a file's name is a finding, also for an empty file; reports mask it."""
    put(tmp_path, LOG, build_batch([record(b"a", b"b")]))
    put(tmp_path, name)
    report = scan(tmp_path, looked_for := subject(KEY.encode()))
    (found,) = report.findings
    label = f"[key {looked_for.key_digest.hex()[:8]}]"
    assert (found.what, found.file) == (RAW, name.replace(KEY, label))
    assert found.file in {row.file for row in report.rows}
    assert KEY not in json.dumps(report.coverage())
    assert state(report, looked_for) != KEY_GONE or report.astray


def test_a_file_that_was_not_read_does_not_give_its_name_away(tmp_path: Path) -> None:
    """The account masks the key in the names of unread files and of links to directories."""
    put(tmp_path, LOG, build_batch([record(b"a", b"b")]))
    put(tmp_path, f"exports/{KEY}.csv")
    (tmp_path / "exports" / KEY).symlink_to(tmp_path)
    env = ListedEnv(tmp_path, is_shown=lambda name: ".csv" not in name)
    census = FileCensus(RealEnv(), str(tmp_path))
    coverage = scan(tmp_path, looked_for := subject(KEY.encode()), env=env, census=census).coverage()
    label = f"[key {looked_for.key_digest.hex()[:8]}]"
    assert coverage["links_not_followed"] == [f"exports/{label}"]
    assert f"exports/{label}.csv" in [one["file"] for one in coverage["not_read"]]
    assert KEY not in json.dumps(coverage)


def test_a_name_with_a_value_lets_nothing_be_claimed(tmp_path: Path) -> None:
    """A name with a value prevents claims. Two such files have different masked names; invalid UTF-8 is accepted."""
    put(tmp_path, LOG, build_batch([record(b"a", b"b")]))
    looked_for = subject(KEY.encode(), SECRET.encode(), b"Bert Schmidt of Rome")
    for name in (f"\udcff{SECRET}.txt", "\udcffBert Schmidt of Rome.txt"):
        put(tmp_path, name)
    report = scan(tmp_path, looked_for)
    assert state(report, looked_for) == INCONCLUSIVE
    assert len({one.file for one in report.in_the_way}) == 2
    assert SECRET not in json.dumps(report.coverage())
