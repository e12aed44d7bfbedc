"""bench/, which no type checker reads: every measurement at a tiny size, the verdicts, the log that is cleaned."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diamant.cleaner.segments.tolerant_reader import Problem, SegmentFile, iter_batches
from diamant.storage.env.env import RealEnv
from diamant.storage.segments.offset_index import OffsetIndex
from tests.effort import some

ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / "bench"
QUICK = (
    "start", "raw", "codecs", "latency", "connections", "partitions", "recovery", "committed", "transactions", "groups",
    "process", "compact-and-wait", "erase",
)  # fmt: skip
LONGER = ("tls", "sasl-ssl", "librdkafka", "end-to-end", "commits", "compaction", "cleaning")
"""More than a second: many worker processes, clients that wait."""
LONGEST = ("spark-2",)
"""Half a minute: sessions of Spark."""


@pytest.fixture(autouse=True)
def _bench(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules of a script are found beside it."""
    monkeypatch.syspath_prepend(str(BENCH))


TAKE = """
import json, sys
from measure import measure

for name in sys.argv[1:]:
    print(json.dumps([name, measure(name, 0.001)]), flush=True)
"""


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(QUICK, id="quick"),
        pytest.param(LONGER, id="longer", marks=pytest.mark.slow),
        pytest.param(LONGEST, id="longest", marks=pytest.mark.long),
    ],
)
def test_measurements_have_figures_at_any_size(names: tuple[str, ...]) -> None:
    """Each has a name of its own and a value; most of them are not zero, but for processor time, which has ticks."""
    names = tuple(some(names, every=6))
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{BENCH}"}
    command = [sys.executable, "-c", TAKE, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    taken = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith('["'))
    assert tuple(taken) == names
    for name, figures in taken.items():
        assert len({figure for figure, _, _ in figures}) == len(figures) > 0, name
        assert all(value >= 0 and unit for _, value, unit in figures), name
        timed = [value for figure, value, _ in figures if "CPU" not in figure]
        assert sum(value > 0 for value in timed) * 2 > len(timed), name


def test_every_measurement_is_tried_here() -> None:
    """Another one is a row of the table above, but for the second of two that differ in the number of cores."""
    from measure import MEASUREMENTS, ON_REQUEST

    assert {*QUICK, *LONGER, *LONGEST, *ON_REQUEST} == set(MEASUREMENTS)


def test_the_committed_run_has_every_measurement() -> None:
    """The run is what `make bench` writes: it has every round, and names the machine and the commit."""
    from measure import MEASUREMENTS, ON_REQUEST

    last = json.loads((BENCH / "last.json").read_text())
    assert {one["measurement"] for one in last["figures"]} == set(MEASUREMENTS) - set(ON_REQUEST)
    assert {len(one["rounds"]) for one in last["figures"]} == {last["rounds"]}
    assert last["machine"].keys() == {"processor", "cores", "memory_gb", "system", "python"}
    assert last["commit"]


