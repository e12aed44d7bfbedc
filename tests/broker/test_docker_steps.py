"""The steps of docker/Dockerfile without a container engine: in a fresh virtual environment, as the image's own user.

The steps are read from the file, so a step that this test does not know fails it. What differs from an image: the system
below is this one, paths of the image become paths below a temporary directory, the port is a free one on 127.0.0.1, and
pip may use its cache. The broker runs as the image's user if this is root's test and that user can run this Python; in any
case it finds no place to write beside its code. Without a package index the test is skipped.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "docker" / "Dockerfile"
IMAGE_PORT = "9092"
DATA = "/data"
HOME = "/home/diamant"
TIMEOUT_S = 60
PIP_TIMEOUT_S = 600
COMPILE_TIMEOUT_S = 120
NO_INDEX = re.compile(
    r"Could not find a version|NewConnectionError|Max retries exceeded|name resolution|Network is unreachable|Timeout|ProxyError"
)


class Step(NamedTuple):
    """One instruction and what follows it."""

    instruction: str
    arguments: str

    def words(self) -> list[str]:
        """The arguments of the exec form, `["a", "b"]`."""
        words = json.loads(self.arguments)
        assert isinstance(words, list)
        return words


def read_steps(text: str) -> list[Step]:
    """The instructions of a Dockerfile, in order."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [Step(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


class Image:
    """What the steps make of a temporary directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.venv = root / "venv"
        self.data = root / "data"
        self.home = root / HOME.lstrip("/")
        self.workdir = root
        self.user: str | None = None
        self.uid: int | None = None
        self.metadata: dict[str, str] = {}

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
        return {**passed, "PATH": f"{self.venv / 'bin'}:/usr/bin:/bin", "HOME": str(self.home), "LANG": "C.UTF-8"}

    def apply(self, step: Step) -> None:
        """Do one step."""
        instruction, arguments = step
        if instruction == "FROM":
            image = re.fullmatch(r"python:(\d+)\.(\d+)-slim", arguments)
            assert image, f"{arguments}: expected python:X.Y-slim"
            if (int(image[1]), int(image[2])) != sys.version_info[:2]:
                pytest.skip(f"the image has Python {image[1]}.{image[2]}, this is {sys.version.split()[0]}")
            venv.create(self.venv, with_pip=True, symlinks=True)
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
            assert arguments == f"HOME={HOME}"
        else:
            assert instruction in ("USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"), step
            assert instruction not in self.metadata, step
            self.metadata[instruction] = arguments

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
        if words[0] == "pip":
            words = [str(self.venv / "bin" / "pip"), "--disable-pip-version-check"] + [
                word for word in words[1:] if word != "--no-cache-dir"
            ]
            run = subprocess.run(
                words,
                cwd=self.workdir,
                env={**self.environment, "HOME": os.environ.get("HOME", "/")},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=PIP_TIMEOUT_S,
            )
            if run.returncode and NO_INDEX.search(run.stdout):
                pytest.skip(f"pip cannot reach a package index: {run.stdout.strip().splitlines()[-1]}")
            assert run.returncode == 0, run.stdout
        elif words[0] == "useradd":
            self.user = words[-1]
            self.uid = int(words[words.index("--uid") + 1])
            assert words[words.index("--home-dir") + 1] == HOME
        else:
            assert words == ["install", "-d", "-o", self.user, "-g", self.user, DATA, HOME], words
            for directory in (self.data, self.home):
                directory.mkdir(parents=True)
                if self.can_change_user:
                    os.chown(directory, self.uid or -1, self.uid or -1)

    def close_packages(self) -> None:
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
            return subprocess.run([self.python, "-c", ""], user=self.uid, group=self.uid, check=False).returncode == 0
        except PermissionError:
            return False

    def start(self, words: list[str], **options: object) -> subprocess.Popen[str]:
        """Start a program as the image's user, in the image's place."""
        if self.can_change_user:
            options.update(user=self.uid, group=self.uid, extra_groups=[])
        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
            [str(self.venv / "bin" / words[0]), *words[1:]],
            cwd=self.data,
            env=self.environment,
            text=True,
            stdin=subprocess.DEVNULL,
            **options,
        )


@pytest.fixture
def image() -> Iterator[Image]:
    """An empty image; its place is open to other users, as pytest's own directories are not."""
    root = Path(tempfile.mkdtemp(prefix="diamant-image-"))
    root.chmod(0o755)
    try:
        yield Image(root)
    finally:
        shutil.rmtree(root)


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_what_the_image_declares() -> None:
    """User, volume, port, stop signal and health check are there, and are those that the broker is started with."""
    steps = dict(read_steps(DOCKERFILE.read_text()))
    assert steps["USER"] == "diamant"
    assert (steps["VOLUME"], steps["EXPOSE"], steps["STOPSIGNAL"]) == (DATA, IMAGE_PORT, "SIGTERM")
    entry = Step("ENTRYPOINT", steps["ENTRYPOINT"]).words()
    assert entry == ["diamant", "start", "--data", DATA, "--listen", f"0.0.0.0:{IMAGE_PORT}"]
    assert IMAGE_PORT in steps["HEALTHCHECK"]
    assert IMAGE_PORT in steps["CMD"]


