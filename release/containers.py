"""Runs what an image says in the image's own root: a layer of its own above it, its user, its variables, its volumes.

The network is that of the caller, who gives all containers one of their own (`unshare --net`), as a pod of Kubernetes has it, and
mounts of their own (`unshare --mount`), which go with the last process.
"""

from __future__ import annotations

import fcntl
import os
import platform
import socket
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from release.images import Image

SET_FLAGS, IS_UP = 0x8914, 1
STARTS_IN_S = 120
HOSTS = "localhost broker spark-master spark-worker"
DEVICES = ("null", "zero", "random", "urandom")


def start_loopback() -> None:
    """Switch on the only interface of a new network."""
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh", b"lo", IS_UP))


class Container:
    """A root made of an image. What its programs print is in `<name>.log` beside it."""

    def __init__(self, image: Image, place: Path, name: str) -> None:
        self.name = name
        self.root = place / name
        self.log = place / f"{name}.log"
        self._image = image
        self.uid, self._gid = map(int, image.user.split(":"))

    @contextmanager
    def mounted(self, volumes: Mapping[str, Path], read_only: Sequence[str] = ()) -> Iterator[None]:
        """Mount it, with directories of this machine at paths of the container."""
        layer = self.root.with_suffix(".layer")
        for directory in (self.root, layer / "upper", layer / "work"):
            directory.mkdir(parents=True)
        with ExitStack() as stack:

            def mount(target: Path, *words: str | Path) -> None:
                subprocess.run(["mount", *words, target], check=True)
                stack.callback(subprocess.run, ["umount", "--lazy", target], check=True)

            layers = f"lowerdir={self._image.root},upperdir={layer / 'upper'},workdir={layer / 'work'}"
            mount(self.root, "-t", "overlay", "-o", layers, "overlay")
            mount(self.root / "proc", "-t", "proc", "proc")
            mount(self.root / "dev", "-t", "tmpfs", "-o", "mode=755", "tmpfs")
            for device in DEVICES:
                (self.root / "dev" / device).touch()
                mount(self.root / "dev" / device, "--bind", Path("/dev", device))
            (self.root / "dev/fd").symlink_to("/proc/self/fd")
            (self.root / "dev/shm").mkdir()
            (self.root / "dev/shm").chmod(0o1777)
            (self.root / "etc/hosts").write_text(f"127.0.0.1 {HOSTS} {platform.node()}\n")
            for path, directory in volumes.items():
                inside = self.root / path.lstrip("/")
                mount(inside, "--bind", *(["--read-only"] if path in read_only else []), directory)
            yield

    def start(
        self, words: Sequence[str], variables: Mapping[str, str] | None = None, **options: object
    ) -> subprocess.Popen[str]:
        """Start a program as the image's user, in its home directory."""
        environment = {**self._image.environment, **(variables or {})}

        def enter() -> None:
            os.chroot(self.root)
            os.chdir(environment["HOME"])
            os.setgroups([])
            os.setgid(self._gid)
            os.setuid(self.uid)

        return subprocess.Popen(
            words, env=environment, preexec_fn=enter, text=True, **{"stdin": subprocess.DEVNULL, **options}
        )  # fmt: skip

    def run(self, *words: str, stdin: str = "", code: int = 0) -> str:
        """Run a program to its end, and return what it prints."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.start(words, **pipes) as process:
            out, error = process.communicate(stdin, timeout=1800)
        if process.returncode != code:
            raise SystemExit(
                f"{self.name}: {words} ended with {process.returncode}, expected {code}\n{out}\n{error}\n{self.told()}"
            )
        return out

    def told(self) -> str:
        """Return what the running program has printed."""
        return self.log.read_text() if self.log.exists() else ""

    @contextmanager
    def running(
        self, words: Sequence[str], health: Sequence[str], variables: Mapping[str, str] | None = None
    ) -> Iterator[None]:
        """Run a program until the block ends, then stop it as a container is stopped. It is healthy when the block begins."""
        with self.log.open("a") as log:
            process = self.start(words, variables, stdout=log, stderr=log)
        try:
            end_s = time.monotonic() + STARTS_IN_S
            while not self.is_healthy(health):
                if process.poll() is not None or time.monotonic() > end_s:
                    raise SystemExit(f"{self.name} is not healthy\n{self.told()}")
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            code = process.wait(STARTS_IN_S)
        # 143: a JVM that was told to stop.
        if code not in (0, 143):
            raise SystemExit(f"{self.name} ended with {code}\n{self.told()}")

    def is_healthy(self, health: Sequence[str]) -> bool:
        """Run its health check."""
        return self.start(health, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).wait(STARTS_IN_S) == 0
