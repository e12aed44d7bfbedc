"""The versions of CPython that Diamant is for, and where this machine has them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.building import PYPROJECT

CLASSIFIER = re.compile(r"Programming Language :: Python :: (3\.\d+)")
SUPPORTED = [found[1] for one in PYPROJECT["project"]["classifiers"] if (found := CLASSIFIER.fullmatch(one))]
"""`3.11` and so on, the oldest first."""
ASK = (
    "import json, platform, sys, sysconfig, venv, ensurepip; "
    "print(json.dumps([platform.python_version(), sys.executable, "
    "sys.implementation.name == 'cpython' and not sysconfig.get_config_var('Py_GIL_DISABLED')]))"
)


class Python(NamedTuple):
    """An interpreter."""

    version: str
    """`3.11.2`."""
    program: str

    @property
    def order(self) -> tuple[int, ...]:
        """The version as numbers; a release candidate counts as its release."""
        return tuple(map(int, re.findall(r"\d+", self.version)[:3]))


def ask(program: str) -> Python | None:
    """Return what a program is; None unless it is a CPython with a GIL that makes environments: pyenv has placeholders on
    PATH, and Debian has packages without `venv`.
    """
    try:
        run = subprocess.run([program, "-c", ASK], capture_output=True, text=True, check=False, timeout=60)
    except OSError:
        return None
    if run.returncode:
        return None
    version, executable, will_do = json.loads(run.stdout)
    return Python(version, executable) if will_do else None


def candidates(versions: Iterable[str]) -> Iterator[str]:
    """Programs that may be of these versions: in every directory on PATH, and among those of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for version in versions:
        for directory in os.get_exec_path():
            if found := shutil.which(f"python{version}", path=directory):
                yield found
        yield from map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}")))


def find(versions: Iterable[str]) -> list[Python]:
    """Return the interpreters of these versions, the oldest first, one of each patch version."""
    found: dict[str, Python] = {}
    for program in candidates(versions):
        if python := ask(program):
            found.setdefault(python.version, python)
    return sorted(found.values(), key=lambda python: python.order)