@pytest.mark.slow
def test_two_checkouts_are_measured_in_turns(tmp_path: Path) -> None:
    """The JSON has the rounds of both; nothing that failed."""
    out = tmp_path / "out.json"
    asked = ["--only", "latency", "--scale", "0.002", "--rounds", "2", "--compare", str(ROOT), "--json", str(out)]
    done = subprocess.run(
        [sys.executable, str(BENCH / "run.py"), *asked], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert "not measured" not in done.stdout, done.stdout
    written = json.loads(out.read_text())
    assert written["compared"] == str(ROOT)
    [p50, *_] = written["figures"]
    assert (p50["figure"], p50["unit"], p50["better"]) == ("one message at a time p50", "ms", "lower")
    assert len(p50["rounds"]) == len(p50["other"]) >= 2
    turns = [line.split(", ")[1].split(": ")[0] for line in done.stderr.splitlines() if line.startswith("round")]
    assert turns[:4] == ["here", str(ROOT), str(ROOT), "here"]


@pytest.mark.parametrize(
    ("here", "there", "unit", "expected"),
    [
        ([100, 101, 99], [110, 112, 108], "MB/s", "worse"),
        ([110, 112, 108], [100, 101, 99], "ms", "worse"),
        ([110, 112, 108], [100, 101, 99], "MB/s", "better"),
        ([100, 101, 99], [110, 112, 108], "s", "better"),
        ([100, 101, 99], [104, 105, 103], "MB/s", "same"),
        ([100, 101, 120], [110, 112, 108], "per s", "same"),
        ([50, 150, 100], [40, 100, 101], "MiB", "same"),
        ([0, 0, 0], [0, 0, 0], "ms/s", "same"),
        ([0, 10, 5], [0, 0, 0], "ms/s", "same"),
    ],
    ids=str,
)
def test_a_figure_is_worse_if_it_is_so_in_every_round(
    here: list[float], there: list[float], unit: str, expected: str
) -> None:
    """A figure is worse by more than 5 %, in the direction of its unit; a round that says otherwise is noise."""
    from figure import verdict

    assert verdict(here, there, unit) == expected


def test_a_run_can_be_taken_in_parts(tmp_path: Path) -> None:
    """Figures of measurements that were not taken again stay, and say of which commit they are."""
    from run import Row, kept, write

    out, latency = tmp_path / "out.json", Row("latency", "p50", "ms", [1.0], [])
    write(
        out, {"commit": "one"}, [Row("start", "spawn", "ms", [3.0], []), latency, Row("raw", "old", "MB/s", [1.0], [])]
    )
    for commit in ("two", "three"):
        now = [Row("raw", "new", "MB/s", [2.0], [])]
        write(out, {"commit": commit}, now, kept(out, now))
    written = json.loads(out.read_text())
    assert written["commit"] == "three"
    found = [(one["measurement"], one["figure"], one.get("commit")) for one in written["figures"]]
    assert found == [("start", "spawn", "one"), ("raw", "new", None), ("latency", "p50", "one")]


def test_a_regression_is_named(tmp_path: Path) -> None:
    """A regression is named in the table, in the JSON and by measurement; a figure of one side has no verdict."""
    from rich.console import Console
    from run import Row, Run, table_of, write

    rows = [
        Row("raw", "produce", "MB/s", [100, 101, 99], [120, 121, 119]),
        Row("raw", "consume", "MB/s", [100, 101, 99], [101, 99, 100]),
        Row("start", "spawn", "ms", [100, 101, 99], [200, 210, 190]),
        Row("spark-1", "clean", "GB/s", [1, 2, 3], []),
    ]
    measured: Any = Run([], 1.0)
    measured.rows |= {(row.measurement, row.figure): row for row in rows}
    assert measured.names("worse") == ["raw"]
    assert measured.names("better") == ["start"]
    write(tmp_path / "made/out.json", {"commit": "abc", "machine": {"cores": 2}}, rows)
    written = json.loads((tmp_path / "made/out.json").read_text())
    assert [one.get("verdict") for one in written["figures"]] == ["worse", "same", "better", None]
    assert written["machine"] == {"cores": 2}
    shown = io.StringIO()
    Console(file=shown, width=160).print(table_of(rows, "main", {}))
    table = shown.getvalue()
    assert "100 [99..101]" in table
    assert "0.83" in table
    assert table.count("worse") == 1


def test_a_revision_is_checked_out_for_the_time_being(tmp_path: Path) -> None:
    """The revision's own files are there, not those that were changed since; and nothing is left of it."""
    from run import other_side

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.com", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    module = tmp_path / "diamant" / "__init__.py"
    module.parent.mkdir()
    module.write_text("before = 1\n")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "one")
    module.write_text("after = 1\n")
    with other_side(tmp_path, "HEAD") as side:
        assert (side.tree / "diamant/__init__.py").read_text() == "before = 1\n"
    assert not side.tree.exists()
    assert len(git("worktree", "list").splitlines()) == 1


def keys_and_offsets(directory: Path) -> tuple[list[bytes], list[int]]:
    """Of all records, read with every check there is."""
    keys, offsets = [], []
    problems: list[Problem] = []
    for path in sorted(directory.glob("*.log")):
        segment = SegmentFile(str(path), int(path.stem), path.stat().st_size)
        for batch in iter_batches(RealEnv(), segment, problems.append):
            for record in batch.records():
                keys.append(record.key or b"")
                offsets.append(record.offset)
    assert problems == []
    return keys, offsets


@pytest.mark.parametrize("codec", range(5))
def test_the_log_that_is_measured_is_one(tmp_path: Path, codec: int) -> None:
    """Every batch is valid, offsets follow each other, indexes point to batches, each key comes as often as was asked for."""
    from made_log import Batches, distinct_keys, write_log

    log = tmp_path / "log-0"
    written = write_log(log, Batches(8, 100, codec), 110_000, distinct_keys(2_000), segment_bytes=1 << 20)
    keys, offsets = keys_and_offsets(log)
    assert offsets == list(range(written.records))
    assert keys[:2] == [b"key-000000000000", b"key-000000000001"]
    assert len(set(keys)) == written.keys == 2_000
    assert sum(Counter(keys).values()) == written.records >= 110_000
    logs = sorted(log.glob("*.log"))
    assert [path.stat().st_size > 0 for path in logs] == [True] * (len(logs) - 1) + [False]
    assert len(logs) > 2
    base = int(logs[1].stem)
    index = OffsetIndex(RealEnv(), str(logs[1].with_suffix(".index")), base, 1 << 20)
    offset, position = index.lookup(base + 1000)
    assert offset <= base + 1000 < offset + 100
    assert int.from_bytes(logs[1].read_bytes()[position : position + 8], "big") == offset - 99


def test_each_part_of_the_log_keeps_a_tenth_of_its_records() -> None:
    """There are a tenth as many keys as records, so that sizes can be compared."""
    from made_log import overwritten_keys

    keys = overwritten_keys()
    numbers = np.concatenate([keys(first, 10_000) for first in range(0, 400_000, 10_000)])
    for end in (100_000, 200_000, 400_000):
        assert 0.08 < len(set(numbers[:end].tolist())) / end < 0.1


def test_pages_and_charts_show_the_committed_figures() -> None:
    """Tables and pictures are what `python bench/charts.py` makes of bench/compared.json."""
    import charts

    figures = charts.read_figures(charts.COMPARED)
    for path, text in charts.pages(figures).items():
        assert path.read_text() == text, "python bench/charts.py"
    for chart in charts.CHARTS:
        assert (charts.TARGET / chart.file).read_text() == charts.draw(chart, figures), "python bench/charts.py"
