"""Measures brokers over the wire; README.md says what and how to compare several."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import coordinators
import wire
from client import INCREMENTAL_ALTER_CONFIGS, Client, batches_of
from figure import Figure
from rich.console import Console
from rich.table import Table

from diamant.protocol.batches.batch import iter_headers
from diamant.protocol.batches.header import Record
from diamant.protocol.batches.records import build_batch, iter_records

DEFAULT_TARGET = "diamant=exec {python} -m diamant.broker.cli start --listen 127.0.0.1:{{port}} --data {{data}}"


class RunningBroker(NamedTuple):
    """A broker that answers, and how long that took."""

    process: subprocess.Popen[bytes]
    port: int
    started_s: float


@contextlib.contextmanager
def running(command: str) -> Iterator[RunningBroker]:
    """Start a broker on a fresh directory, wait until it accepts connections, stop it and remove the directory."""
    place = tempfile.mkdtemp(prefix="diamant-bench-")
    port = _free_port()
    started_s = time.perf_counter()
    with open(f"{place}/output", "wb") as output:
        process = subprocess.Popen(
            command.format(port=port, data=f"{place}/data"),
            shell=True,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        while True:
            with contextlib.suppress(OSError):
                Client(port).socket.close()
                break
            if process.poll() is not None or time.perf_counter() - started_s > 60:
                raise SystemExit(f"{command}: no broker on port {port}:\n{Path(place, 'output').read_text()}")
            time.sleep(0.002)
        yield RunningBroker(process, port, started_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)
        shutil.rmtree(place, ignore_errors=True)


def _free_port() -> int:
    """A port that is free, and the one above it (a Kafka controller's), outside of the range of outgoing connections."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as first, socket.socket() as second, contextlib.suppress(OSError):
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 1))
            return port


def start(broker: RunningBroker) -> Iterator[Figure]:
    """From spawning to the first acknowledged batch."""
    client = Client(broker.port)
    client.create("first")
    client.produce("first", batches_of(100, 1))
    yield Figure("spawn to first acknowledged produce", (time.perf_counter() - broker.node.started_s) * 1000, "ms")
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
    cuts = statistics.quantiles(took, n=100)
    yield Figure("p50", cuts[49], "ms")
    yield Figure("p99", cuts[98], "ms")


def compaction(broker: RunningBroker) -> Iterator[Figure]:
    """From switching compaction on until nothing superseded is left in closed segments."""
    client = Client(broker.port)
    client.create("keyed", segment_bytes="1048576", min_cleanable_dirty_ratio="0.01")
    now_ms = time.time_ns() // 1_000_000
    keys, rounds, per_batch = 10_000, 30, 500
    batches = []
    for first in range(0, keys * rounds, per_batch):
        records = [
            Record(index, now_ms, b"key-%d" % ((first + index) % keys), b"value-%090d" % (first + index))
            for index in range(per_batch)
        ]
        batches.append(bytes(build_batch(records, base_offset=0)))
    client.produce("keyed", batches)
    filler = Record(0, now_ms, b"filler", bytes(900_000))
    client.produce(
        "keyed", [bytes(build_batch([filler._replace(key=b"filler-%d" % n)], base_offset=0)) for n in range(2)]
    )
    change = {"name": "cleanup.policy", "config_operation": 0, "value": "compact"}
    began = time.perf_counter()
    resource = {"resource_type": 2, "resource_name": "keyed", "configs": [change]}
    client.call(INCREMENTAL_ALTER_CONFIGS, {"resources": [resource], "validate_only": False})
    while True:
        live = sum(
            1
            for chunk in client.fetch_all("keyed", keys * rounds + 1)
            for at, header in iter_headers(chunk)
            for record in iter_records(bytes(chunk[at : at + header.size]))
            if record.key is not None and record.key.startswith(b"key-")
        )
        if live <= keys:
            break
        if time.perf_counter() - began > 120:
            raise RuntimeError(f"after 120 s there are {live} records of {keys} keys")
    yield Figure("switched on until clean", time.perf_counter() - began, "s")


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
    "partitions": lambda broker: wire.partitions(broker.port, broker.process.pid),
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
                with running(command) as broker:
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
