"""Takes measurements in rounds, prints them and writes them as JSON; README.md says which, and how to compare two checkouts."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from figure import HIGHER_IS_BETTER, verdict
from measure import MEASUREMENTS, ON_REQUEST, can_measure
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
LAST = Path(__file__).with_name("last.json")
LIMIT_S = 900
"""For one measurement at scale 1."""
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Every process finds byte code, as in an installation."""
TELL = Console(stderr=True, highlight=False)


class Side(NamedTuple):
    """A checkout and its Python, or a command that another program is measured by."""

    name: str
    tree: Path = ROOT
    python: str = sys.executable
    command: str | None = None


class Row(NamedTuple):
    """One figure: its values by side, a value for each round."""

    measurement: str
    figure: str
    unit: str
    here: list[float]
    other: list[float]

    def verdict(self) -> str:
        """Return what `verdict` says, empty if only one side was measured."""
        return verdict(self.here, self.other, self.unit) if len(self.here) == len(self.other) else ""

    def to_fields(self) -> dict[str, Any]:
        """As JSON has it."""
        better = "higher" if self.unit in HIGHER_IS_BETTER else "lower"
        fields = {"measurement": self.measurement, "figure": self.figure, "unit": self.unit, "better": better}
        rounds = {"rounds": [float(f"{value:.5g}") for value in self.here]}
        if self.other:
            rounds["other"] = [float(f"{value:.5g}") for value in self.other]
        return fields | rounds | ({"verdict": self.verdict()} if self.verdict() else {})


