"""Fuzz for a time, target after target: `python -m tests.fuzz --for 10m --seed 1`. Findings name the seed that repeats them."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
import traceback

from tests.fuzz.targets import TARGETS
from tests.torture.__main__ import seconds


def main() -> int:
    """Run seeds of all targets in turn until the time is over; 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="*", choices=[[], *TARGETS], help="default: all")
    parser.add_argument("--for", dest="duration", type=seconds, default=600.0, metavar="TIME")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--seeds", type=int, default=1 << 30, help="how many at most")
    given = parser.parse_args()
    os.nice(19)
    until_s = time.monotonic() + given.duration
    counts, cpu_s, findings = dict[str, int](), dict[str, float](), list[str]()
    for seed in range(given.seed, given.seed + given.seeds):
        for name in given.target or TARGETS:
            if time.monotonic() > until_s:
                break
            began_s = time.process_time()
            try:
                counts[name] = counts.get(name, 0) + asyncio.run(TARGETS[name](seed))
            except Exception:
                findings.append(f"{name} --seed {seed}")
                traceback.print_exc(file=sys.stdout)
            cpu_s[name] = cpu_s.get(name, 0) + time.process_time() - began_s
        if time.monotonic() > until_s:
            break
    for name, count in counts.items():
        print(f"{name:12} {count:10} inputs in {cpu_s[name] / 60:6.1f} minutes of processor time")
    print(f"{len(findings)} findings: {findings}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
