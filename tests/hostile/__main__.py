"""Attack a broker case by case: `python -m tests.hostile`. A row for each: what a second client feels of it, and its bounds."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

from tests.hostile.cases import CASES
from tests.hostile.measuring import measured, prepare, target


def main() -> int:
    """Run the chosen cases; 1 if one breaks a bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="*", help="cases whose names have this in them (default: all)")
    parser.add_argument("--small", action="store_true", help="the sizes of the suite")
    parser.add_argument(
        "--realtime",
        action="store_true",
        help="as root: let broker and second client go before all else on the machine",
    )
    given = parser.parse_args()
    chosen = [name for name in CASES if not given.part or any(part in name for part in given.part)]
    broken = 0
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    if given.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    with tempfile.TemporaryDirectory(prefix="diamant-hostile-") as directory, target(Path(directory)) as attacked:
        asyncio.run(prepare(attacked))
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.nice(10)  # the attacker must not take the second client's processor
        for name in chosen:
            case = CASES[name]
            size = case.small if given.small else case.full
            figures = asyncio.run(measured(attacked, name, partial(case.attack, size=size)))
            bounds = figures.broken()
            broken += bool(bounds)
            print(
                f"{name:32} p99 {figures.p99_ms:7.1f} ms, of the broker {figures.computed_ms:6.1f} ms, "
                f"worst {figures.worst_ms:7.1f} of {figures.probes:5}, "
                f"+{figures.growth_bytes >> 20:4} MiB, fds {figures.descriptors_before}->{figures.descriptors_after}, "
                f"log {figures.log_bytes:6}, cpu {figures.cpu_s:5.1f} s, {figures.detail}  "
                f"{'BROKEN: ' + ', '.join(bounds) if bounds else ''}",
                flush=True,
            )
        tracebacks = attacked.process.log.count("Traceback")
        if tracebacks:
            at = attacked.process.log.index("Traceback")
            print(f"{tracebacks} tracebacks: {attacked.process.log[max(0, at - 500) : at + 3000]}")
    return 1 if broken or tracebacks else 0


if __name__ == "__main__":
    sys.exit(main())
