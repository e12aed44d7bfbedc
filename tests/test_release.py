"""The output of `make dist`: the same bytes twice, and tags that the modules keep. And that of `make single`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import pytest

from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record
from tests.building import pip

ROOT = Path(__file__).resolve().parent.parent
MACHINES = ("manylinux_2_17_aarch64", "manylinux_2_17_x86_64", "musllinux_1_2_aarch64", "musllinux_1_2_x86_64")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="needs git, and a clone"),
]


class Release(NamedTuple):
    """A clone, and the tools of requirements-dist.txt."""

    clone: Path
    tools: Path

    def run(self, module: str, place: Path, *, umask: int = -1) -> subprocess.CompletedProcess[str]:
        """Run `python -m release.<module>`."""
        return subprocess.run(
            [sys.executable, "-m", f"release.{module}", place], cwd=self.clone, capture_output=True, text=True, check=False,
            env=os.environ | {"PYTHONPATH": str(self.tools)}, umask=umask, timeout=6000,
        )  # fmt: skip

    def build(self, place: Path, umask: int) -> dict[str, str]:
        """Build into a directory, and return the digests of the files."""
        done = self.run("build", place, umask=umask)
        assert done.returncode == 0, done.stdout + done.stderr
        return {path.name: sha256(path.read_bytes()).hexdigest() for path in place.iterdir()}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The committed state."""
    place = tmp_path_factory.mktemp("release")
    pip("install", "--no-compile", "--target", place / "tools", "-r", ROOT / "requirements-dist.txt")
    subprocess.run(["git", "clone", "-q", ROOT, place / "clone"], check=True, timeout=60)
    return Release(place / "clone", place / "tools")


@pytest.fixture(scope="module")
def dist(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All files of a release."""
    place = tmp_path_factory.mktemp("dist")
    release.build(place, 0o022)
    return place


def test_the_same_commit_gives_the_same_bytes(release: Release, dist: Path, tmp_path: Path) -> None:
    """The bytes are the same in another directory, and for a user who lets nobody read his files."""
    subprocess.run(["git", "clone", "-q", ROOT, tmp_path / "elsewhere" / "clone"], check=True, timeout=60)
    again = release._replace(clone=tmp_path / "elsewhere" / "clone").build(tmp_path / "dist", 0o077)
    assert again == {path.name: sha256(path.read_bytes()).hexdigest() for path in dist.iterdir()}


def test_there_is_a_wheel_for_each_machine_and_the_sources(release: Release, dist: Path) -> None:
    """Each distribution names the commit."""
    commit = subprocess.run(
        ["git", "-C", release.clone, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=10
    )
    wheels = sorted(dist.glob("*.whl"))
    assert [wheel.stem.partition("-cp311-abi3-")[2] for wheel in wheels] == [*MACHINES]
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            assert archive.read("diamant/commit.txt").decode() == commit.stdout
            (metadata,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
            # It has no wheels for musl.
            assert ("google-re2" in archive.read(metadata).decode()) is ("manylinux" in wheel.name)
    (archive_file,) = dist.glob("*.tar.gz")
    with tarfile.open(archive_file) as sources:
        names = {name.partition("/")[2] for name in sources.getnames()}
    assert {"setup.py", "diamant/kernels/stable_abi.h", "diamant/commit.txt"} <= names


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("manylinux_2_5_x86_64", "needs symbols of"),
        ("manylinux_2_17_aarch64", "is for EM_X86_64"),
        ("musllinux_1_2_x86_64", "needs the libraries"),
        ("cp310-cp310-manylinux_2_17_x86_64", "tagged cp310-cp310, expected cp311-abi3"),
    ],
)
def test_a_wheel_that_does_not_keep_its_tags_is_refused(
    release: Release, dist: Path, tmp_path: Path, name: str, fault: str
) -> None:
    """The right wheel under a wrong name is refused."""
    (wheel,) = dist.glob("*manylinux*x86_64.whl")
    tags = name if name.startswith("cp") else f"cp311-abi3-{name}"
    shutil.copy(wheel, tmp_path / f"{wheel.name.partition('-cp311')[0]}-{tags}.whl")
    done = release.run("check", tmp_path)
    assert done.returncode == 1
    assert fault in done.stderr


def test_kernels_and_engines_pass_their_tests_where_the_wheels_are_installed(release: Release, dist: Path) -> None:
    """They pass on this machine and, where qemu-user is at hand, on an old one and on arm64. Cells that were not tried are
    printed.
    """
    done = release.run("check", dist)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_single_file_needs_no_python(release: Release, tmp_path: Path) -> None:
    """It has kernels, and is the Python of its own workers: a round runs in one."""
    subprocess.run(["make", "single", f"PYTHON={sys.executable}"], cwd=release.clone, check=True, timeout=900)
    bare = {"PATH": str(tmp_path), "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    command = [release.clone / "dist" / "diamant"]
    told = subprocess.run([*command, "--version", "--json"], env=bare, check=True, capture_output=True, timeout=60)
    assert json.loads(told.stdout)["kernels"] is True
    log = tmp_path / "users-0"
    log.mkdir()
    batch = build_batch([Record(0, 1, b"k", b"v")])
    for offset in range(3):
        (log / f"{offset:020}.log").write_bytes(offset.to_bytes(8) + bytes(batch)[8:])
    cleaned = subprocess.run(
        [*command, "log", "clean", log, "--force", "--engine", "process"],
        env=bare, check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (cleaned.returncode, "superseded" in cleaned.stdout) == (0, True), cleaned.stdout + cleaned.stderr