def test_every_file_that_is_copied_is_committed() -> None:
    """A clone of the repository has all that the build copies."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a clone of the repository")
    for instruction, arguments in read_steps(DOCKERFILE.read_text()):
        if instruction == "COPY":
            for source in shlex.split(arguments)[:-1]:
                listed = subprocess.run([git, "ls-files", source], cwd=ROOT, capture_output=True, text=True, check=True)
                assert listed.stdout, source


@pytest.mark.slow
def test_the_image_works(image: Image) -> None:
    """Built step by step, the broker starts with the image's command as the image's user, is healthy while it runs and not
    before or after, takes and gives a record at its advertised address, and stops cleanly. It starts again on its data, also
    after the compiled code was cached.
    """
    for step in read_steps(DOCKERFILE.read_text()):
        image.apply(step)
    image.close_packages()
    port = str(free_port())

    def in_place(words: list[str]) -> list[str]:
        """Words of the image with its paths and ports replaced by ours."""
        replaced = [word.replace(IMAGE_PORT, port).replace("0.0.0.0", "127.0.0.1") for word in words]
        return [str(image.data) if word == DATA else word for word in replaced]

    def is_healthy() -> bool:
        words = in_place(Step("CMD", image.metadata["HEALTHCHECK"].partition(" CMD ")[2]).words())
        return image.start(words, stderr=subprocess.DEVNULL).wait(TIMEOUT_S) == 0

    assert not is_healthy()
    command = in_place(Step("", image.metadata["ENTRYPOINT"]).words() + Step("", image.metadata["CMD"]).words())
    # A container has the port for HTTP to itself; this machine may have another broker.
    command += ["--set", "diamant.http.listen=127.0.0.1:0"]
    for run in ("first", "second"):
        log = image.root / f"{run}.log"
        with log.open("w") as errors, image.start(command, stdout=subprocess.PIPE, stderr=errors) as broker:
            assert broker.stdout is not None
            assert broker.stdout.readline().startswith("Diamant listens on "), log.read_text()
            assert is_healthy()
            check_a_record(f"localhost:{port}", run)
            broker.send_signal(getattr(signal, image.metadata["STOPSIGNAL"]))
            assert broker.wait(TIMEOUT_S) == 0, log.read_text()
        assert not is_healthy()
        assert (image.data / ".kafka_cleanshutdown").exists()
        assert not re.search("ERROR|WARNING|Traceback", log.read_text()), log.read_text()
        compiling = "from diamant.cleaner import kernels; kernels.warm_up()"
        assert image.start(["python", "-c", compiling]).wait(COMPILE_TIMEOUT_S) == 0
    if image.can_change_user:
        assert (image.data / "first-0").stat().st_uid == image.uid


def check_a_record(servers: str, topic: str) -> None:
    """Send a hundred thousand small records, which brings the compiled code into use, and read the last one back."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    count = 100_000  # more than the plain code checks
    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 0, "linger.ms": 5})
    for number in range(count):
        producer.produce(topic, str(number))
    assert producer.flush(TIMEOUT_S) == 0
    (broker,) = producer.list_topics(timeout=TIMEOUT_S).brokers.values()
    assert f"{broker.host}:{broker.port}" == servers
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, count - 1)])
    message = consumer.poll(TIMEOUT_S)
    assert message is not None
    assert (message.error(), message.value()) == (None, str(count - 1).encode())
    consumer.close()
