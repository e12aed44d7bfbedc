"""The projects of examples/tests, as their README runs them: in each language whose tools and client are on this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECTS = Path(__file__).resolve().parents[2] / "examples" / "tests"
COMMANDS = {
    "pytest": [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
    "go": ["go", "test", "./..."],
    "node": ["npm", "test"],
    "junit": ["mvn", "-q", "-o", "test"],
}
NOT_HERE = re.compile(
    r"GOPROXY=off|GOTOOLCHAIN=local|missing go.sum|Cannot find package 'kafkajs'|"
    r"[Cc]annot access .* in offline mode|Could not find artifact|has not been downloaded|"
    r"during a previous attempt|could not be resolved|release version 17 not supported"
)
"""What the tools say when a library, or a version of themselves, is not on the machine; nothing is downloaded."""


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_project_passes(name: str, tmp_path: Path) -> None:
    """With a broker of its own, by `diamant exec` where no fixture starts it."""
    command = COMMANDS[name]
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} on this machine")
    project = tmp_path / name
    shutil.copytree(PROJECTS / name, project)
    if name == "node":
        modules = Path(os.environ.get("NODE_PATH", ".")) / "kafkajs"
        if not modules.is_dir():
            pytest.skip("NODE_PATH names no directory that has kafkajs")
        (project / "node_modules").mkdir()
        (project / "node_modules" / "kafkajs").symlink_to(modules)
    run = [] if name == "pytest" else [sys.executable, "-m", "diamant.broker.cli", "exec", "--"]
    offline = {"GOPROXY": "off", "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local"}
    root = str(PROJECTS.parents[1])
    found = subprocess.run(
        [*run, *command], cwd=project, env=os.environ | offline | {"PYTHONPATH": root},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=280,
    )  # fmt: skip
    if found.returncode and (reason := NOT_HERE.search(found.stdout)):
        pytest.skip(f"{name}: {reason[0]}")
    assert found.returncode == 0, found.stdout


def test_every_project_is_in_the_list() -> None:
    """The README names each folder, with the command that is run here."""
    readme = (PROJECTS / "README.md").read_text()
    folders = {path.name for path in PROJECTS.iterdir() if path.is_dir()}
    assert folders == {*COMMANDS} == {*re.findall(r"\[(\w+)\]\(\1\)", readme)}
