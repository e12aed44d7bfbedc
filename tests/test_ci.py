"""`.ci/run`: every machine runs the same, whatever its shell has set."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_variables_of_a_machine_reach_no_test(tmp_path: Path) -> None:
    """All targets see CI, a locale, and of the shell's variables only what finds programs and installs packages."""
    make = tmp_path / "make"
    make.write_text('#!/bin/sh\necho "target=$1"\nenv\n')
    make.chmod(0o755)
    given = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HOME": "/home/somebody",
        "https_proxy": "http://proxy:3128",
        "PIP_INDEX_URL": "http://index/simple with space",
    }
    machine = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C", "COLUMNS": "40", "TERM": "dumb"}
    run = subprocess.run([ROOT / ".ci/run"], env=given | machine, capture_output=True, text=True, check=True)
    shells = ("PWD", "OLDPWD", "SHLVL", "_")
    seen = [line for line in run.stdout.splitlines() if line.partition("=")[0] not in shells]
    variables = sorted(f"{name}={value}" for name, value in (given | {"CI": "true", "LANG": "C.UTF-8"}).items())
    size = len(seen) // 3
    assert seen[::size] == ["target=check", "target=test", "target=lowest"]
    for start in range(0, len(seen), size):
        assert sorted(seen[start + 1 : start + size]) == variables
