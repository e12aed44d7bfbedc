"""Torture Diamant for a time, seed after seed: `python -m tests.torture --for 10m --seed 1`. Findings name their seed."""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.torture.history import Finding
from tests.torture.power_loss import lose_power
from tests.torture.program import Figures, torture
from tests.torture.shim import can_compile, compiled
from tests.torture.small_disk import leave_namespace

ROUNDS = 12
SMALL_EVERY = 4
"""Every so many seeds the data directory is a small file system, if one can be mounted."""
STEPS, POINTS = 30, 60
"""Of a seed that loses power."""
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> float:
    """Read `90s`, `10m`, `2h` or `1d`."""
    found = re.fullmatch(r"(\d+)([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text}: expected a number and s, m, h or d, as in 10m")
    return int(found[1]) * UNITS[found[2]]


def one_seed(
    seed: int, root: Path, library: Path | None, rounds: int, loses_power: bool, without: frozenset[int] = frozenset()
) -> Figures:
    """Run a seed in a directory of its own, which stays if there is a finding."""
    place = root / f"seed-{seed}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    if library is not None and loses_power:
        points = asyncio.run(lose_power(seed, place, library, steps=STEPS, points=POINTS))
        figures = Figures(seeds=1, power_losses=points)
    else:
        with_small_disk = seed % SMALL_EVERY == 1 and leave_namespace()
        figures = asyncio.run(
            torture(seed, place, library, rounds=rounds, without=without, with_small_disk=with_small_disk)
        )
    shutil.rmtree(place)
    return figures


def needed(seed: int, root: Path, library: Path | None, rounds: int) -> list[int]:
    """Return the rounds whose disturbances a finding needs: each is left out, and stays out if it is found anyway."""
    without: frozenset[int] = frozenset()
    for number in range(rounds):
        try:
            one_seed(seed, root, library, rounds, False, without | {number})
        except Finding:
            without |= {number}
    return sorted(set(range(rounds)) - without)


def main() -> int:
    """Run seeds one after another until the time is over; 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--for", dest="duration", type=seconds, default=600.0, metavar="TIME")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--seeds", type=int, default=1 << 30, help="how many at most")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="disturbances of a seed")
    parser.add_argument(
        "--power-every", type=int, default=4, metavar="N", help="every N-th seed loses power (default: 4)"
    )
    parser.add_argument("--place", type=Path, help="where to put data directories (default: a temporary one)")
    parser.add_argument("--shrink", action="store_true", help="say which rounds a finding needs; takes a run for each")
    parser.add_argument("--first", action="store_true", help="end with the first finding")
    given = parser.parse_args()
    root = given.place or Path(tempfile.mkdtemp(prefix="diamant-torture-"))
    root.mkdir(parents=True, exist_ok=True)
    library = compiled(root) if can_compile() else None
    if library is None:
        print("no gcc: kills alone, no faults at chosen calls")
    total, findings = Figures(), list[int]()
    began = time.monotonic()
    for seed in range(given.seed, given.seed + given.seeds):
        if time.monotonic() - began > given.duration or (findings and given.first):
            break
        try:
            total.add(one_seed(seed, root, library, given.rounds, seed % given.power_every == 0))
        except Exception as error:
            findings.append(seed)
            print(f"FOUND seed {seed}: {type(error).__name__}: {error}")
            traceback.print_exc(file=sys.stdout)
            print(f"  its files: {root / f'seed-{seed}'}; again: make torture FOR=1s SEED={seed}", flush=True)
            if given.shrink:
                print(f"  needs the disturbances of rounds {needed(seed, root, library, given.rounds)}", flush=True)
        print(f"{time.monotonic() - began:.0f} s, seed {seed}: {total}", flush=True)
    print(f"{len(findings)} findings: {findings}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
