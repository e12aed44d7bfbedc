"""Takes one measurement and prints its figures in JSON: `python bench/measure.py NAME [--scale S] [--command COMMAND]`.

Each is taken in a process of its own, so that another checkout can be measured by the same code: `PYTHONPATH` says which.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import cleaning
import compact_on_demand
import compaction
import coordinators
import erase
import library
import restarts
import secured
import spark
import wire
from figure import Figure
from listeners import SASL_SSL, SSL
from processes import RunningBroker, running

OUR_BROKER = f"exec {sys.executable} -m diamant.broker.cli start --listen 127.0.0.1:{{port}} --data {{data}}"
OUR_SECURED_BROKER = f"exec {sys.executable} -m diamant.broker.cli start --config {{properties}} --data {{data}}"

OF_BROKERS: Mapping[str, Callable[[RunningBroker], Iterator[Figure]]] = {
    "start": wire.start,
    "raw": wire.raw,
    "codecs": wire.codecs,
    "latency": wire.latency,
    "connections": wire.connections,
    "partitions": restarts.partitions,
    "recovery": restarts.recovery,
    "librdkafka": library.librdkafka,
    "end-to-end": library.end_to_end,
    "commits": coordinators.commits,
    "committed": restarts.committed,
    "transactions": coordinators.transactions,
    "groups": coordinators.groups,
    "compaction": compaction.compaction,
}
"""Of a broker that runs: ours, or another that a command with `{port}` and `{data}` starts."""
OF_SECURED_BROKERS: Mapping[str, Callable[[RunningBroker], Iterator[Figure]]] = {
    "tls": lambda broker: secured.secured(broker, SSL),
    "sasl-ssl": lambda broker: secured.secured(broker, SASL_SSL),
}
"""Of a broker with TLS: ours, or another whose command takes `{properties}`, too."""
OF_CLEANERS: Mapping[str, Callable[[Path, float, str | None], Iterator[Figure]]] = {
    "cleaning": cleaning.cleaning,
    "process": spark.by_process,
}
"""Of a cleaner of directories: ours, or another that a command with `{dir}`, `{now}` and `{segment_bytes}` runs."""
OF_DIAMANT: Mapping[str, Callable[[Path, float], Iterator[Figure]]] = {
    "compact-and-wait": compact_on_demand.compact_and_wait,
    "erase": erase.erase,
    "spark-1": lambda directory, scale: spark.on_spark(directory, scale, 1),
    "spark-2": lambda directory, scale: spark.on_spark(directory, scale, 2),
    "spark-divided": lambda directory, scale: spark.on_spark(directory, scale, 2, is_divided=True),
}
MEASUREMENTS = (*OF_BROKERS, *OF_SECURED_BROKERS, *OF_CLEANERS, *OF_DIAMANT)
ON_REQUEST = ("spark-1", "spark-divided")
"""Left out unless named: with it all of them would take more than ten minutes."""


def can_measure(name: str, command: str | None) -> bool:
    """Tell whether a measurement knows what to do with a command."""
    if command is None:
        return True
    if "{dir}" in command:
        return name in OF_CLEANERS
    return name in OF_BROKERS or (name in OF_SECURED_BROKERS and "{properties}" in command)


def measure(name: str, scale: float, command: str | None = None) -> list[Figure]:
    """Take a measurement, in a directory that is removed in the end."""
    if name in OF_BROKERS:
        with running(command or OUR_BROKER, scale) as broker:
            return list(OF_BROKERS[name](broker))
    if name in OF_SECURED_BROKERS:
        with running(command or OUR_SECURED_BROKER, scale) as broker:
            return list(OF_SECURED_BROKERS[name](broker))
    with tempfile.TemporaryDirectory(prefix="diamant-bench-") as directory:
        if name in OF_CLEANERS:
            return list(OF_CLEANERS[name](Path(directory), scale, command))
        return list(OF_DIAMANT[name](Path(directory), scale))


def main() -> None:
    """Print a list of figures as the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=MEASUREMENTS)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--command")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    print(json.dumps(measure(arguments.name, arguments.scale, arguments.command)))


if __name__ == "__main__":
    main()
