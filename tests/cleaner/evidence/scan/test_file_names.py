"""Names of files: they are searched like other bytes, and appear in the certificate's account."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from diamant.cleaner.evidence.scan.report import INCONCLUSIVE
from diamant.cleaner.evidence.search.file_census import FileCensus
from diamant.cleaner.evidence.search.findings import RAW
from diamant.protocol.batches.batch_records import build_batch
from diamant.storage.certificate_states import KEY_GONE
from diamant.storage.env.env import RealEnv
from tests.cleaner.evidence.scan.listed_env import ListedEnv
from tests.cleaner.evidence.scan.scanned_files import LOG, put, record, scan, state, subject

KEY = "customer-000042"
SECRET = "Anna Schmidt of Bern"
STAGING = f"diamant-staging-{'0123456789abcdef-' * 3}"[:-1]


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


@pytest.mark.parametrize(
    "name",
    [
        f"diamant-export-{KEY}.csv",
        f"diamant-{KEY}",
        f"diamant-erasure-{KEY}.json",
        f"diamant-erasure-{'ab' * 16}.{KEY}.json",
        f"diamant-erasure-{'ab' * 16}.key-gone.json.{KEY}",
        f"00000000000000000000.{KEY}",
        f"users-0/00000000000000000000.{KEY}",
        f"users-0/00000000000000000000.log.{KEY}",
        f"users-0/leader-epoch-checkpoint.{KEY}",
        f"users-0/diamant-staging-{KEY}/00000000000000000000.log",
        f"users-0/diamant-00000000000000000000.{KEY}",
        f"users-0.{KEY}-stray/00000000000000000000.log",
        f"users-0/sub/{KEY}.log",
        f"meta.properties.{KEY}",
        f".lock-{KEY}",
    ],
)
def test_a_name_that_looks_like_the_broker_s_own_is_searched(tmp_path: Path, name: str) -> None:
    """Only names that the broker or Kafka can give are theirs: where these have a word or a number, no other text fits."""
    put(tmp_path, LOG, build_batch([record(b"a", b"b")]))
    put(tmp_path, name)
    report = scan(tmp_path, looked_for := subject(KEY.encode()))
    assert [(one.what, one.digest) for one in report.findings] == [(RAW, looked_for.key_digest.hex())]
    assert KEY not in json.dumps(report.coverage())


@pytest.mark.parametrize(
    "name",
    [
        KEY,
        f"exports/{KEY}/old",
        f"exports/old/{KEY}",
        f"users-0/{KEY}",
        f"users-0/sub/{KEY}",
        f"users-0/00000000000000000000.{KEY}",
        f"users-0/diamant-staging-{KEY}",
        f"users-0/{STAGING}/{KEY}",
        f"users-0.{'0' * 32}-stray/{KEY}",
        f"users-0.{KEY}-delete",
        f"{KEY}-0",
        f"diamant-erasure-{'ab' * 16}.{KEY}.json",
        f"remote-log-index-cache/{KEY}",
        f"exports/{KEY.encode().hex()}",
    ],
)
@pytest.mark.parametrize("target", [None, "outside", "nowhere"])
def test_a_name_without_content_is_searched_as_a_file_s(tmp_path: Path, name: str, target: str | None) -> None:
    """Of an empty directory, and of links that lead to directories and nowhere: it prevents claims, and reports mask it."""
    put(data := tmp_path / "data", LOG, build_batch([record(b"a", b"b")]))
    (tmp_path / "outside").mkdir()
    path = data / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if target is None:
        path.mkdir()
    else:
        path.symlink_to(tmp_path / target)
    looked_for = subject(KEY.encode())
    report = scan(data, looked_for, partitions=lambda topic: (0,) if topic == "users" else ())
    (found,) = report.findings
    assert (found.what, found.digest) == (RAW, looked_for.key_digest.hex())
    assert found.file in {row.file for row in report.rows}
    assert (report.unaccounted, report.coverage()["files"]) == ([], 2)
    assert not re.search(f"{KEY}|{KEY.encode().hex()}", json.dumps(report.coverage()))
    assert state(report, looked_for) != KEY_GONE or report.astray


@pytest.mark.parametrize(
    ("name", "key"),
    [
        (f"users-0/{STAGING}", STAGING),
        (f"users-0/{STAGING}/00000000-1", STAGING),
        (f"users-0/{STAGING}/segments", STAGING),
        (f"users-0.{'01' * 16}-delete", "01" * 16),
        ("remote-log-index-cache", "remote-log-index"),
    ],
)
def test_names_that_the_broker_gives_to_directories_are_not_searched(tmp_path: Path, name: str, key: str) -> None:
    """Such directories are empty for a moment, or until the first file comes."""
    put(tmp_path, LOG, build_batch([record(b"a", b"b")]))
    (tmp_path / name).mkdir(parents=True)
    report = scan(tmp_path, looked_for := subject(key.encode()))
    assert (state(report, looked_for), report.findings, report.unaccounted) == (KEY_GONE, [], [])


@pytest.mark.parametrize(
    "name", ["diamant-customer-{}.json", "users-0/{}.log", "backup/x{}", "diamant-erasure-{}.json"]
)
@pytest.mark.parametrize("form", [str.lower, str.upper])
def test_a_name_with_the_key_in_hexadecimal_is_a_finding(tmp_path: Path, name: str, form: Callable[[str], str]) -> None:
    """The key is found at even and odd places, and reports mask all of its digits."""
    put(tmp_path, LOG, build_batch([record(b"a", b"b")]))
    digits = form(KEY.encode().hex())
    put(tmp_path, name.format(digits))
    put(tmp_path, name.format(f"1{digits}2"))
    report = scan(tmp_path, looked_for := subject(KEY.encode()))
    label = f"[key {looked_for.key_digest.hex()[:8]}]"
    assert {one.file for one in report.findings} == {name.format(label), name.format(f"1{label}2")}
    assert digits not in json.dumps(report.coverage())


@pytest.mark.parametrize(
    "name",
    [
        "users-0/00000000004155551234.index.deleted",
        "users-0.00000000004155551234000000000000-delete/00000000000000000000.log",
        "diamant-erasure-00000000004155551234000000000000.key-gone.json",
    ],
)
def test_names_that_the_broker_gives_are_not_searched(tmp_path: Path, name: str) -> None:
    """The digits of an offset or of a random id may be those of a key."""
    put(tmp_path, LOG, build_batch([record(b"a", b"b")]))
    put(tmp_path, name, build_batch([record(b"a", b"b")]) if ".log" in name else b"")
    report = scan(tmp_path, looked_for := subject(b"00000000004155551234"))
    assert state(report, looked_for) == KEY_GONE
    assert report.findings == []


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
