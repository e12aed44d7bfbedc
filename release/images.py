"""Builds the images of docker/ with buildah, which needs no daemon, on a base made of Debian's packages.

    python -m release.images build/images [arm64]

For another machine than this, named as images have it: the broker's image, whose last stage is emulated (qemu-user-static).

The base stands in for python:slim where no registry is at hand: Debian 12 with CPython and pip, without a compiler, and without
byte code of the standard library, as there. Needs root, buildah and mmdebstrap. Layers stay in the directory for the next time.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from diamant.version import __version__
from release.build import ROOT, git

BASE = "localhost/python:3.11-slim-bookworm"
MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
"""This one, as images name it."""
IMAGES = {"diamant": "docker/Dockerfile", "diamant-spark": "docker/spark.Dockerfile"}
"""Each image and its Dockerfile."""
AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"
NEEDED = ("buildah", "mmdebstrap", "unshare")
PACKAGES = ("python3", "python3-pip", "ca-certificates", "netbase", "tzdata")
WITHOUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")


class Image(NamedTuple):
    """A built image, unpacked."""

    root: Path
    size_bytes: int
    user: str
    environment: dict[str, str]
    command: list[str]
    """The entry point with its arguments."""
    health: list[str]
    """The command of the health check; empty: there is none."""


class Store:
    """Images and containers of buildah, in a directory of their own."""

    def __init__(self, place: Path) -> None:
        self._options = ("--root", place / "store", "--runroot", place / "run", "--storage-driver", "overlay")

    def run(self, *words: str | Path, stdout: int | None = subprocess.PIPE) -> str:
        """Run buildah, and return what it prints. Its standard output goes to `stdout`."""
        command = ["buildah", *self._options, *words]
        done = subprocess.run(command, cwd=ROOT, stdout=stdout, text=True, check=True, timeout=3600)
        return (done.stdout or "").strip()

    def make_base(self, machine: str) -> str:
        """Make the base for a machine, unless it is there; return its name.

        Debian's Python is found where python:slim has its own.
        """
        name = named(BASE, machine)
        if self.run("images", "--quiet", "--filter", f"reference={name}"):
            return name
        container = self.run("from", "--arch", machine, "scratch")
        root = Path(self.run("mount", container))
        left_out = [f"--dpkgopt=path-exclude={path}" for path in WITHOUT]
        command = ["mmdebstrap", f"--architectures={machine}", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
        subprocess.run([*command, *left_out, "bookworm", root], check=True, timeout=3600)
        for link, program in (("python", "python3.11"), ("python3", "python3.11"), ("pip", "pip3")):
            (root / "usr/local/bin" / link).symlink_to(f"/usr/bin/{program}")
        (root / "usr/lib/python3.11/EXTERNALLY-MANAGED").unlink()
        for cache in [*root.glob("usr/lib/python3*/**/__pycache__")]:
            shutil.rmtree(cache)
        path = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
        settings = ("--arch", machine, "--env", f"PATH={path}", "--env", "LANG=C.UTF-8", "--cmd", "python3")
        self.run("config", *settings, container)
        self.run("commit", "--quiet", "--rm", container, name)
        return name

    def make_bases(self, machine: str) -> str:
        """Make what the stages of a Dockerfile have as their base, on this machine for another; return its name."""
        own, other = self.make_base(MACHINE), self.make_base(machine)
        if own == other:
            return own
        both = f"localhost/python:{MACHINE}-{machine}"
        if not self.run("images", "--quiet", "--filter", f"reference={both}"):
            self.run("manifest", "create", both)
            for base in (own, other):
                self.run("manifest", "add", both, f"containers-storage:{base}")
        return both

    def build(self, name: str, dockerfile: str, base: str, machine: str) -> None:
        """Build an image. Format docker has health checks; the machine's authorities are those that pip trusts.

        Debian 12's buildah has no platforms of its own to put into FROM.
        """
        arguments = {
            "PYTHON": base,
            "VERSION": __version__,
            "COMMIT": git("rev-parse", "HEAD"),
            "BUILDPLATFORM": f"linux/{MACHINE}",
            "TARGETPLATFORM": f"linux/{machine}",
        }
        options = [f"--build-arg={key}={value}" for key, value in arguments.items()]
        self.run(
            "build", "--isolation", "chroot", "--network", "host", "--format", "docker", "--layers", "--pull-never",
            "--platform", f"linux/{machine}", "--volume", f"{AUTHORITIES}:{AUTHORITIES}:ro", *options,
            "-f", dockerfile, "-t", named(f"localhost/{name}", machine), ".",
            stdout=None,
        )  # fmt: skip

    def unpack(self, name: str) -> Image:
        """Make a container of an image, and return it with what the image says."""
        root = Path(self.run("mount", self.run("from", "--pull-never", name)))
        config = json.loads(self.run("inspect", "--type", "image", name))["Docker"]["config"]
        return Image(
            root,
            size_of(root),
            config.get("User", ""),
            dict(line.split("=", 1) for line in config.get("Env") or ()),
            [*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())],
            (config.get("Healthcheck") or {}).get("Test", [])[1:],
        )


def named(image: str, machine: str) -> str:
    """Return the name of an image for a machine; the usual one for this."""
    return image if machine == MACHINE else f"{image}-{machine}"


def images_for(machine: str) -> dict[str, str]:
    """Return the images to build for a machine. To emulate the installation of Java takes an hour."""
    return {name: dockerfile for name, dockerfile in IMAGES.items() if machine == MACHINE or name == "diamant"}


def size_of(root: Path) -> int:
    """Return the bytes of all files, as the size of an image counts them."""
    files = {}
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            found = path.lstat()
            files[found.st_ino] = found.st_size
    return sum(files.values())


def missing() -> list[str]:
    """Return the programs that are needed and not there."""
    return [program for program in NEEDED if shutil.which(program) is None]


def build_all(place: Path, machine: str = MACHINE) -> None:
    """Build the base and the images."""
    if needed := missing():
        raise SystemExit(
            f"the images need {' and '.join(needed)}. On Debian, as root: apt-get install buildah mmdebstrap"
        )
    place.mkdir(parents=True, exist_ok=True)
    store = Store(place)
    base = store.make_bases(machine)
    for name, dockerfile in images_for(machine).items():
        store.build(name, dockerfile, base, machine)


if __name__ == "__main__":
    build_all(Path(sys.argv[1]).absolute(), *sys.argv[2:])
