"""Large partitions on Spark, beside the process runner and, if a command for it is given, another cleaner.

    python bench/spark_clean.py --directory /data/bench --gb 1 5 20 --distinct 100000000 --json out.json

For each size every engine in turn cleans a copy of the same log (hard links). Then a log in which `--distinct` keys occur once
each, and a tenth of them again, is cleaned in one round; and then, for each size, every engine counts what is in it (`stats`).
Each measurement is a process of its own. Prints tables in Markdown, and after each measurement writes all of them to `--json`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from break_even import CORES, break_even, disagreements
from made_log import LogWriter, distinct_keys, linked_prefix, log_bytes, overwritten_keys
from process_family import Family, TimeLimit, run_family
from spark_measurement import NOW_MS, PROCESS

DISTINCT_VALUE_BYTES = 8
DISTINCT_AGAIN = 1.1
OTHER = "other cleaner"
SEGMENTS_PER_OUTPUT = 4
"""How many segments are merged into one, before cleaning."""


class Bench:
    """All measurements of a run, in turns."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.place: Path = options.directory / "spark-bench"
        self.rows: list[dict[str, Any]] = []
        self.segment_bytes: int = options.segment_mb << 20
        self._end_s = time.monotonic() + options.budget_s

    def run(self) -> None:
        """Do all of it, counting last; nothing is left of it on the disk."""
        options = self.options
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir(parents=True)
        try:
            whole = self.place / "whole" / "bench-0"
            if options.gb:
                writer = LogWriter(whole, options.value_bytes, self.segment_bytes)
                records = math.ceil(max(options.gb) * 1e9 / writer.record_bytes)
                self._written(lambda: writer.write(records, overwritten_keys()))
            if "clean" in options.what:
                other = [] if options.kafka_clean is None else [OTHER]
                self._in_turns("clean", [*options.engine, *other], whole)
            if options.distinct:
                self._distinct()
            if "stats" in options.what:
                self._in_turns("stats", options.engine, whole)
        finally:
            shutil.rmtree(self.place, ignore_errors=True)

    def _in_turns(self, what: str, engines: Sequence[str], whole: Path) -> None:
        for gb in self.options.gb:
            source = self.place / f"{gb:g}" / "bench-0"
            records = linked_prefix(whole, source, int(gb * 1e9))
            size = log_bytes(source) / 1e9
            log = {"log": f"{size:.1f} GB", "gb": size, "records": records}
            for turn in range(self.options.rounds):
                for engine in engines:
                    self._measure(what, engine, source, {**log, "turn": turn + 1})
            shutil.rmtree(source.parent)

    def _distinct(self) -> None:
        keys = self.options.distinct
        source = self.place / "distinct" / "bench-0"
        writer = LogWriter(source, DISTINCT_VALUE_BYTES, self.segment_bytes)
        records = self._written(lambda: writer.write(math.ceil(keys * DISTINCT_AGAIN), distinct_keys(keys)))
        log = {"log": f"{keys / 1e6:g} M distinct keys", "gb": log_bytes(source) / 1e9, "records": records, "turn": 1}
        for engine in self.options.distinct_engine:
            self._measure("clean", engine, source, log)
        shutil.rmtree(source.parent)

    def _written(self, write: Callable[[], int]) -> int:
        start_s = time.monotonic()
        records = write()
        os.sync()
        print(f"{records:,} records written in {time.monotonic() - start_s:.0f} s", file=sys.stderr, flush=True)
        return records

    # -- one measurement -------------------------------------------------------------------------------------------------

    def _measure(self, what: str, engine: str, source: Path, log: dict[str, Any]) -> None:
        row = {"what": what, "engine": engine, **log}
        self.rows.append(row)
        if time.monotonic() >= self._end_s:
            row["skipped"] = "the time for the whole run was over"
        else:
            target, scratch = self.place / "target" / "bench-0", self.place / "scratch"
            scratch.mkdir()
            try:
                if what == "clean":
                    linked_prefix(source, target, log_bytes(source))
                # What is still to be written of the one before is not this one's business.
                os.sync()
                row["load_before"] = os.getloadavg()[0]
                row |= self._take(what, engine, target if what == "clean" else source, scratch, log)
            except (TimeLimit, subprocess.CalledProcessError) as error:
                row["skipped"] = str(error)
            finally:
                shutil.rmtree(target.parent, ignore_errors=True)
                shutil.rmtree(scratch)
        print(json.dumps(row), file=sys.stderr, flush=True)
        if self.options.json is not None:
            self.options.json.write_text(json.dumps(self.rows, indent=1))

    def _take(self, what: str, engine: str, directory: Path, scratch: Path, log: dict[str, Any]) -> dict[str, Any]:
        said: list[str] = []
        cpu_before_s = 0.0

        def on_line(line: str, family: Family) -> None:
            nonlocal cpu_before_s
            if not said:
                cpu_before_s = family.cpu_s
            said.append(line)

        if engine == OTHER:
            command: str | list[str] = self.options.kafka_clean.format(
                dir=directory, now=NOW_MS, segment_bytes=SEGMENTS_PER_OUTPUT * self.segment_bytes
            )
        else:
            asked = {
                "what": what,
                "engine": engine,
                "directory": str(directory),
                "scratch": str(scratch),
                "memory": self.options.driver_memory,
                "mode": self.options.mode,
                "segment_bytes": SEGMENTS_PER_OUTPUT * self.segment_bytes,
            }
            command = [sys.executable, str(Path(__file__).with_name("spark_measurement.py")), json.dumps(asked)]
        family, took_s = run_family(command, self.options.limit_s, on_line)
        if engine == OTHER:
            figures = _figures_of_other("".join(said), took_s, family)
            figures["answer"] = {"bytes_after": log_bytes(directory)}
        else:
            figures = json.loads(said[-1])
            figures["cpu_s"] = family.cpu_s - cpu_before_s
        seconds = figures["seconds"]
        return {
            **figures,
            "gb_per_s": log["gb"] / seconds,
            "records_per_s": log["records"] / seconds,
            "peak_mib": family.peak_mib,
            **(
                {"shuffle_bytes_per_record": figures["shuffle_bytes"] / log["records"]}
                if "shuffle_bytes" in figures
                else {}
            ),
        }


