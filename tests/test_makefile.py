"""`make run`: a data directory of any name; with an interpreter that is too old, one line in place of what pip makes of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")

ROOT = Path(__file__).resolve().parent.parent


def write_python(path: Path, version: str) -> None:
    """Make a program that says it is this version of Python and does nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "Python {version}" && exit 0\nexit 1\n')
    path.chmod(0o755)


def make(*arguments: str) -> str:
    """Run make, which must fail; return its standard error."""
    done = subprocess.run(
        ["make", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == 2
    return done.stderr


def test_an_old_python_is_told(tmp_path: Path) -> None:
    """And nothing is made."""
    python = tmp_path / "python3.9"
    write_python(python, "3.9.18")
    stderr = make("run", f"PYTHON={python}", f"VENV={tmp_path}/venv")
    assert f"Diamant needs CPython 3.11 or newer; {python} is 3.9.18. make run PYTHON=python3.11\n" in stderr
    assert not (tmp_path / "venv").exists()


def test_an_environment_of_an_old_python_is_told(tmp_path: Path) -> None:
    """With the command that makes it again."""
    python = tmp_path / "venv/bin/python"
    write_python(python, "3.9.18")
    stderr = make("test", f"VENV={tmp_path}/venv")
    wanted = f"Diamant needs CPython 3.11 or newer; {python} is 3.9.18. make clean test PYTHON=python3.11\n"
    assert wanted in stderr


def test_a_python_that_is_not_there_is_told(tmp_path: Path) -> None:
    """As one that is too old is."""
    stderr = make("run", "PYTHON=python-of-nowhere", f"VENV={tmp_path}/venv")
    assert "python-of-nowhere: not found. make run PYTHON=python3.11\n" in stderr


@pytest.mark.parametrize(("given", "typed"), [("a b  c", r"a\ b\ \ c"), ("~/data", "~/data")])
def test_a_directory_with_spaces_is_one_argument(tmp_path: Path, given: str, typed: str) -> None:
    """And the home directory is the shell's to find, as some hand it over as it was typed."""
    done = subprocess.run(
        ["make", "-C", str(ROOT), "-n", "run", f"DATA={given}", f"VENV={tmp_path}/venv"],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    assert f"--data {typed}\n" in done.stdout
