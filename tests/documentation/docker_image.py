"""What a Dockerfile says, and its programs started here: a directory stands for the image, this environment for its Python.

`make image-check` builds the images and runs them in their own roots. Here their commands are tried without a container engine:
paths of the image become paths below a directory. Programs run as a user without privileges if this is root's test and that user
can run this Python. That user is `nobody`: this machine does not know the image's own, and Hadoop does not start for an unknown
user.
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import files_in_memory

ROOT = Path(__file__).resolve().parents[2]


class Step(NamedTuple):
    """One instruction and what follows it."""

    instruction: str
    arguments: str

    def words(self) -> list[str]:
        """Return the arguments of the exec form, `["a", "b"]`."""
        words = json.loads(self.arguments)
        assert isinstance(words, list)
        return words


def read_stages(dockerfile: Path) -> list[list[Step]]:
    """Return the instructions of a Dockerfile in order, for each of its stages; what is before the first is left out."""
    lines = [line for line in dockerfile.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    stages: list[list[Step]] = []
    for line in filter(str.strip, joined.splitlines()):
        step = Step(*line.split(maxsplit=1))
        if step.instruction == "FROM":
            stages.append([])
        if stages:
            stages[-1].append(step)
    return stages


def last_stage(dockerfile: Path) -> dict[str, str]:
    """What the image itself declares, by instruction; of several the last."""
    return dict(read_stages(dockerfile)[-1])


def check_sources(dockerfile: Path) -> None:
    """A clone of the repository has all that the build takes from it, and .dockerignore lets it through."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a clone of the repository")
    let_through = (ROOT / ".dockerignore").read_text().splitlines()
    steps = [step for stage in read_stages(dockerfile) for step in stage]
    copies = [shlex.split(step.arguments) for step in steps if step.instruction == "COPY"]
    sources = [source for copy in copies if copy[0] != "--from=packages" for source in copy[:-1]]
    sources += re.findall(r"--mount=type=bind,source=(\S+),target", " ".join(step.arguments for step in steps))
    assert "diamant" in sources
    assert "requirements.txt" in sources
    for source in sources:
        assert f"!{source}" in let_through, f"{source} is ignored by .dockerignore"
        listed = subprocess.run([git, "ls-files", source], cwd=ROOT, capture_output=True, text=True, check=True)
        assert listed.stdout, source


class Image:
    """See the module."""

    def __init__(self, root: Path, dockerfile: Path) -> None:
        self.root = root
        self.metadata = last_stage(dockerfile)
        self.places: dict[str, Path] = {}
        """Directories of the image that belong to its user, by their paths there."""
        made = re.search(r"install -d -o (\w+) -g \1 (.*)", self.metadata["RUN"])
        assert made is not None
        assert f"--uid {self.metadata['USER'].partition(':')[0]} " in self.metadata["RUN"]
        self.uid = pwd.getpwnam("nobody").pw_uid
        """The user of this machine that stands for the image's."""
        for directory in made[2].split():
            self._make_place(directory)
        self._home = self.metadata["WORKDIR"]
        assert self.metadata["ENV"] == f"HOME={self._home}"

    def in_place(self, text: str) -> str:
        """Return a text of the image, such as a word of a command, with paths of the image replaced by ours."""
        for path, ours in self.places.items():
            text = re.sub(rf"(?<![\w.-]){re.escape(path)}(?![\w.-])", str(ours), text)
        return text

    def _make_place(self, directory: str) -> None:
        place = self.places[directory] = self.root / directory.lstrip("/")
        place.mkdir(parents=True)
        if self.can_change_user:
            os.chown(place, self.uid, self.uid)

    @cached_property
    def can_change_user(self) -> bool:
        """Only root can be another user, and a Python in a home directory is for its owner only."""
        if os.geteuid() != 0:
            return False
        try:
            trying = [sys.executable, "-c", "import kio, diamant"]
            return (
                subprocess.run(trying, user=self.uid, group=self.uid, stderr=subprocess.DEVNULL, check=False).returncode
                == 0
            )
        except PermissionError:
            return False

    def start(
        self, words: list[str], variables: Mapping[str, str] | None = None, **options: object
    ) -> subprocess.Popen[str]:
        """Start a program as the image's user, in its home, with nothing in the environment but `variables`."""
        if self.can_change_user:
            options.update(user=self.uid, group=self.uid, extra_groups=[])
        programs, home = Path(sys.executable).parent, self.places[self._home]
        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
            [programs / words[0], *words[1:]],
            cwd=home,
            env={"PATH": f"{programs}:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": str(home), **(variables or {})},
            text=True,
            **{"stdin": subprocess.DEVNULL, **options},
        )


@contextmanager
def image_of(dockerfile: Path) -> Iterator[Image]:
    """An image in a place that is open to other users, as pytest's own directories are not."""
    root = Path(tempfile.mkdtemp(prefix="diamant-image-", dir=files_in_memory.DISK))
    root.chmod(0o755)
    try:
        yield Image(root, dockerfile)
    finally:
        shutil.rmtree(root)
