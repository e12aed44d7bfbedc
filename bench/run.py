"""Measures brokers over the wire; README.md says what and how to compare several."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import coordinators
import library
import restarts
import wire
from client import Client, batches_of
from compaction import compaction
from figure import Figure
from rich.console import Console
from rich.table import Table
from running_broker import RunningBroker, running

from diamant.protocol.batches.batch import iter_headers

DEFAULT_TARGET = "diamant=exec {python} -m diamant.broker.cli start --listen 127.0.0.1:{{port}} --data {{data}}"


def start(broker: RunningBroker) -> Iterator[Figure]:
    """From spawning to the first acknowledged batch."""
    client = Client(broker.port)
    client.create("first")
    client.produce("first", batches_of(100, 1))
    yield Figure("spawn to first acknowledged produce", (time.perf_counter() - broker.started_s) * 1000, "ms")
    status = Path(f"/proc/{broker.process.pid}/status")
    if status.exists():
        resident = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
        yield Figure("resident memory", int(resident.split()[1]) / 1024, "MB")


def produce_and_consume(broker: RunningBroker, wanted: str) -> Iterator[Figure]:
    """Write messages of two sizes, and read them back."""
    client = Client(broker.port)
    for value_bytes, total_bytes in ((1000, 300_000_000), (100, 100_000_000)):
        topic = f"messages-{value_bytes}"
        client.create(topic)
        batches = batches_of(value_bytes, total_bytes // value_bytes)
        warm = batches[: len(batches) // 4]
        client.produce(topic, warm)
        began = time.perf_counter()
        client.produce(topic, batches)
        took = time.perf_counter() - began
        if wanted == "produce":
            yield Figure(f"{value_bytes} B", total_bytes / 1e6 / took, "MB/s")
            continue
        end = sum(next(iter_headers(batch))[1].record_count for batch in warm + batches)
        began = time.perf_counter()
        size = sum(len(records) for records in client.fetch_all(topic, end))
        yield Figure(f"{value_bytes} B", size / 1e6 / (time.perf_counter() - began), "MB/s")


def latency(broker: RunningBroker) -> Iterator[Figure]:
    """One message at a time."""
    client = Client(broker.port)
    client.create("single")
    batch = batches_of(100, 1)
    client.produce("single", batch * 1000)
    took = []
    for _ in range(5000):
        began = time.perf_counter()
        client.produce("single", batch)
        took.append((time.perf_counter() - began) * 1000)
    cuts = statistics.quantiles(took, n=1000)
    yield Figure("p50", cuts[499], "ms")
    yield Figure("p99", cuts[989], "ms")
    yield Figure("p999", cuts[998], "ms")


CASES: dict[str, Callable[[RunningBroker], Iterator[Figure]]] = {
    "start": start,
    "produce": lambda broker: produce_and_consume(broker, "produce"),
    "consume": lambda broker: produce_and_consume(broker, "consume"),
    "latency": latency,
    "compaction": compaction,
    "idle": lambda broker: wire.idle(broker.process),
    "raw": lambda broker: wire.raw(broker.port, broker.process.pid),
    "codecs": lambda broker: wire.codecs(broker.port, broker.process.pid),
    "connections": lambda broker: wire.connections(broker.port, broker.process.pid),
    "partitions": restarts.partitions,
    "recovery": restarts.recovery,
    "librdkafka": library.librdkafka,
    "end-to-end": library.end_to_end,
    "groups": lambda broker: coordinators.groups(broker.port, broker.process.pid),
    "commits": lambda broker: coordinators.commits(broker.port),
    "transactions": lambda broker: coordinators.transactions(broker.port),
}


def main() -> None:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", action="append", metavar="NAME=COMMAND", help="a broker; several take turns")
    parser.add_argument("--case", action="append", choices=CASES, help="only this case; may be given several times")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of amounts, where README.md says so: 0.1 for a tenth")
    parser.add_argument("--json", metavar="FILE", help="write every single figure there")
    arguments = parser.parse_args()
    targets = dict(
        target.split("=", 1) for target in arguments.target or [DEFAULT_TARGET.format(python=sys.executable)]
    )
    figures: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    console = Console(stderr=True)
    for round_ in range(arguments.rounds):
        for case in arguments.case or CASES:
            for name, command in targets.items():
                console.print(f"round {round_ + 1} of {arguments.rounds}: {case}, {name}", highlight=False)
                with running(command, arguments.scale) as broker:
                    for figure in CASES[case](broker):
                        row = figures.setdefault((case, figure.name, figure.unit), {})
                        row.setdefault(name, []).append(figure.value)
    table = Table("case", "figure", "unit", *targets)
    for (case, name, unit), row in figures.items():
        cells = [f"{statistics.median(v):,.4g} [{min(v):,.4g}..{max(v):,.4g}]" for v in (row[key] for key in targets)]
        table.add_row(case, name, unit, *cells)
    Console().print(table)
    if arguments.json:
        rows = [{"case": key[0], "figure": key[1], "unit": key[2], "values": row} for key, row in figures.items()]
        Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
