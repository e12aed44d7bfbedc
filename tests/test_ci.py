"""`.ci/run`: every machine runs the same, whatever its shell has set and its user has installed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
INSTALLING = {"https_proxy": "http://proxy:3128", "PIP_INDEX_URL": "http://index/simple with space"}
OTHER_PYTHON = """#!/bin/sh
[ "$1" = --version ] && echo "Python 3.99.1" || echo "$0"
"""


def write_program(path: Path, text: str) -> str:
    """Make a program, and return its name."""
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def run_ci(tmp_path: Path, path: str) -> list[list[str]]:
    """Return the lines that each call of make prints: its arguments, then its environment."""
    make = write_program(
        tmp_path / "make", '#!/bin/sh\necho "arguments=$*"\nenv\n[ -z "$(ls -A "$HOME")" ] || echo a file at home\n'
    )
    machine = {"PYTHONUNBUFFERED": "1", "LC_ALL": "C", "COLUMNS": "40", "JAVA_HOME": "/opt/java", "PYENV_ROOT": "/opt"}
    given = {"PATH": path, "HOME": "/home/somebody", "MAKE": make, **INSTALLING}
    run = subprocess.run([ROOT / ".ci/run"], env=given | machine, capture_output=True, text=True, check=True)
    return [call.splitlines() for call in run.stdout.split("arguments=")[1:]]


def test_all_targets_see_the_systems_programs_and_an_empty_home(tmp_path: Path) -> None:
    """Of the shell's variables only those that install packages arrive; the user's Python and its home do not."""
    calls = run_ci(tmp_path, os.environ["PATH"])
    assert [calls[0][0], calls[-1][0]] == ["-j3 check lowest collect", "test"]
    for call in calls:
        shells = ("PWD", "OLDPWD", "SHLVL", "_")
        variables = dict(line.split("=", 1) for line in call[1:] if "=" in line)
        seen = {name: value for name, value in variables.items() if name not in shells}
        home = seen.pop("HOME")
        assert home not in ("/home/somebody", os.environ.get("HOME"))
        assert seen == {"PATH": SYSTEM_PATH, "CI": "true", "LANG": "C.UTF-8", **INSTALLING}
        assert "a file at home" not in call


def test_another_python_on_path_runs_the_main_path_too(tmp_path: Path) -> None:
    """The main path runs in a copy, beside the checks; the same version as the system's is not tried again."""
    other = write_program(tmp_path / "python3", OTHER_PYTHON)
    calls = run_ci(tmp_path, f"{tmp_path}:{SYSTEM_PATH}")
    assert [call[0].partition("main")[2] for call in calls] == ["", f" PYTHON={other}", ""]
    assert len(run_ci(tmp_path, SYSTEM_PATH)) == 2
