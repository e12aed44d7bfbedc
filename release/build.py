"""Builds the source distribution, and of it a wheel for each machine, with a compiler that has them all (ziglang).

    python -m release.build dist

The same commit gives the same bytes, wherever it is built: the tools are those of requirements-dist.txt, every time is the
commit's (or SOURCE_DATE_EPOCH), and every mode and owner the same.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SDIST_FILES = ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py", "diamant")
TARGETS = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
}
"""The platform tag of each wheel, and the compiler's name of the machine. What the broker requires has no wheels for musl 1.1."""


def git(*arguments: str) -> str:
    """Ask git about this clone."""
    run = subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True, text=True, timeout=60)
    return run.stdout.strip()


def copy_sources(place: Path) -> None:
    """Copy what git has, and note the commit."""
    for name in git("ls-files", *SDIST_FILES).splitlines():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, place / name)
    changed = "+changes" if git("status", "--porcelain", *SDIST_FILES) else ""
    (place / "diamant" / "commit.txt").write_text(git("rev-parse", "HEAD") + changed + "\n")


def run_setup(place: Path, *arguments: str | Path, **variables: str) -> None:
    """Run setup.py in a directory of sources."""
    environment = os.environ | {"PYTHONHASHSEED": "0"} | variables
    environment.pop("CC", None)
    command = [sys.executable, "-W", "ignore", "setup.py", "-q", *arguments]
    subprocess.run(command, cwd=place, env=environment, check=True, timeout=900)


def leave_out_re2(pyproject: Path) -> None:
    """Require no google-re2, which has no wheels for musl: it would have to be compiled, with Abseil and RE2, in C++. Without it
    subscriptions by a pattern are refused.
    """
    lines = pyproject.read_text().splitlines(keepends=True)
    pyproject.write_text("".join(line for line in lines if '"google-re2>=' not in line))


def write_sdist(place: Path, target: Path, time_s: int) -> Path:
    """Write the source distribution, and return it. setuptools' own tells who made it, and when."""
    with tempfile.TemporaryDirectory() as made:
        run_setup(place, "sdist", "--formats=tar", "-d", made, DIAMANT_KERNELS="none")
        (found,) = Path(made).glob("*.tar")
        archive = target / f"{found.name}.gz"
        with (
            tarfile.open(found) as source,
            archive.open("wb") as raw,
            gzip.GzipFile("", "wb", mtime=time_s, fileobj=raw) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as written,
        ):
            for member in sorted(source.getmembers(), key=lambda one: one.name):
                member.mtime, member.mode = time_s, 0o755 if member.isdir() else 0o644
                member.uid = member.gid = 0
                member.uname = member.gname = ""
                member.pax_headers = {}
                written.addfile(member, source.extractfile(member) if member.isfile() else None)
    return archive


def build(target: Path) -> list[Path]:
    """Build all into an empty directory, and return the files, sorted."""
    time_s = int(os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct"))
    os.environ["SOURCE_DATE_EPOCH"] = str(time_s)
    os.umask(0o022)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        copied = Path(scratch, "copied")
        copy_sources(copied)
        print("building the source distribution", flush=True)
        archive = write_sdist(copied, target, time_s)
        # Of what the archive has: it is complete if that can be built.
        with tarfile.open(archive) as opened:
            # Python 3.12 and 3.13 warn unless told how far to trust an archive, and 3.11.2 cannot be told.
            opened.extraction_filter = getattr(tarfile, "data_filter", None)
            opened.extractall(scratch)  # noqa: S202  (an archive that was just made here)
        sources = Path(scratch, archive.name.removesuffix(".tar.gz"))
        for tag, machine in TARGETS.items():
            if "musl" in tag:
                leave_out_re2(sources / "pyproject.toml")
            print(f"building the wheel for {machine}", flush=True)
            options = ("build", "-b", f"build/{machine}", "bdist_wheel", "--plat-name", tag, "-d", target)
            run_setup(sources, *options, DIAMANT_TARGET=machine)
    return sorted(target.iterdir())


if __name__ == "__main__":
    for path in build(Path(sys.argv[1]).absolute()):
        print(f"{path.name}  {path.stat().st_size:,} bytes")
