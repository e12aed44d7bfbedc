"""What the steps of a Dockerfile make of a temporary directory and a fresh virtual environment, without a container engine.

What differs from an image: the system below is this one, so what apt-get would install is only taken down; paths of the image
become paths below the directory; pip is this environment's, may use its cache, and has the tools for the build at hand. It finds
links to the packages that this environment has in the versions asked for, so that these need not be unpacked, up to a gigabyte of
them, and installs the rest. The kernels are not compiled (that is what test_wheel.py does) but those of this checkout. Programs
run as a user without privileges if this is root's test and that user can run this Python; in any case they find no place to write
beside the code. That user is `nobody`: this machine does not know the image's own, and Hadoop does not start for an unknown user.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.building import check_pip

ROOT = Path(__file__).resolve().parents[2]
PIP_TIMEOUT_S = 600
METADATA = ("USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD")


class Step(NamedTuple):
    """One instruction and what follows it."""

    instruction: str
    arguments: str

    def words(self) -> list[str]:
        """The arguments of the exec form, `["a", "b"]`."""
        words = json.loads(self.arguments)
        assert isinstance(words, list)
        return words


def read_steps(dockerfile: Path) -> list[Step]:
    """The instructions of a Dockerfile, in order."""
    lines = [line for line in dockerfile.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [Step(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def check_copied_files_are_committed(dockerfile: Path) -> None:
    """A clone of the repository has all that the build copies."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a clone of the repository")
    for instruction, arguments in read_steps(dockerfile):
        if instruction == "COPY":
            for source in shlex.split(arguments)[:-1]:
                listed = subprocess.run([git, "ls-files", source], cwd=ROOT, capture_output=True, text=True, check=True)
                assert listed.stdout, source