class Run:
    """Measurements of one side or of two, in turns."""

    def __init__(self, sides: Sequence[Side], scale: float) -> None:
        self.rows: dict[tuple[str, str], Row] = {}
        self.failed: dict[tuple[str, str], str] = {}
        """Why there are no figures, by measurement and side."""
        self._sides, self._scale = sides, scale

    def take(self, measurements: Sequence[str], rounds: int) -> None:
        """Take so many more rounds of some measurements; the sides begin by turns."""
        for round_ in range(rounds):
            for name in measurements:
                for number, side in list(enumerate(self._sides))[:: -1 if round_ % 2 else 1]:
                    if can_measure(name, side.command) and (name, side.name) not in self.failed:
                        began = time.perf_counter()
                        self._take(name, side, is_here=number == 0)
                        took_s = time.perf_counter() - began
                        TELL.print(f"round {round_ + 1} of {rounds}: {name}, {side.name}: {took_s:.1f} s")

    def names(self, verdict: str) -> list[str]:
        """Return the measurements that have a figure with a verdict."""
        return list(dict.fromkeys(row.measurement for row in self.rows.values() if row.verdict() == verdict))

    def _take(self, name: str, side: Side, *, is_here: bool) -> None:
        command = [side.python, str(Path(__file__).with_name("measure.py")), name, f"--scale={self._scale}"]
        process = subprocess.Popen(
            command + ([f"--command={side.command}"] if side.command else []),
            env=ENVIRONMENT | {"PYTHONPATH": str(side.tree)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            said, errors = process.communicate(timeout=LIMIT_S * max(1, self._scale))
        except BaseException:
            # It stops its broker and removes its files.
            process.terminate()
            process.communicate()
            raise
        if process.returncode:
            self.failed[name, side.name] = (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
            return
        for figure, value, unit in json.loads(said.splitlines()[-1]):
            row = self.rows.setdefault((name, figure), Row(name, figure, unit, [], []))
            (row.here if is_here else row.other).append(value)


@contextlib.contextmanager
def other_side(root: Path, compare: str) -> Iterator[Side]:
    """A directory with a checkout, run by its own .venv if it has one; a revision, checked out for the time being; a command."""
    if "{" in compare:
        yield Side("other", command=compare)
    elif Path(compare).is_dir():
        python = Path(compare).resolve() / ".venv/bin/python"
        yield Side(compare, Path(compare).resolve(), str(python) if python.exists() else sys.executable)
    else:
        with tempfile.TemporaryDirectory(prefix="diamant-bench-") as place:
            tree = Path(place, "tree")
            _git(root, "worktree", "add", "--quiet", "--detach", str(tree), compare)
            try:
                if (tree / "setup.py").exists():
                    subprocess.run(
                        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
                        cwd=tree,
                        stdout=subprocess.DEVNULL,
                        check=True,
                    )
                subprocess.run(
                    [sys.executable, "-m", "compileall", "-q", "diamant"], cwd=tree, env=ENVIRONMENT, check=True
                )
                yield Side(compare, tree)
            finally:
                _git(root, "worktree", "remove", "--force", str(tree))


def machine() -> dict[str, Any]:
    """What figures depend on beside the code."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "processor": models[0].partition(": ")[2] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def table_of(rows: Sequence[Row], compare: str | None, last: Mapping[tuple[str, str], float]) -> Table:
    """Return the table; `last` has medians that were committed, without a comparison."""
    others = (compare, "ratio", "") if compare else ("committed", "ratio") if last else ()
    table = Table("measurement", "figure", "unit", "here", *others)
    for row in rows:
        cells = [row.measurement, row.figure, row.unit, _shown(row.here)]
        if compare and len(row.here) == len(row.other):
            ratios = [mine / its for mine, its in zip(row.here, row.other, strict=True) if its]
            cells += [_shown(row.other), f"{statistics.median(ratios):.2f}" if ratios else "", row.verdict()]
        elif before := last.get((row.measurement, row.figure)):
            cells += [_number(before), f"{statistics.median(row.here) / before:.2f}"]
        table.add_row(*cells)
    return table


def committed(scale: float) -> dict[tuple[str, str], float]:
    """Return the medians of the committed run, if a machine of the same kind took them at the same scale."""
    last = json.loads(LAST.read_text()) if LAST.exists() else {"machine": {}}
    now = machine()
    if any(last["machine"].get(name) != now[name] for name in ("processor", "cores")) or last["scale"] != scale:
        return {}
    return {(one["measurement"], one["figure"]): statistics.median(one["rounds"]) for one in last["figures"]}


def kept(path: Path, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the figures in a file of measurements that were not taken now, each with its commit."""
    before = json.loads(path.read_text()) if path.exists() else {"figures": []}
    taken = {row.measurement for row in rows}
    return [
        {**one, "commit": one.get("commit", before["commit"])}
        for one in before["figures"]
        if one["measurement"] in MEASUREMENTS and one["measurement"] not in taken
    ]


def write(path: Path, head: Mapping[str, Any], rows: Sequence[Row], others: Sequence[Mapping[str, Any]] = ()) -> None:
    """Write JSON, a figure in a line; with `others` in the order of the measurements."""
    fields = [*others, *(row.to_fields() for row in rows)]
    if others:
        fields.sort(key=lambda one: MEASUREMENTS.index(one["measurement"]))
    figures = ",\n  ".join(map(json.dumps, fields))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(head, indent=1)[:-2] + f',\n "figures": [\n  {figures}\n ]\n}}\n', encoding="utf-8")


def main() -> None:
    """Measure, print, write; exit code 1 if a figure got worse, or a measurement of this checkout failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=MEASUREMENTS,
        metavar="NAME",
        default=[name for name in MEASUREMENTS if name not in ON_REQUEST],
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the amounts: 0.1 for a tenth")
    parser.add_argument(
        "--compare", metavar="WHAT", help="a revision, a checkout's directory, or a command; see README.md"
    )
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench.json", metavar="FILE")
    parser.add_argument(
        "--merge", action="store_true", help="keep what FILE has of measurements that are not taken now"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    began = time.perf_counter()
    with contextlib.ExitStack() as stack:
        sides = [Side("here")]
        if options.compare:
            sides.append(stack.enter_context(other_side(ROOT, options.compare)))
        run = Run(sides, options.scale)
        run.take([name for name in options.only if can_measure(name, sides[-1].command)], options.rounds)
        doubtful = run.names("worse") + run.names("better")
        if doubtful and sides[-1].command is None:  # two checkouts
            TELL.print(f"again, whether it stays so: {', '.join(doubtful)}")
            run.take(list(dict.fromkeys(doubtful)), options.rounds)
    rows = list(run.rows.values())
    last = {} if options.compare else committed(options.scale)
    Console(width=None if sys.stdout.isatty() else 160).print(table_of(rows, options.compare, last))
    taken = {"seconds": round(time.perf_counter() - began), "rounds": options.rounds, "scale": options.scale}
    commit = {"commit": _git(ROOT, "describe", "--always", "--dirty", "--exclude=*")}
    compared = {"compared": options.compare} if options.compare else {}
    others = kept(options.json, rows) if options.merge else ()
    write(options.json, {**commit, **compared, **taken, "machine": machine()}, rows, others)
    print(f"{taken['seconds']} s; {options.json}")
    if last:
        print(
            "The committed figures are those of another day: a ratio is a hint. --compare measures two commits in turns."
        )
    for (name, side), why in run.failed.items():
        print(f"not measured: {name}, {side}: {why}")
    worse = [row for row in rows if row.verdict() == "worse"]
    for row in worse:
        print(f"WORSE: {row.measurement}: {row.figure}: {_shown(row.other)} -> {_shown(row.here)} {row.unit}")
    sys.exit(bool(worse or any(side == "here" for _, side in run.failed)))


def _shown(values: Sequence[float]) -> str:
    return f"{_number(statistics.median(values))} [{_number(min(values))}..{_number(max(values))}]" if values else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    main()
