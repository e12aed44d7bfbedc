"""Packs Diamant's code into a .zip that Spark ships to its executors, and checks the software of the executors.

Python imports modules directly from the zip, except the kernels, which are unpacked (`diamant.kernels`). Spark would accept a
wheel, too, but silently fail to import it. The broker is left out, because no task imports it. The zip's name contains a digest
of the code, by which an executor identifies it:

    diamant-code-<16 hex>.zip/diamant/...

Python does not cache the byte code of modules that it imports from a zip, so every worker would compile them again. Therefore
the zip also contains the driver's byte code, if Python has cached it. An executor with another version of Python uses the
sources. The same code always gives the same zip, except for byte code, because the files in it have no times and are sorted.

Cleaning must give the same bytes wherever it runs. So the packages that influence them must have the same versions in driver and
executors; two versions of a codec may compress differently. The CPU architecture must be the same, too, because of the kernels.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from pathlib import Path

from diamant.cleaner.spark.environment.spark_errors import SparkUnavailable

PREFIX = "diamant-code-"
_NAME = re.compile(rf"{PREFIX}([0-9a-f]{{16}})\.zip")
_PACKAGE = Path(__file__).parents[3]
"""The package `diamant`; in an executor it is in the zip."""
_SHIPPED = ("cleaner", "storage", "protocol", "kernels")
_EARLIEST = (1980, 1, 1, 0, 0, 0)
_PYC_HEADER_BYTES = 16
_UNCHECKED = 1
"""Flags of a .pyc file that contains a hash of its source, which Python does not check."""


def write_code_archive(directory: str | Path) -> Path:
    """Write the zip into `directory` and return its path. The zip has about 2 MB; writing it takes 0.1 s."""
    path = Path(directory) / f"{PREFIX}{code_digest()}.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, source in _sources():
            content = source.read_bytes()
            archive.writestr(zipfile.ZipInfo(name, _EARLIEST), content, zipfile.ZIP_DEFLATED, 1)
            compiled = byte_code(source, content) if source.suffix == ".py" else None
            if compiled is not None:
                archive.writestr(zipfile.ZipInfo(f"{name}c", _EARLIEST), compiled, zipfile.ZIP_DEFLATED, 1)
    return path


def byte_code(path: Path, source: bytes) -> bytes | None:
    """Return Python's cached byte code of a source file, marked as unchecked (PEP 552); None if missing or outdated."""
    try:
        with open(cache_from_source(str(path)), "rb") as file:
            cached = file.read()
            magic, flags, stamp = cached[:4], int.from_bytes(cached[4:8], "little"), cached[8:_PYC_HEADER_BYTES]
            digest = source_hash(source)
            modified = (int(os.stat(path).st_mtime) & 0xFFFFFFFF).to_bytes(4, "little") + len(source).to_bytes(
                4, "little"
            )
    except (OSError, NotImplementedError):
        return None
    if magic != MAGIC_NUMBER or stamp != (digest if flags else modified):
        return None
    return MAGIC_NUMBER + _UNCHECKED.to_bytes(4, "little") + digest + cached[_PYC_HEADER_BYTES:]


@cache
def code_digest() -> str:
    """Return 16 hex digits that identify this code, whether imported from files or from a zip."""
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
    """Return the files to ship, each with its name in the zip, sorted by name."""
    paths = [*_PACKAGE.glob("*.py"), *_PACKAGE.glob("kernels/*.so")]
    for package in _SHIPPED:
        paths += (_PACKAGE / package).rglob("*.py")
    return sorted((f"diamant/{path.relative_to(_PACKAGE).as_posix()}", path) for path in paths)


PACKAGES = ("numpy", "pyarrow", "crc32c", "cramjam", "xxhash", "backports.zstd")


@dataclass(frozen=True, slots=True)
class Versions:
    """The software of one Python process."""

    python: str
    """Version and architecture, such as `3.11 on x86_64`. Spark itself compares only the version."""
    code: str
    """Digest of Diamant's code."""
    packages: tuple[tuple[str, str], ...]
    """Name and version, in the order of `PACKAGES`; `none` if not installed."""

    @classmethod
    def here(cls) -> Versions:
        """Return the versions of this process, without importing the packages."""
        return _versions_here()

    def difference(self, other: Versions) -> str:
        """Describe how `other` differs, for example `numpy 1.26.4 instead of 2.4.6`; empty if it is equal."""
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
    """Raise SparkUnavailable, naming both versions, if this process's software differs from `driver`. The first call is slow."""
    refuse_difference(driver, Versions.here(), platform.node(), sys.executable)


def refuse_difference(driver: Versions, executor: Versions, host: str, python: str) -> None:
    """Raise SparkUnavailable, naming both versions, if the two differ."""
    difference = driver.difference(executor)
    if difference:
        raise SparkUnavailable(
            f"the executor on {host} ({python}) has {difference}: driver and executors need the same versions. Install the "
            "driver's there, or select another Python with PYSPARK_PYTHON or --conf spark.pyspark.python=PATH"
        )


def report_versions(_: Iterable[object]) -> Iterator[tuple[Versions, str, str]]:
    """Yield this executor's versions, host and Python, for `RDD.mapPartitions`."""
    yield Versions.here(), platform.node(), sys.executable