class Image:
    """See the module. A step that this does not know fails."""

    def __init__(self, root: Path, tools: Path) -> None:
        self.root = root
        self._tools = tools
        self.venv = root / "venv"
        self.places: dict[str, Path] = {}
        """Directories of the image that belong to its user, by their paths there."""
        self.debian_packages: list[str] = []
        """What apt-get would install."""
        self.workdir = root
        self.user: str | None = None
        self.uid: int | None = None
        """The user of this machine that stands for the image's."""
        self.metadata: dict[str, str] = {}
        self._home = "/root"
        self._variables: dict[str, str] = {}

    @property
    def python(self) -> str:
        """The interpreter of the image."""
        return str(self.venv / "bin" / "python")

    @property
    def environment(self) -> dict[str, str]:
        """As poor as an image's: nothing of the environment of this test but how to reach the package index."""
        passed = {
            name: value
            for name, value in os.environ.items()
            if name.lower().endswith("_proxy") or name.startswith("PIP_")
        }
        return {**passed, "PATH": f"{self.venv / 'bin'}:/usr/bin:/bin", "LANG": "C.UTF-8", **self._variables}

    def build(self, dockerfile: Path) -> None:
        """Do all steps."""
        for step in read_steps(dockerfile):
            self._apply(step)
        assert self._variables["HOME"] == str(self.places[self._home])
        self._close_packages()

    def _apply(self, step: Step) -> None:
        instruction, arguments = step
        if instruction == "FROM":
            image = re.fullmatch(r"python:(\d+)\.(\d+)-slim(-bookworm)?", arguments)
            assert image, f"{arguments}: expected python:X.Y-slim"
            if (int(image[1]), int(image[2])) != sys.version_info[:2]:
                pytest.skip(f"the image has Python {image[1]}.{image[2]}, this is {sys.version.split()[0]}")
            venv.create(self.venv, symlinks=True)
        elif instruction == "WORKDIR":
            self.workdir = self.root / arguments.lstrip("/")
            self.workdir.mkdir(parents=True)
        elif instruction == "COPY":
            *sources, target = shlex.split(arguments)
            for source in sources:
                self._copy(source, target)
        elif instruction == "RUN":
            for command in arguments.split("&&"):
                self._run(shlex.split(command))
        elif instruction == "ENV":
            name, _, value = arguments.partition("=")
            self._variables[name] = self.in_place(value)
        else:
            assert instruction in METADATA, step
            assert instruction not in self.metadata, step
            self.metadata[instruction] = arguments

    def in_place(self, text: str) -> str:
        """A text of the image, such as a word of a command, with paths of the image replaced by ours."""
        for path, ours in self.places.items():
            text = re.sub(rf"(?<![\w.-]){re.escape(path)}(?![\w.-])", str(ours), text)
        return text

    def _copy(self, source: str, target: str) -> None:
        """A file or folder of the repository, if .dockerignore lets it through."""
        assert f"!{source}" in (ROOT / ".dockerignore").read_text().splitlines(), (
            f"{source} is ignored by .dockerignore"
        )
        to = self.workdir / target
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, to, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, to / source if to.is_dir() else to)

    def _run(self, words: list[str]) -> None:
        match words:
            case ["pip", "install", "--no-cache-dir", *rest]:
                self._pip_install(rest)
            case ["useradd", *_]:
                self.user = words[-1]
                self.uid = pwd.getpwnam("nobody").pw_uid
                self._home = words[words.index("--home-dir") + 1]
            case ["install", "-d", "-o", user, "-g", group, *directories]:
                assert user == group == self.user
                for directory in directories:
                    self._make_place(directory)
            case ["apt-get", "install", "-y", "--no-install-recommends", *packages]:
                self.debian_packages += packages
            case ["apt-get", "update"] | ["rm", "-rf", "/var/lib/apt/lists/*"]:
                pass
            case _:
                raise AssertionError(f"a step that is not known: {shlex.join(words)}")

    def _pip_install(self, what: list[str]) -> None:
        for option, name in pairwise(what):
            if option == "-r":
                self._link_packages(self.workdir / name)
        run = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check"),
                *("install", "--no-build-isolation", *what),
            ],
            cwd=self.workdir,
            env={
                **self.environment,
                "HOME": os.environ.get("HOME", "/"),
                "DIAMANT_KERNELS": "none",
                "PYTHONPATH": str(self._tools),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=PIP_TIMEOUT_S,
        )
        check_pip(run)
        for kernels in self.venv.glob("lib/python*/site-packages/diamant/kernels"):
            for compiled in (ROOT / "diamant" / "kernels").glob("*.so"):
                shutil.copy(compiled, kernels)

    def _link_packages(self, requirements: Path) -> None:
        """Link packages of this environment that have the versions asked for, with their programs, for pip to find."""
        (packages,) = self.venv.glob("lib/python*/site-packages")
        for line in requirements.read_text().splitlines():
            name, _, wanted = line.partition("==")
            try:
                installed = distribution(name)
            except (PackageNotFoundError, ValueError):
                continue
            if installed.version != wanted:
                continue
            for file in installed.files or ():
                # Beside ../../../bin/program everything lies in site-packages, where a link to the topmost name will do.
                is_beside = file.parts[0] == ".."
                link = self.venv.joinpath(*file.parts[3:]) if is_beside else packages / file.parts[0]
                if "__pycache__" in link.parts or link.is_symlink():
                    continue
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(Path(str(installed.locate_file(file if is_beside else file.parts[0]))).resolve())

    def _make_place(self, directory: str) -> None:
        place = self.places[directory] = self.root / directory.lstrip("/")
        place.mkdir(parents=True)
        if self.can_change_user:
            os.chown(place, self.uid or -1, self.uid or -1)

    def _close_packages(self) -> None:
        """Nobody but root can write beside the installed code. Root itself is kept from caching by a file in the way."""
        (cleaner,) = self.venv.glob("lib/python*/site-packages/diamant/cleaner")
        shutil.rmtree(cleaner / "__pycache__", ignore_errors=True)
        (cleaner / "__pycache__").touch()

    @cached_property
    def can_change_user(self) -> bool:
        """Only root can be someone else, and a Python in somebody's home is for that one only."""
        if os.geteuid() != 0 or self.uid is None:
            return False
        try:
            trying = [self.python, "-c", "import kio"]
            return subprocess.run(trying, user=self.uid, group=self.uid, check=False).returncode == 0
        except PermissionError:
            return False

    def start(
        self, words: list[str], variables: Mapping[str, str] | None = None, **options: object
    ) -> subprocess.Popen[str]:
        """Start a program as the image's user, in a place of the image's, with `variables` on top of the image's."""
        if self.can_change_user:
            options.update(user=self.uid, group=self.uid, extra_groups=[])
        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
            [str(self.venv / "bin" / words[0]), *words[1:]],
            cwd=self.places[self._home],
            env={**self.environment, **(variables or {})},
            text=True,
            stdin=subprocess.DEVNULL,
            **options,
        )


@contextmanager
def empty_image(build_tools: Path) -> Iterator[Image]:
    """An empty image; its place is open to other users, as pytest's own directories are not. `build_tools` stand in for those
    that pip installs for the time of a build.
    """
    root = Path(tempfile.mkdtemp(prefix="diamant-image-"))
    root.chmod(0o755)
    try:
        yield Image(root, build_tools)
    finally:
        shutil.rmtree(root)
