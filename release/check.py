"""Checks what `release.build` wrote: tags against symbols, and the tests of kernels and engines where the wheel is installed.

    python -m release.check dist

pip installs each wheel into a bare directory, and the tests run with a PATH on which there is no program. The wheel for this
machine also runs on an emulated processor of 2008, without AVX, and the one for arm64 on an emulated machine with Debian's
Python, where qemu-user (and mmdebstrap) are at hand. What could not be tried is printed at the end.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from release.symbols import MUSL, faults_of

ROOT = Path(__file__).resolve().parent.parent
TESTS = ("tests/kernels", "tests/cleaner/engines")
LEFT_OUT = "not Spark and not worker_process and not names_its_engine and not without_kernels and not stable_abi"
"""They need Spark, start programs, or are about the sources."""
TOOLS = ("hypothesis", "lz4", "numpy", "pytest", "pytest-asyncio", "pytest-timeout", "python-snappy", "zstandard")
OLD_PROCESSOR = "Nehalem"


def pinned() -> list[str]:
    """Return the versions of the tools."""
    lines = [line for name in ("dev", "spark") for line in (ROOT / f"requirements-{name}.txt").read_text().splitlines()]
    return [line for line in lines if line.partition("==")[0] in TOOLS]


def install(wheel: Path, place: Path, *options: str) -> None:
    """Install a wheel, what it requires in the tried versions, and the tools, below a directory; nothing is compiled."""
    subprocess.run(
        [
            sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-compile", "--only-binary", ":all:",
            "--target", place, *options, wheel, *pinned(), "-r", ROOT / "requirements.txt",
        ],
        check=True, timeout=900,
    )  # fmt: skip


def run_tests(packages: Path, *python: str | Path) -> None:
    """Run the tests with an interpreter, in a directory that has no Diamant but the installed one."""
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(ROOT / "tests", Path(place, "tests"), ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", place)
        environment = {"PATH": place, "HOME": place, "LANG": "C.UTF-8", "PYTHONPATH": str(packages), "CI": "true"}
        asked = "import diamant.kernels as found; assert found.ARE_COMPILED, found.WITHOUT_KERNELS"
        subprocess.run([*python, "-c", asked], cwd=place, env=environment, check=True, timeout=60)
        options = ("-q", "-p", "no:cacheprovider", "-m", "not slow", "-k", LEFT_OUT, "-o", "timeout=0")
        subprocess.run(
            [*python, "-m", "pytest", *options, *TESTS], cwd=place, env=environment, check=True, timeout=3600
        )


def make_arm_root(place: Path) -> None:
    """Unpack Debian's Python for arm64."""
    command = ["mmdebstrap", "--arch=arm64", "--variant=extract", "--include=python3,libstdc++6", "bookworm", place]
    subprocess.run(command, check=True, timeout=900, capture_output=True)


def missing(*programs: str) -> list[str]:
    """Those of the programs that are not on PATH."""
    return [program for program in programs if shutil.which(program) is None]


def try_here(wheel: Path, scratch: Path) -> list[str]:
    """Run the tests on this machine, and as on an old one."""
    packages = scratch / "packages"
    install(wheel, packages)
    run_tests(packages, sys.executable)
    if missing("qemu-x86_64"):
        return ["an old x86-64 without AVX: needs qemu-user"]
    run_tests(packages, shutil.which("qemu-x86_64") or "", "-cpu", OLD_PROCESSOR, os.path.realpath(sys.executable))
    return []


def try_on_arm(wheel: Path, scratch: Path) -> list[str]:
    """Run the tests on an emulated arm64, with Debian 12's Python."""
    if needed := missing("qemu-aarch64", "mmdebstrap"):
        return [f"arm64: needs {' and '.join(needed)} (Debian's qemu-user and mmdebstrap)"]
    root, packages = scratch / "root", scratch / "packages"
    make_arm_root(root)
    glibc = [
        option
        for version in ("2_36", "2_28", "2_27", "2_26", "2_17")
        for option in ("--platform", f"manylinux_{version}_aarch64")
    ]
    install(
        wheel,
        packages,
        *glibc,
        "--platform",
        "manylinux2014_aarch64",
        "--python-version",
        "3.11",
        "--implementation",
        "cp",
    )
    run_tests(packages, shutil.which("qemu-aarch64") or "", "-L", root, root / "usr" / "bin" / "python3.11")
    return []


def check(place: Path) -> list[str]:
    """Check all wheels, and return what could not be tried. Raises SystemExit at the first fault."""
    untried = [] if MUSL.exists() else ["symbols against musl's: needs Debian's package musl"]
    untried.append("musl: no CPython for it was at hand to run the tests; symbols alone were checked")
    for wheel in sorted(place.glob("*.whl")):
        print(f"checking {wheel.name}", flush=True)
        if faults := faults_of(wheel):
            raise SystemExit("\n".join(faults))
        is_here = platform.machine() in wheel.stem
        with tempfile.TemporaryDirectory() as scratch:
            if "manylinux" in wheel.name:
                untried += try_here(wheel, Path(scratch)) if is_here else try_on_arm(wheel, Path(scratch))
    return untried


if __name__ == "__main__":
    for one in check(Path(sys.argv[1]).absolute()):
        print(f"not tried: {one}")
