"""The suite on every Python that this machine has: `make matrix`.

    python -m tests.matrix [PYTHON ...]

The quick part on each, the whole suite on the oldest and the newest; each has an environment of its own, that of `make test`
among them.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.pythons import SUPPORTED, Python, ask, find

ROOT = Path(__file__).resolve().parent.parent
SUMMARY = re.compile(r"^(?:=+ )?(?P<counts>\d+ \w+(?:, \d+ \w+)*) in (?P<seconds>[\d.]+)s\b")
"""pytest's last line: `2 failed, 1134 passed, 3 skipped in 61.05s (0:01:01)`."""


class Row(NamedTuple):
    """What came of a run; no counts if pytest did not come to its end."""

    version: str
    part: str
    passed: int | None
    failed: int | None
    seconds: float | None
    is_good: bool


def counted(output: Sequence[str]) -> tuple[int | None, int | None, float | None]:
    """Return passed, failed (errors are failures) and seconds, of the last summary that pytest printed."""
    for line in reversed(output):
        if found := SUMMARY.match(line):
            counts = {word.rstrip("s"): int(number) for number, word in re.findall(r"(\d+) (\w+)", found["counts"])}
            return counts.get("passed", 0), counts.get("failed", 0) + counts.get("error", 0), float(found["seconds"])
    return None, None, None


def run(command: Sequence[str | Path], **variables: str) -> tuple[int, list[str]]:
    """Run a command, show what it prints as it comes, and return its status and its lines."""
    with subprocess.Popen(
        command, cwd=ROOT, env=os.environ | variables, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return process.returncode, lines


def environment_of(python: Python) -> Path:
    """Return the environment of a Python: this one if it is of that version."""
    return Path(sys.prefix) if python.version == platform.python_version() else Path(sys.prefix, python.version)


def make_environment(python: Python, place: Path) -> None:
    """Make an environment with links to this one's PySpark: a third of it, half a gigabyte, and the same for all versions."""
    subprocess.run([python.program, "-m", "venv", place], check=True, timeout=300)
    (packages,) = place.glob("lib/python*/site-packages")
    for found in Path(sysconfig.get_path("purelib")).glob("pyspark*"):
        shutil.copytree(
            found, packages / found.name, copy_function=os.link, ignore=shutil.ignore_patterns("__pycache__")
        )


def try_python(python: Python, part: str) -> Row:
    """Run a part of the suite with a Python."""
    place = environment_of(python)
    make = [os.environ.get("MAKE", "make"), f"PYTHON={python.program}", f"VENV={place}"]
    if not (place / "bin" / "python").exists():
        make_environment(python, place)
    # The kernels of this checkout serve every version (abi3), and are there.
    status, output = run([*make, f"{place}/.dev-installed"], DIAMANT_KERNELS="none")
    if status == 0:
        status, output = run([*make, part])
    return Row(python.version, part, *counted(output), is_good=status == 0)


def table(rows: Sequence[Row]) -> str:
    """Return the rows as lines."""
    lines = [f"{'Python':<10}{'':<8}{'passed':>8}{'failed':>8}{'seconds':>9}"]
    for row in rows:
        passed, failed = ("-" if one is None else one for one in (row.passed, row.failed))
        seconds = "-" if row.seconds is None else f"{row.seconds:.0f}"
        lines.append(f"{row.version:<10}{row.part:<8}{passed:>8}{failed:>8}{seconds:>9}")
    return "\n".join(lines)


def chosen(named: Sequence[str]) -> list[Python]:
    """Return the named interpreters, or all that are supported and found. Raises SystemExit if one will not do."""
    if not named:
        return find(SUPPORTED)
    asked = {name: ask(name) for name in named}
    if wrong := [name for name, python in asked.items() if python is None]:
        raise SystemExit(f"{', '.join(wrong)}: expected CPython with venv and with its global lock")
    return sorted({python.version: python for python in asked.values() if python}.values(), key=lambda one: one.order)


def try_all(pythons: Sequence[Python], attempt: Callable[[Python, str], Row] = try_python) -> list[Row]:
    """Run the whole suite with the first and the last, and its quick part with those between."""
    rows = []
    for python in pythons:
        part = "test" if python in (pythons[0], pythons[-1]) else "quick"
        print(f"make {part} with Python {python.version}: {python.program}", flush=True)
        rows.append(attempt(python, part))
    return rows


def main(named: Sequence[str]) -> int:
    """Try them, print the table, and return the exit code."""
    pythons = chosen(named)
    rows = try_all(pythons)
    print(table(rows))
    if missing := [one for one in SUPPORTED if not any(python.version.startswith(f"{one}.") for python in pythons)]:
        print(f"not tried: Python {', '.join(missing)}")
    return 0 if all(row.is_good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
