"""Fuzz for a time, target after target: `python -m tests.fuzz --for 10m --seed 1`. Findings name the seed that repeats them."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.targets import TARGETS
from tests.torture.__main__ import seconds


class Total(NamedTuple):
    """The inputs of a target, and the processor time that they took."""

    inputs: int = 0
    cpu_s: float = 0.0

    def plus(self, inputs: int, cpu_s: float) -> Total:
        """Return the sum."""
        return Total(self.inputs + inputs, self.cpu_s + cpu_s)


def main() -> int:
    """Run seeds of all targets in turn until the time is over; 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="*", choices=[[], *TARGETS], help="default: all")
    parser.add_argument("--for", dest="duration", type=seconds, default=600.0, metavar="TIME")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--seeds", type=int, default=1 << 30, help="how many at most")
    parser.add_argument("--totals", type=Path, help="a file to add the counts to; the sums of it are printed, too")
    given = parser.parse_args()
    os.nice(19)
    until_s = time.monotonic() + given.duration
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored in the background
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    totals, findings = dict[str, Total](), list[str]()
    try:
        run(given, until_s, totals, findings)
    except KeyboardInterrupt:
        print("interrupted; the seed in progress is not counted")
    show(totals)
    if given.totals is not None:
        with given.totals.open("a") as file:
            file.writelines(f"{name} {total.inputs} {total.cpu_s:.1f}\n" for name, total in totals.items())
        print(f"all runs in {given.totals}:")
        show(sums(given.totals.read_text()))
    print(f"{len(findings)} findings: {findings}")
    return 1 if findings else 0


def run(given: argparse.Namespace, until_s: float, totals: dict[str, Total], findings: list[str]) -> None:
    """Run seeds of all targets in turn until the time is over."""
    for seed in range(given.seed, given.seed + given.seeds):
        for name in given.target or TARGETS:
            if time.monotonic() > until_s:
                return
            began_s, inputs = time.process_time(), 0
            try:
                inputs = asyncio.run(TARGETS[name](seed))
            except Exception:
                findings.append(f"{name} --seed {seed}")
                traceback.print_exc(file=sys.stdout)
            totals[name] = totals.get(name, Total()).plus(inputs, time.process_time() - began_s)


def sums(lines: str) -> dict[str, Total]:
    """Return the totals of the lines of a file: target, inputs, seconds of processor time."""
    found = dict[str, Total]()
    for name, inputs, cpu_s in map(str.split, lines.splitlines()):
        found[name] = found.get(name, Total()).plus(int(inputs), float(cpu_s))
    return found


def show(totals: dict[str, Total]) -> None:
    """Print a line for each target."""
    for name, (inputs, cpu_s) in totals.items():
        rate = inputs / cpu_s if cpu_s else 0
        print(f"{name:14} {inputs:10} inputs in {cpu_s / 3600:8.3f} hours of processor time, {rate:6.0f} per second")


if __name__ == "__main__":
    sys.exit(main())
