"""The Makefile: a data directory of any name, an interpreter that is too old, and Java, installed as root of Debian alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")

on_debian = pytest.mark.skipif(not Path("/etc/debian_version").exists(), reason="not Debian")

ROOT = Path(__file__).resolve().parent.parent


def write_program(path: Path, text: str) -> None:
    """Make a shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("target", "python", "told"),
    [
        ("run", "python3.9", "Diamant needs CPython 3.11 or newer; {} is 3.9.18. make run PYTHON=python3.11\n"),
        # The environment that is there: with the command that makes it again.
        (
            "test",
            "venv/bin/python",
            "Diamant needs CPython 3.11 or newer; {} is 3.9.18. make clean test PYTHON=python3.11\n",
        ),
        ("run", "", "python-of-nowhere: not found. make run PYTHON=python3.11\n"),
    ],
    ids=["too old", "an environment of one too old", "not there"],
)
def test_a_python_that_will_not_do_is_reported(tmp_path: Path, target: str, python: str, told: str) -> None:
    """One line in place of what pip makes of it; nothing is made."""
    program = tmp_path / python if python else "python-of-nowhere"
    if python:
        write_program(tmp_path / python, '[ "$1" = --version ] && echo "Python 3.9.18" && exit 0\nexit 1')
    before = sorted(tmp_path.rglob("*"))
    given = [] if python.startswith("venv") else [f"PYTHON={program}"]
    command = ["make", "-C", str(ROOT), target, *given, f"VENV={tmp_path}/venv"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 2
    assert told.format(program) in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_an_installation_is_never_silent(tmp_path: Path) -> None:
    """Whatever takes its time, pip or a compiler, on however busy a machine: a line comes with each turn of a clock."""
    turns = tmp_path / "turns"
    write_program(tmp_path / "bin/sleep", f"echo >> {turns}; exec /bin/sleep 0.05")
    # Installs until the clock has turned thrice.
    waits = f"touch {turns}; until [ $(wc -l < {turns}) -ge 3 ]; do /bin/sleep 0.02; done"
    words = tmp_path / "words"
    write_program(tmp_path / "venv/bin/python", f'[ "$2" = pip ] || exit 0\necho "$@" > {words}\n{waits}')
    done = subprocess.run(
        ["make", "-C", str(ROOT), f"{tmp_path}/venv/.run-installed", f"VENV={tmp_path}/venv"],
        capture_output=True, text=True, check=True, timeout=30,
        env={**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.stdout.count("  still installing or compiling\n") >= 2
    assert " install --quiet --no-compile " in words.read_text(), "a log has no line for each package"


def test_an_environment_of_other_sources_is_made_again(tmp_path: Path) -> None:
    """Whatever the times say: a copied environment, and the kernels beside it, are newer than the sources that are there."""
    write_program(tmp_path / "venv/bin/python", "exit 0")
    stamp = tmp_path / "venv/.run-installed"
    make = ["make", "-C", str(ROOT), str(stamp), f"VENV={tmp_path}/venv"]
    for text in ("", "1 2"):
        stamp.write_text(text)
        assert "compiling the kernels" in subprocess.check_output(make, text=True, timeout=30)
    assert "is up to date" in subprocess.check_output(make, text=True, timeout=30)


@pytest.mark.parametrize(("given", "typed"), [("a b  c", r"a\ b\ \ c"), ("~/data", "~/data")])
def test_a_directory_with_spaces_is_one_argument(tmp_path: Path, given: str, typed: str) -> None:
    """The home directory is found by the shell, as the path may be handed over as it was typed."""
    done = subprocess.run(
        ["make", "-C", str(ROOT), "-n", "run", f"DATA={given}", f"VENV={tmp_path}/venv"],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    assert f"--data {typed}\n" in done.stdout


def make_java(tmp_path: Path, *arguments: str, user: int, has_java: bool, apt_code: int = 0) -> tuple[str, str, str]:
    """Return the output and the errors of `make java`, and its calls of apt-get."""
    write_program(tmp_path / "venv/bin/python", f"exit {0 if has_java else 1}")
    write_program(tmp_path / "bin/id", f"echo {user}")
    write_program(tmp_path / "bin/apt-get", f'echo "$@" >> {tmp_path}/asked; exit {apt_code}')
    done = subprocess.run(
        ["make", "-s", "-C", str(ROOT), "java", f"VENV={tmp_path}/venv", *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
        env={**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"},
    )
    asked = tmp_path / "asked"
    return done.stdout, done.stderr, asked.read_text() if asked.exists() else ""


@on_debian
def test_root_of_debian_gets_it_with_a_note(tmp_path: Path) -> None:
    """Root of Debian gets an installation, with a note on how to avoid it."""
    out, _, asked = make_java(tmp_path, user=0, has_java=False)
    assert "installing openjdk-17-jre-headless (make test JAVA=skip does not)" in out
    assert asked == "update -q\ninstall -y -q openjdk-17-jre-headless\n"


@on_debian
def test_others_are_told_the_command(tmp_path: Path) -> None:
    """Others are told the command, and nothing is tried; the suite continues."""
    out, err, asked = make_java(tmp_path, user=1000, has_java=False)
    assert (out, asked) == ("", "")
    assert "the tests of Spark are skipped: they need Java 17 or newer." in err
    assert "as root: apt-get install -y openjdk-17-jre-headless" in err


@on_debian
def test_a_failed_installation_does_not_end_the_suite(tmp_path: Path) -> None:
    """The tests that need it are skipped then, and fail by themselves where CI is set."""
    _, err, _ = make_java(tmp_path, user=0, has_java=False, apt_code=100)
    assert "that failed: the tests of Spark are skipped" in err


@on_debian
@pytest.mark.parametrize(("arguments", "has_java"), [(["JAVA=skip"], False), ([], True)])
def test_nothing_is_done_where_nothing_is_to_be_done(tmp_path: Path, arguments: list[str], has_java: bool) -> None:
    """Nothing is installed with JAVA=skip, or with a Java that will do."""
    assert make_java(tmp_path, *arguments, user=0, has_java=has_java) == ("", "", "")


@on_debian
@pytest.mark.slow
def test_the_suites_make_options_do_not_reach_the_make_of_a_test() -> None:
    """`make test JAVA=skip` hands it on to all that it starts."""
    test = f"{__file__}::{test_others_are_told_the_command.__name__}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test], cwd=ROOT, capture_output=True, text=True,
        check=False, timeout=120, env={**os.environ, "MAKEFLAGS": " -- JAVA=skip", "JAVA": "skip"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
