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
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import coordinators
from figure import Figure
from kio.serial import entity_reader
from rich.console import Console
from rich.table import Table

from diamant.protocol.apis import request_header_version, response_header_version
from diamant.protocol.batch import iter_headers
from diamant.protocol.records import Record, build_batch, iter_records
from diamant.protocol.schemas import encode_request_fields, response_class

PRODUCE, FETCH, CREATE_TOPICS, INCREMENTAL_ALTER_CONFIGS = 0, 1, 19, 44
VERSIONS = {PRODUCE: 9, FETCH: 12, CREATE_TOPICS: 5, INCREMENTAL_ALTER_CONFIGS: 1}
IN_FLIGHT = 5
BATCH_BYTES = 100_000
DEFAULT_TARGET = "diamant=exec {python} -m diamant.broker.cli start --listen 127.0.0.1:{{port}} --data {{data}}"


class Client:
    """One blocking connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, api_key: int, body: bytes) -> None:
        """Send a request."""
        version = VERSIONS[api_key]
        header = struct.pack(">hhih", api_key, version, 1, -1)
        header += b"\0" if request_header_version(api_key, version) == 2 else b""
        self.socket.sendall(struct.pack(">i", len(header) + len(body)) + header + body)

    def receive(self, api_key: int) -> Any:
        """Wait for an answer and decode it."""
        (size,) = struct.unpack(">i", self._read(4))
        frame = self._read(size)
        start = 4 + response_header_version(api_key, VERSIONS[api_key])
        return entity_reader(response_class(api_key, VERSIONS[api_key]))(bytes(frame), start)[0]

    def call(self, api_key: int, fields: dict[str, Any]) -> Any:
        """Send a request and wait for its answer."""
        self.send(api_key, encode_request_fields(api_key, VERSIONS[api_key], fields))
        return self.receive(api_key)

    def create(self, topic: str, **configs: str) -> None:
        """Create a topic of one partition (configs with underscores for dots)."""
        settings = [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()]
        wanted = {"name": topic, "num_partitions": 1, "replication_factor": 1, "configs": settings}
        answer = self.call(CREATE_TOPICS, {"topics": [wanted], "timeout_ms": 30_000})
        if answer.topics[0].error_code:
            raise RuntimeError(f"create {topic}: {answer.topics[0].error_code} {answer.topics[0].error_message}")

    def produce(self, topic: str, batches: list[bytes], in_flight: int = IN_FLIGHT) -> None:
        """Send all batches, acks=all, and wait until they are acknowledged."""
        waiting = 0
        for batch in batches:
            if waiting == in_flight:
                self._acknowledged()
                waiting -= 1
            self.send(PRODUCE, encode_request_fields(PRODUCE, VERSIONS[PRODUCE], _produce_fields(topic, batch)))
            waiting += 1
        for _ in range(waiting):
            self._acknowledged()

    def fetch_all(self, topic: str, end: int) -> Iterator[memoryview]:
        """Yield record sets from the beginning up to offset `end`."""
        offset = 0
        while offset < end:
            answer = self.call(FETCH, _fetch_fields(topic, offset))
            partition = answer.responses[0].partitions[0]
            if partition.error_code:
                raise RuntimeError(f"fetch of {topic} at {offset}: {partition.error_code}")
            yield memoryview(partition.records)
            for _, header in iter_headers(partition.records):
                offset = max(offset, header.next_offset)

    def _acknowledged(self) -> None:
        result = self.receive(PRODUCE).responses[0].partition_responses[0]
        if result.error_code:
            raise RuntimeError(f"produce: {result.error_code} {result.error_message}")

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = self.socket.recv_into(view)
            if not count:
                raise ConnectionError("the broker closed the connection")
            view = view[count:]
        return data


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
    cuts = statistics.quantiles(took, n=100)
    yield Figure("p50", cuts[49], "ms")
    yield Figure("p99", cuts[98], "ms")


def compaction(broker: RunningBroker) -> Iterator[Figure]:
    """From switching compaction on until nothing superseded is left in closed segments."""
    client = Client(broker.port)
    settings = {"segment_bytes": "1048576", "min_cleanable_dirty_ratio": "0.01"}
    client.create("keyed", **settings)
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
    "groups": lambda broker: coordinators.groups(broker.port, broker.process.pid),
    "commits": lambda broker: coordinators.commits(broker.port),
    "transactions": lambda broker: coordinators.transactions(broker.port),
}


def batches_of(value_bytes: int, count: int) -> list[bytes]:
    """Batches of about BATCH_BYTES with `count` messages in all; only a few differ."""
    per_batch = max(1, min(count, BATCH_BYTES // value_bytes))
    now_ms = time.time_ns() // 1_000_000
    pool = [
        bytes(
            build_batch([Record(n, now_ms, b"key", os.urandom(value_bytes)) for n in range(per_batch)], base_offset=0)
        )
        for _ in range(min(20, max(1, count // per_batch)))
    ]
    return [pool[n % len(pool)] for n in range(max(1, count // per_batch))]


def _produce_fields(topic: str, batch: bytes) -> dict[str, Any]:
    partition = {"index": 0, "records": batch}
    return {
        "transactional_id": None,
        "acks": -1,
        "timeout_ms": 30_000,
        "topic_data": [{"name": topic, "partition_data": [partition]}],
    }


def _fetch_fields(topic: str, offset: int) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    return {
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 50 << 20,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [partition]}],
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
