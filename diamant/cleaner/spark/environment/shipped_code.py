"""The package's own code as a .zip that Spark ships to its executors.

A zip, since Python imports from one where it lies, but for the kernels, which are unpacked (`diamant.kernels`); a wheel under
its own name is taken by Spark as well and then silently not imported. The name holds a digest of the code, by which an executor
tells whose code it runs:

    diamant-code-<16 hex>.zip/diamant/...

The same code gives the same bytes: no times, files in order.

It compares the software that the driver and the Python processes of executors must have in common.

Cleaning promises the same bytes wherever it runs, so the packages that make them are compared exactly: codecs of two versions
may compress differently. Kernels are compiled for one kind of processor.
"""

from __future__ import annotations

import hashlib
import platform
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from diamant.cleaner.spark.environment.errors import SparkUnavailable

PREFIX = "diamant-code-"
_NAME = re.compile(rf"{PREFIX}([0-9a-f]{{16}})\.zip")
_PACKAGE = Path(__file__).parents[3]
"""The package `diamant`; in an executor it lies in the zip."""
_EARLIEST = (1980, 1, 1, 0, 0, 0)


def write_code_archive(directory: str | Path) -> Path:
    """Write the zip into `directory` and return its path. About 1 MB, a tenth of a second."""
    path = Path(directory) / f"{PREFIX}{code_digest()}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in _sources():
            archive.writestr(zipfile.ZipInfo(name, _EARLIEST), source.read_bytes(), zipfile.ZIP_DEFLATED)
    return path


@cache
def code_digest() -> str:
    """Return 16 hex digits that tell this code from any other, wherever it was imported from."""
    match = _NAME.search(str(_PACKAGE))
    if match is not None:
        return match[1]
    digest = hashlib.sha256()
    for name, source in _sources():
        content = source.read_bytes()
        digest.update(f"{name}\n{len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def _sources() -> list[tuple[str, Path]]:
    """Return the names in the archive and the files, in order."""
    found = [*_PACKAGE.rglob("*.py"), *_PACKAGE.glob("kernels/*.so")]
    return sorted((f"diamant/{path.relative_to(_PACKAGE).as_posix()}", path) for path in found)


PACKAGES = ("numpy", "pyarrow", "crc32c", "cramjam", "zstandard")


@dataclass(frozen=True, slots=True)
class Versions:
    """The software of one Python process."""

    python: str
    """3.11 on x86_64: Spark itself compares no more than the first."""
    code: str
    """Digest of Diamant's code."""
    packages: tuple[tuple[str, str], ...]
    """Name and version, in the order of `PACKAGES`; `none` for what is not installed."""

    @classmethod
    def here(cls) -> Versions:
        """Return those of this process. Imports none of the packages."""
        return _versions_here()

    def difference(self, other: Versions) -> str:
        """Say what `other` has that this has not, `numpy 1.26.4 instead of 2.4.6`; empty if nothing differs."""
        found = []
        if other.python != self.python:
            found.append(f"Python {other.python} instead of {self.python}")
        if other.code != self.code:
            found.append(f"Diamant's code {other.code} instead of {self.code}")
        for (name, expected), (_, got) in zip(self.packages, other.packages, strict=True):
            if got != expected:
                found.append(f"{name} {got} instead of {expected}")
        return ", ".join(found)


@cache
def _versions_here() -> Versions:
    return Versions(
        f"{sys.version_info.major}.{sys.version_info.minor} on {platform.machine()}",
        code_digest(),
        tuple((name, _installed(name)) for name in PACKAGES),
    )


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


@cache
def check_versions(driver: Versions) -> None:
    """Refuse to work in a process whose software is not the driver's: SparkUnavailable, naming both. The first call is slow."""
    refuse_difference(driver, Versions.here(), platform.node(), sys.executable)


def refuse_difference(driver: Versions, executor: Versions, host: str, python: str) -> None:
    """Raise SparkUnavailable, naming both versions, if the two differ."""
    difference = driver.difference(executor)
    if difference:
        raise SparkUnavailable(
            f"the executor on {host} ({python}) has {difference}: driver and executors need the same. Install there what the "
            "driver has, or name another Python by PYSPARK_PYTHON or --conf spark.pyspark.python=PATH"
        )


def report_versions(_: Iterable[object]) -> Iterator[tuple[Versions, str, str]]:
    """In an executor: what it has, its host and its Python (for `RDD.mapPartitions`)."""
    yield Versions.here(), platform.node(), sys.executable
