"""`make test` where there is no Java: it says what it does, installs it as root of Debian alone, and never when told not to."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = [
    pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed"),
    pytest.mark.skipif(not Path("/etc/debian_version").exists(), reason="not Debian"),
]


def write_program(path: Path, text: str) -> None:
    """Make a shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def make_java(tmp_path: Path, *arguments: str, user: int, has_java: bool, apt_code: int = 0) -> tuple[str, str, str]:
    """The output and the errors of `make java`, and its calls of apt-get."""
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


def test_root_of_debian_gets_it_and_is_told(tmp_path: Path) -> None:
    """With the way out."""
    out, _, asked = make_java(tmp_path, user=0, has_java=False)
    assert "installing openjdk-17-jre-headless (make test JAVA=skip does not)" in out
    assert asked == "update -q\ninstall -y -q openjdk-17-jre-headless\n"


def test_others_are_told_the_command(tmp_path: Path) -> None:
    """And nothing is tried; the suite continues."""
    out, err, asked = make_java(tmp_path, user=1000, has_java=False)
    assert (out, asked) == ("", "")
    assert "the tests of Spark are skipped: they need Java 17 or newer." in err
    assert "as root: apt-get install -y openjdk-17-jre-headless" in err


def test_a_failed_installation_does_not_end_the_suite(tmp_path: Path) -> None:
    """The tests that need it are skipped then, and fail by themselves where CI is set."""
    _, err, _ = make_java(tmp_path, user=0, has_java=False, apt_code=100)
    assert "that failed: the tests of Spark are skipped" in err


@pytest.mark.parametrize(("arguments", "has_java"), [(["JAVA=skip"], False), ([], True)])
def test_nothing_is_done_where_nothing_is_to_be_done(tmp_path: Path, arguments: list[str], has_java: bool) -> None:
    """With JAVA=skip, or with a Java that will do."""
    assert make_java(tmp_path, *arguments, user=0, has_java=has_java) == ("", "", "")