def _figures_of_other(said: str, took_s: float, family: Family) -> dict[str, Any]:
    """Take the times that a command tells in JSON, `wall_s` and `process_cpu_s` anywhere in it; else those of the process."""
    told: dict[str, Any] = {}
    try:
        waiting = [json.loads(said)]
    except ValueError:
        waiting = []
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            told |= {name: value for name, value in found.items() if isinstance(value, int | float)}
            waiting += found.values()
    seconds = told.get("wall_s", took_s)
    return {"start_s": took_s - seconds, "seconds": seconds, "cpu_s": told.get("process_cpu_s", family.cpu_s)}


# -- tables ----------------------------------------------------------------------------------------------------------------

_HEAD = (
    "| log | | start, s | s | GB/s | M records/s | CPU, s | shuffled, bytes per record | peak MiB: driver / JVM / worker |\n"
    "|---|---|---:|---:|---:|---:|---:|---:|---|"
)


def tables(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield lines of Markdown."""
    for what, title in (("clean", "Cleaning"), ("stats", "Counting")):
        of_kind = [row for row in rows if row["what"] == what]
        if of_kind:
            yield from (f"### {title}", "", _HEAD)
            yield from (_line(row) for row in of_kind)
            yield ""
    yield from _break_even_lines([row for row in rows if row["what"] == "clean" and "keys" not in row["log"]])
    yield from _differing_answers(rows)


def _line(row: dict[str, Any]) -> str:
    log = f"{row['log']}, {row['records'] / 1e6:.1f} M records"
    engine = row["engine"] if row["engine"] in (PROCESS, OTHER) else f"Spark `{row['engine']}`"
    if "skipped" in row:
        return f"| {log} | {engine} | {row['skipped']} | | | | | | |"
    peak = row["peak_mib"]
    shuffled = row.get("shuffle_bytes_per_record")
    return (
        f"| {log} | {engine} | {row['start_s']:.1f} | {row['seconds']:.1f} | {row['gb_per_s']:.3f} "
        f"| {row['records_per_s'] / 1e6:.2f} | {row['cpu_s']:.0f} | {'' if shuffled is None else f'{shuffled:.1f}'} "
        f"| {' / '.join(str(peak.get(sort, '-')) for sort in ('driver', 'jvm', 'worker'))} |"
    )


def _break_even_lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    measured = [row for row in rows if "skipped" not in row]
    for cores in (1, 2):
        found = break_even(measured, cores)
        if found is None:
            continue
        yield (
            f"From `local[{cores}]`: S = {found.start_s:.1f} s, R = {found.core:.3f} GB/s for each core, process runner P = "
            f"{found.process:.3f} GB/s. On so many cores Spark is ahead: "
            + ", ".join(f"with {count} {_from_size(found.size_gb(count))}" for count in CORES)
            + "."
        )
        yield from disagreements(found) or ["The runner's own estimate agrees for all sizes and cores that were tried."]
        yield ""


def _from_size(gb: float) -> str:
    return "never" if math.isinf(gb) else f"from {gb:.1f} GB on"


def _differing_answers(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Tell of engines that do not come to the same: then the figures are not to be compared."""
    first: dict[tuple[str, str, str], tuple[str, Any]] = {}
    for row in rows:
        for name, value in row.get("answer", {}).items():
            engine, expected = first.setdefault((row["what"], row["log"], name), (row["engine"], value))
            if value != expected:
                yield f"NOT COMPARABLE: {row['what']} {row['log']}: {name} is {value} by {row['engine']}, {expected} by {engine}"


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--directory", type=Path, required=True, help="where to work; what is made there is removed")
    parser.add_argument("--gb", type=float, nargs="*", default=[1.0], help="sizes of the log, in 10^9 bytes")
    parser.add_argument("--distinct", type=int, default=0, help="how many distinct keys the other log is to have")
    parser.add_argument("--what", nargs="+", choices=("clean", "stats"), default=["clean", "stats"])
    parser.add_argument("--engine", nargs="+", default=[PROCESS, "local[1]", "local[2]"], help="process, or a master")
    parser.add_argument("--distinct-engine", nargs="+", default=[PROCESS, "local[2]"], help="what cleans that one")
    parser.add_argument(
        "--kafka-clean",
        metavar="COMMAND",
        help="another cleaner: a shell command that cleans {dir}; {now} and {segment_bytes} are filled in, too",
    )
    parser.add_argument("--rounds", type=int, default=1, help="how often each is measured, in turns")
    parser.add_argument("--value-bytes", type=int, default=480)
    parser.add_argument("--segment-mb", type=int, default=256, help="size of the log's segments, in MiB")
    parser.add_argument("--driver-memory", default="1g", help="heap of Spark's JVM, which is all there is in local[N]")
    parser.add_argument("--mode", default="prompt")
    parser.add_argument("--limit-s", type=float, default=600, help="the longest that one measurement may take")
    parser.add_argument("--budget-s", type=float, default=math.inf, help="after so long no further one is begun")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    bench = Bench(parser.parse_args())
    bench.run()
    print("\n".join(tables(bench.rows)))


if __name__ == "__main__":
    main()
