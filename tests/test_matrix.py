"""`make matrix`: the interpreters that it finds, the part of the suite for each, and its table."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

from tests import matrix, pythons
from tests.building import PYPROJECT
from tests.matrix import Row
from tests.pythons import Python

ROOT = Path(__file__).resolve().parent.parent
OLDEST, MIDDLE, NEWEST = (Python(version, f"/opt/{version}") for version in ("3.11.2", "3.12.1", "3.14.0rc2"))


def write_program(path: Path, answer: str) -> None:
    """A script in place of an interpreter."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)


def answers(version: str, path: Path, will_do: str = "true") -> str:
    """What a script says to be."""
    return f"""echo '["{version}", "{path}", {will_do}]'"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on PATH, with pyenv below it, and nothing else."""
    monkeypatch.setenv("PATH", f"{tmp_path}/first:{tmp_path}/second:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    return tmp_path


def test_one_page_names_the_versions_of_the_classifiers() -> None:
    """The oldest is the least that pip accepts; other pages say "or newer", or refer to that page."""
    page = " ".join((ROOT / "docs" / "reference" / "compatibility.md").read_text().split())
    (named,) = re.findall(r"Diamant runs on Linux with CPython ([^;]+);", page)
    assert re.findall(r"3\.\d+(?![.\d])", named) == pythons.SUPPORTED
    assert PYPROJECT["project"]["requires-python"] == f">={pythons.SUPPORTED[0]}"
    assert [f"3.{minor}" for minor in range(11, 11 + len(pythons.SUPPORTED))] == pythons.SUPPORTED


def test_interpreters_come_from_path_and_pyenv_one_of_each_version(machine: Path) -> None:
    """Interpreters are listed oldest first, and 3.9 before 3.11; one that is found twice, by a link or a copy, is listed once."""
    places = {
        "pyenv/versions/3.11.7/bin/python3.11": "3.11.7",
        "pyenv/versions/3.12.1/bin/python3.12": "3.12.1",
        "first/python3.11": "3.11.2",
        "second/python3.11": "3.11.2",
        "second/python3.9": "3.9.18",
    }
    for place, version in places.items():
        write_program(machine / place, answers(version, machine / place))
    found = pythons.find(["3.11", "3.12", "3.9"])
    assert [one.version for one in found] == ["3.9.18", "3.11.2", "3.11.7", "3.12.1"]
    assert found[1].program == str(machine / "first/python3.11")


def test_placeholders_and_other_builds_are_no_interpreters(machine: Path) -> None:
    """Placeholders of pyenv end with an error, Debian's Python may lack venv, and a free-threaded one has no stable ABI."""
    write_program(machine / "first/python3.12", "echo pyenv: not installed >&2; exit 127")
    write_program(machine / "first/python3.13", answers("3.13.0", machine, will_do="false"))
    assert pythons.find(["3.12", "3.13"]) == []
    with pytest.raises(SystemExit, match=r"python3\.13, python9: expected CPython with venv"):
        matrix.chosen(["python3.13", "python9"])


def test_named_interpreters_are_taken_as_they_are(machine: Path) -> None:
    """Interpreters are named on PATH or by a path, and used once each, whatever the classifiers say; this Python answers for
    itself.
    """
    write_program(machine / "first/python3.99", answers("3.99.0", machine / "python3.99"))
    found = matrix.chosen(["python3.99", sys.executable, f"{machine}/first/python3.99"])
    assert [one.version for one in found] == [pythons.ask(sys.executable).version, "3.99.0"]


def test_the_oldest_and_the_newest_run_the_whole_suite() -> None:
    """The others run its quick part; the table has all, with dashes for one that ended before its summary."""

    def attempt(python: Python, part: str) -> Row:
        if python is MIDDLE:
            return Row(python.version, part, None, None, None, is_good=False)
        return Row(python.version, part, 4321, 0, 61.4, is_good=True)

    heading, *lines = matrix.table(matrix.try_all([OLDEST, MIDDLE, NEWEST], attempt)).splitlines()
    assert heading.split() == ["Python", "passed", "failed", "seconds"]
    assert [line.split() for line in lines] == [
        ["3.11.2", "test", "4321", "0", "61"],
        ["3.12.1", "quick", "-", "-", "-"],
        ["3.14.0rc2", "test", "4321", "0", "61"],
    ]
    assert [row.part for row in matrix.try_all([OLDEST], attempt)] == ["test"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("1234 passed in 61.05s (0:01:01)", (1234, 0, 61.05)),
        ("= 2 failed, 1134 passed, 3 skipped, 1 error in 361.05s (0:06:01) =", (1134, 3, 361.05)),
        ("2 errors in 1.50s", (0, 2, 1.5)),
        ("make: *** [Makefile:121: quick] Error 2", (None, None, None)),
    ],
)
def test_counts_are_those_of_the_last_summary(line: str, expected: object) -> None:
    """Errors count as failures; without a summary there are no counts."""
    summaries = [] if expected == (None, None, None) else ["7 passed in 0.10s"]
    assert matrix.counted(["collected 9 items\n", *summaries, f"{line}\n", "make: leaving\n"]) == expected


@pytest.mark.slow
def test_environments_share_the_files_of_spark() -> None:
    """A new environment links to them; pip takes them for installed, so that nothing is loaded or built."""
    with tempfile.TemporaryDirectory(dir=sys.prefix) as place:
        matrix.make_environment(pythons.ask(sys.executable), Path(place))
        (linked,) = Path(place).glob("lib/python*/site-packages/pyspark/version.py")
        assert linked.samefile(Path(sysconfig.get_path("purelib"), "pyspark", "version.py"))
        listed = subprocess.run([f"{place}/bin/pip", "list"], check=True, capture_output=True, text=True, timeout=60)
        assert re.search(r"^pyspark +\d", listed.stdout, re.MULTILINE)
