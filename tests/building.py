"""pip, the tools that building Diamant requires, in a directory of their own for all tests that build it, and where Go may be."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tomllib
from hashlib import sha256
from pathlib import Path

import pytest

PYPROJECT = tomllib.loads((Path(__file__).resolve().parent.parent / "pyproject.toml").read_text())
NO_INDEX = re.compile(
    r"Could not find a version|NewConnectionError|Max retries exceeded|name resolution|Network is unreachable|Timeout|ProxyError"
)
PATH_WITH_GO = f"{os.environ['PATH']}{os.pathsep}/usr/local/go/bin"
"""Go's own archive is unpacked there, and leaves PATH to its user."""


def pip(*arguments: str | Path, **environment: str) -> None:
    """Run pip; skip the test where there is no package index."""
    run = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments], env=os.environ | environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=600,
    )  # fmt: skip
    check_pip(run)


def check_pip(run: subprocess.CompletedProcess[str]) -> None:
    """Skip the test if pip found no package index; fail it if pip failed."""
    if run.returncode and NO_INDEX.search(run.stdout):
        pytest.skip(f"pip cannot reach a package index: {run.stdout.strip().splitlines()[-1]}")
    assert run.returncode == 0, run.stdout


def tools_below(place: Path) -> Path:
    """The directory with what `build-system` of pyproject.toml names, and nothing else. The first call makes it, and others
    wait for it.
    """
    required: list[str] = PYPROJECT["build-system"]["requires"]
    tools = place / sha256(f"{required} {sys.version}".encode()).hexdigest()[:16]
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not tools.exists():
            for outdated in filter(Path.is_dir, place.iterdir()):
                shutil.rmtree(outdated)
            unfinished = place / "unfinished"
            pip("install", "--no-compile", "--target", unfinished, *required)
            unfinished.rename(tools)
    return tools
