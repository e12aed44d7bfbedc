"""Facts about this installation: version, commit, kernels, engines, libraries (`diamant --version --json`)."""

from __future__ import annotations

import platform
import re
import subprocess
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict

from diamant.kernels import ARE_COMPILED
from diamant.version import __version__

_PACKAGE = Path(__file__).resolve().parents[3]
COMMIT = _PACKAGE / "commit.txt"
"""A file with the commit that a wheel was built from; `make dist` writes it."""


class BuildFacts(TypedDict):
    """The fields of the JSON object."""

    version: str
    commit: str | None
    """None if this is neither a wheel of `make dist` nor a clone."""
    python: str
    kernels: bool
    engines: list[str]
    """The engines for `diamant log clean --engine` that this installation supports. Does not check whether Java is installed."""
    libraries: dict[str, str]
    """The versions of the libraries that Diamant requires."""


def build_facts() -> BuildFacts:
    """Return the facts about this installation."""
    with_kernels = ["compiled", *(["spark"] if find_spec("pyspark") and find_spec("pyarrow") else [])]
    return {
        "version": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "kernels": ARE_COMPILED,
        "engines": ["inline", "process", *(with_kernels if ARE_COMPILED else [])],
        "libraries": _libraries(),
    }


def _commit() -> str | None:
    if COMMIT.exists():
        return COMMIT.read_text().strip()
    if not (_PACKAGE.parent / ".git").exists():
        return None
    try:
        asked = ["git", "-C", str(_PACKAGE.parent), "rev-parse", "HEAD"]
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _libraries() -> dict[str, str]:
    try:
        required = metadata.requires("diamant-broker") or []
        names = [re.match(r"[\w.-]+", one) for one in required if "extra ==" not in one]
        return {name[0]: metadata.version(name[0]) for name in names if name}
    except metadata.PackageNotFoundError:
        return {}
