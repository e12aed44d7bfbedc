"""The projects of examples/, as their READMEs run them: in each language whose tools and libraries can be had here."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.building import PATH_WITH_GO
from tests.cleaner.spark.cluster import JAVA_OPTIONS

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PROJECTS = {
    folder: re.findall(r"^\| \[(\w+)\]\(\1\) \|.*\| `([^`]+)` \|$", (EXAMPLES / folder / "README.md").read_text(), re.M)
    for folder in ("failover", "programs", "tests")
}
"""By folder: the name of each project, and the command that its README gives."""
FETCHES = {
    "go": ["go", "mod", "download"],
    "npm": [
        "npm",
        "install",
        "--prefer-offline",
        "--no-audit",
        "--no-fund",
        "--fetch-retries=0",
        "--fetch-timeout=20000",
    ],
    "mvn": ["mvn", "-q", "test-compile"],
    "pytest": [sys.executable, "-m", "pip", "install", "--quiet", "--retries=0", "--target", "libraries"],
}
"""What brings libraries that are not on the machine yet, from the usual registries."""
FETCH_TIMEOUT_S = 150
LONG_TIMEOUT_S = 1500
TOO_OLD = re.compile(r"GOTOOLCHAIN=local|release version 17 not supported|engine Unsupported")
"""What the tools say when they are older than a project wants."""


def fetch(tool: str, project: Path, environment: dict[str, str], timeout_s: int) -> None:
    """Bring what a project needs; skip the test where no registry answers, or the tools are too old.

    Of a project in Python: the libraries that have a version in its requirements; the others are those of the suite.
    """
    command = FETCHES[tool]
    if tool == "pytest":
        libraries = re.findall(r"^.+==.+$", (project / "requirements.txt").read_text(), re.M)
        if not libraries:
            return
        command = [*command, *libraries]
    try:
        fetched = subprocess.run(
            command, cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False, timeout=timeout_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        pytest.skip(f"{project.name}: the registry of its libraries does not answer")
    assert "COMPILATION ERROR" not in fetched.stdout, fetched.stdout
    if fetched.returncode:
        reason = TOO_OLD.search(fetched.stdout) or re.search(r".*\S", fetched.stdout)
        pytest.skip(f"{project.name}: its libraries cannot be had: {reason[0] if reason else fetched.returncode}")


def run(project: Path, line: str, scratch: Path, timeouts_s: tuple[int, int], path: str = os.environ["PATH"]) -> None:
    """Do what a README says, in a copy of the project: bring its libraries, then run its test. Tools come from `path`."""
    words = shlex.split(line.rpartition("&&")[2])
    through = words.index("--") + 1 if "--" in words else 0
    tool = words[through]
    if shutil.which(tool, path=path) is None and tool != "pytest":
        pytest.skip(f"no {tool} on this machine")
    copy = scratch / project.name
    shutil.copytree(project, copy)
    environment = os.environ | {
        "PATH": path,
        "GOFLAGS": "-mod=readonly",
        "GOTOOLCHAIN": "local",
        "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
        "PYTHONPATH": os.pathsep.join([str(EXAMPLES.parent), str(copy / "libraries")]),
    }
    fetch(tool, copy, environment, timeouts_s[0])
    command = [sys.executable, "-m", "diamant.broker.cli", *words[1:through]] if through else [sys.executable, "-m"]
    quiet = {"mvn": ["-q"], "pytest": ["-q", "-p", "no:cacheprovider"]}.get(tool, [])
    found = subprocess.run(
        [*command, tool, *quiet, *words[through + 1 :]], cwd=copy, env=environment | {"GOPROXY": "off"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=timeouts_s[1],
    )  # fmt: skip
    assert found.returncode == 0, found.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("name", "line"), PROJECTS["tests"], ids=[name for name, _ in PROJECTS["tests"]])
def test_a_project_passes(name: str, line: str, tmp_path: Path) -> None:
    """The example's project passes with a broker of its own, by `diamant exec` where no fixture starts it."""
    run(EXAMPLES / "tests" / name, line, tmp_path, (FETCH_TIMEOUT_S, 140))


@pytest.mark.long
@pytest.mark.parametrize(("name", "line"), PROJECTS["failover"], ids=[name for name, _ in PROJECTS["failover"]])
def test_a_client_passes_its_tests_of_failover(name: str, line: str, tmp_path: Path) -> None:
    """The three tests of the guide on failover pass with each client in examples/failover, on three brokers."""
    run(EXAMPLES / "failover" / name, line, tmp_path, (LONG_TIMEOUT_S, LONG_TIMEOUT_S), PATH_WITH_GO)


@pytest.mark.long
@pytest.mark.parametrize(("name", "line"), PROJECTS["programs"], ids=[name for name, _ in PROJECTS["programs"]])
def test_a_program_passes(name: str, line: str, tmp_path: Path) -> None:
    """Each framework's program in examples/programs passes with a broker of its own."""
    run(EXAMPLES / "programs" / name, line, tmp_path, (LONG_TIMEOUT_S, LONG_TIMEOUT_S), PATH_WITH_GO)


@pytest.mark.parametrize(("folder", "projects"), PROJECTS.items(), ids=PROJECTS)
def test_every_project_is_in_the_list(folder: str, projects: list[tuple[str, str]]) -> None:
    """The README beside the projects names each folder with the command that is run here; a README of its own repeats it."""
    assert {path.name for path in (EXAMPLES / folder).iterdir() if path.is_dir()} == {name for name, _ in projects}
    for name, line in projects:
        own = EXAMPLES / folder / name / "README.md"
        assert not own.exists() or f"\n    {line}\n" in own.read_text()


def test_a_program_tells_its_version() -> None:
    """The program's libraries are pinned in its own files, and no file names the host of a registry."""
    files = [path for folder in ("failover", "programs") for path in (EXAMPLES / folder).rglob("*") if path.is_file()]
    assert [path.name for path in files if re.search(r"registry\.|repo1?\.maven|proxy\.golang", path.read_text())] == []
    assert [
        path.name for path in files if path.name == "package.json" and re.search(r'": "[\^~*]', path.read_text())
    ] == []
