"""bench/spark_clean.py: the log that it writes, the break-even point, its output."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diamant.cleaner.segments.tolerant_reader import Problem, SegmentFile, iter_batches
from diamant.storage.env.env import RealEnv
from diamant.storage.segments.offset_index import OffsetIndex

BENCH = str(Path(__file__).resolve().parent.parent / "bench")


@pytest.fixture(autouse=True)
def _bench(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules of a script are found beside it."""
    monkeypatch.syspath_prepend(BENCH)


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


@pytest.mark.slow
def test_the_log_that_is_measured_is_one(tmp_path: Path) -> None:
    """Every batch is valid, offsets follow each other, indexes point to batches, each key comes as often as was asked for."""
    from made_log import LogWriter, distinct_keys, linked_prefix

    whole = tmp_path / "whole-0"
    count = LogWriter(whole, 8, segment_bytes=1 << 19).write(70_000, distinct_keys(50_000))
    keys, offsets = keys_and_offsets(whole)
    assert offsets == list(range(count))
    assert keys[:2] == [b"key-000000000000", b"key-000000000001"]
    times = Counter(keys)
    assert len(times) == 50_000
    assert sum(times.values()) == count >= 70_000
    logs = sorted(whole.glob("*.log"))
    assert [path.stat().st_size > 0 for path in logs] == [True, True, True, False]
    base = int(logs[1].stem)
    index = OffsetIndex(RealEnv(), str(logs[1].with_suffix(".index")), base, 1 << 20)
    offset, position = index.lookup(base + 1000)
    assert offset <= base + 1000 < offset + 64
    assert int.from_bytes(logs[1].read_bytes()[position : position + 8], "big") == offset - 63
    end = linked_prefix(whole, tmp_path / "part-0", logs[0].stat().st_size + 1)
    assert end == int(logs[2].stem)
    assert keys_and_offsets(tmp_path / "part-0")[1] == list(range(end))
    assert [path.name for path in sorted((tmp_path / "part-0").glob("*.log"))] == [path.name for path in logs[:3]]


def test_wherever_the_log_is_cut_a_tenth_of_it_stays() -> None:
    """There are a tenth as many keys as records, so that sizes can be compared."""
    from made_log import overwritten_keys

    keys = overwritten_keys()
    numbers = np.concatenate([keys(first, 10_000) for first in range(0, 400_000, 10_000)])
    for end in (100_000, 200_000, 400_000):
        assert 0.08 < len(set(numbers[:end].tolist())) / end < 0.1


def test_the_break_even_follows_from_straight_lines() -> None:
    """The model returns its inputs: rates, start, and the size of equal time; never below P / R cores."""
    from break_even import break_even

    rows = [
        {"engine": engine, "gb": gb, "seconds": fixed_s + gb / rate, "start_s": start_s}
        for engine, rate, fixed_s, start_s in (("process", 0.2, 0.0, 0.0), ("local[2]", 0.1, 3.0, 5.0))
        for gb in (1, 5, 20)
    ]
    found = break_even(rows, 2)
    assert found is not None
    assert (found.process, found.core, found.start_s) == pytest.approx((0.2, 0.05, 8.0))
    assert found.size_gb(4) == math.inf
    assert found.size_gb(8) == pytest.approx(8 / (1 / 0.2 - 1 / 0.4))
    assert [found.is_spark_ahead(size, 8) for size in (3, 4)] == [False, True]
    assert break_even(rows, 1) is None


def test_an_estimate_that_says_otherwise_is_told() -> None:
    """A core on Spark that does as much as a worker process makes Spark worth it sooner than the runner thinks, and so on."""
    from break_even import BreakEven, disagreements

    sooner = disagreements(BreakEven(0.2, 0.2, 1.0))
    assert any(line.startswith("The runner's own estimate is wrong on 2 cores for") for line in sooner)
    assert all(line.endswith("Spark is ahead, it takes the process runner.") for line in sooner)
    never = disagreements(BreakEven(9.0, 0.1, 9.0))
    assert any(
        "on 32 cores" in line and "500 GB: the process runner is ahead, it takes Spark." in line for line in never
    )


def test_engines_that_do_not_come_to_the_same_are_named() -> None:
    """Figures beside such a line are worth nothing; what was skipped says why."""
    from spark_clean import tables

    row: dict[str, Any] = {"what": "clean", "log": "1 GB", "gb": 1.0, "records": 2_000_000, "engine": "process"}
    done = {
        **row, "start_s": 0.0, "seconds": 2.0, "gb_per_s": 0.5, "records_per_s": 1e6, "cpu_s": 3.0,
        "peak_mib": {"driver": 40, "worker": 150}, "answer": {"bytes_after": 10},
    }  # fmt: skip
    lines = list(
        tables([done, {**done, "engine": "local[2]", "answer": {"bytes_after": 11}}, {**row, "skipped": "late"}])
    )
    assert "| 1 GB, 2.0 M records | process | 0.0 | 2.0 | 0.500 | 1.00 | 3 |  | 40 / - / 150 |" in lines
    assert "| 1 GB, 2.0 M records | process | late | | | | | | |" in lines
    assert "NOT COMPARABLE: clean 1 GB: bytes_after is 11 by local[2], 10 by process" in lines


def wait_until(condition: Callable[[], bool]) -> None:
    """Look again and again, for a minute at most."""
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


@pytest.mark.slow
def test_a_family_is_looked_at_as_a_whole(tmp_path: Path) -> None:
    """Memory of the command and of what it starts, processor time, each line; too long a run ends with everybody in it."""
    from process_family import Family, TimeLimit, family_of, run_family

    said: list[str] = []
    seen = tmp_path / "seen"

    def on_line(line: str, family: Family) -> None:
        said.append(line.strip())
        if line == "below\n":
            wait_until(lambda: family.peak_mib.get("worker", 0) > 80 and family.cpu_s > 0)
            seen.touch()

    below = (
        "import os, time; b'x' * (80 << 20); print('below', flush=True); sum(range(2_000_000))\n"
        f"while not os.path.exists({str(seen)!r}): time.sleep(0.01)"
    )
    command = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {below!r}], check=True); print('done')"
    family, took_s = run_family([sys.executable, "-c", command], 60, on_line)
    assert said == ["below", "done"]
    assert family.peak_mib["worker"] > 80 > family.peak_mib["driver"]
    assert took_s > 0
    pids: list[int] = []

    def note(line: str, seen: Family) -> None:
        pids.append(int(line))

    with pytest.raises(TimeLimit):
        run_family(["/bin/sh", "-c", "sleep 999 & echo $!; wait"], 1, note)
    [pid] = pids
    assert family_of(pid) == [pid]
    status = Path(f"/proc/{pid}/stat")
    assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"
