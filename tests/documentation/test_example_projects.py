"""The projects of examples/tests, as their README runs them: in each language whose tools and client are on this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cleaner.spark.cluster import JAVA_OPTIONS

PROJECTS = Path(__file__).resolve().parents[2] / "examples" / "tests"
COMMANDS = {
    "pytest": [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
    "go": ["go", "test", "./..."],
    "node": ["npm", "test"],
    "junit": ["mvn", "-q", "test"],
}
FETCHES = {
    "go": ["go", "mod", "download"],
    "node": [
        "npm",
        "install",
        "--prefer-offline",
        "--no-audit",
        "--no-fund",
        "--fetch-retries=0",
        "--fetch-timeout=20000",
    ],
    "junit": ["mvn", "-q", "test-compile"],
}
"""What brings libraries that are not on the machine yet, from the usual registries."""
FETCH_TIMEOUT_S = 150
TOO_OLD = re.compile(r"GOTOOLCHAIN=local|release version 17 not supported")
"""What the tools say when they are older than a project wants."""


def fetch(name: str, project: Path, environment: dict[str, str]) -> None:
    """Bring what a project needs; skip the test where no registry answers, or the tools are too old."""
    try:
        fetched = subprocess.run(
            FETCHES[name], cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False, timeout=FETCH_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        pytest.skip(f"{name}: the registry of its libraries does not answer")
    assert "COMPILATION ERROR" not in fetched.stdout, fetched.stdout
    if fetched.returncode:
        reason = TOO_OLD.search(fetched.stdout) or re.search(r".*\S", fetched.stdout)
        pytest.skip(f"{name}: its libraries cannot be had: {reason[0] if reason else fetched.returncode}")


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_project_passes(name: str, tmp_path: Path) -> None:
    """With a broker of its own, by `diamant exec` where no fixture starts it."""
    command = COMMANDS[name]
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} on this machine")
    project = tmp_path / name
    shutil.copytree(PROJECTS / name, project)
    environment = os.environ | {
        "GOFLAGS": "-mod=readonly",
        "GOTOOLCHAIN": "local",
        "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
        "PYTHONPATH": str(PROJECTS.parents[1]),
    }
    if name in FETCHES:
        fetch(name, project, environment)
    run = [] if name == "pytest" else [sys.executable, "-m", "diamant.broker.cli", "exec", "--"]
    found = subprocess.run(
        [*run, *command], cwd=project, env=environment | {"GOPROXY": "off"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=140,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout


def test_every_project_is_in_the_list() -> None:
    """The README names each folder, with the command that is run here."""
    readme = (PROJECTS / "README.md").read_text()
    folders = {path.name for path in PROJECTS.iterdir() if path.is_dir()}
    assert folders == {*COMMANDS} == {*re.findall(r"\[(\w+)\]\(\1\)", readme)}
