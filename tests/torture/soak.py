"""A broker under a steady load for hours, undisturbed: `python -m tests.torture.soak --for 24h`. It is measured, and drawn.

The load is that of the torture program: its clients and its history, in epochs that each begin with new topics. After an epoch
all is checked. Memory, descriptors and threads have to stay from epoch to epoch.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

from diamant.protocol.errors import ErrorCode
from tests.broker.groups.consumer.consumer_wire import DELETE_GROUPS
from tests.torture.__main__ import seconds
from tests.torture.client_processes import Rate
from tests.torture.history import Finding, History
from tests.torture.producing import Refused, wait_for
from tests.torture.program import GONE, World

EPOCH_S, SAMPLE_S, PAGE_S = 120.0, 10.0, 1.0
CORES = 0.5
"""Of the machine's, what the broker may take."""
PAGES = (
    "/", "/topics", "/topics/state-0", "/topics/state-0/records", "/topics/events-0/0", "/groups", "/groups/group-0", "/history",
    "/people", "/forget", "/faults", "/live/overview", "/live/topics", "/metrics", "/healthz?erasure=true", "/v1/openapi.json",
    "/v1/certificates",
)  # fmt: skip
WARM_UP_S = 3600.0
"""Or a third of a shorter run."""
MAX_SLOPES = {"memory, MB": 1.0, "descriptors": 1.0, "threads": 0.5}
"""By hour. A slope is that of the least in each epoch, less twice its standard error."""
TICKS = os.sysconf("SC_CLK_TCK")


class Sample(NamedTuple):
    """What the broker takes at one moment."""

    at_s: float
    memory_mb: float
    descriptors: int
    threads: int
    disk_mb: float
    processor: float
    """Of one core, since the last sample."""
    half_ms: float
    """Of the produces since the last sample, half were answered within this time."""
    most_ms: float
    """99 of 100."""


COLUMNS = {
    "memory, MB": "memory_mb", "descriptors": "descriptors", "threads": "threads", "disk, MB": "disk_mb",
    "processor, cores": "processor", "produce p50, ms": "half_ms", "produce p99, ms": "most_ms",
}  # fmt: skip


class Meter:
    """Takes samples of a process and a directory."""

    def __init__(self, pid: int, data: Path) -> None:
        self._process = Path(f"/proc/{pid}")
        self._data = data
        self._began = self._last_s = time.monotonic()
        self._used_s = self._processor_s()
        self.latencies_ms: list[float] = []
        self.samples: list[Sample] = []

    def take(self) -> Sample:
        """Take one."""
        now_s, used_s = time.monotonic(), self._processor_s()
        status = dict(line.split(":", 1) for line in (self._process / "status").read_text().splitlines())
        ordered = sorted(self.latencies_ms) or [0.0]
        sample = Sample(
            at_s=now_s - self._began,
            memory_mb=int(status["VmRSS"].split()[0]) / 1024,
            descriptors=len(os.listdir(self._process / "fd")),
            threads=int(status["Threads"]),
            disk_mb=_size(self._data) / 2**20,
            processor=(used_s - self._used_s) / (now_s - self._last_s),
            half_ms=ordered[len(ordered) // 2],
            most_ms=ordered[len(ordered) * 99 // 100],
        )
        self._last_s, self._used_s, self.latencies_ms = now_s, used_s, []
        self.samples.append(sample)
        return sample

    def _processor_s(self) -> float:
        fields = (self._process / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


def _size(data: Path) -> int:
    total = 0
    for place, _, files in os.walk(data):
        for name in files:
            with suppress(FileNotFoundError):
                total += os.stat(f"{place}/{name}").st_size
    return total


class Slope(NamedTuple):
    """A straight line through points: what it rises in an hour, and the standard error of that."""

    by_hour: float
    error: float

    @classmethod
    def of(cls, points: list[tuple[float, float]]) -> Slope:
        """Return that of points in seconds, three at least."""
        middle_s, middle = (statistics.fmean(each) for each in zip(*points, strict=True))
        spread = sum((at_s - middle_s) ** 2 for at_s, _ in points)
        rise = sum((at_s - middle_s) * (value - middle) for at_s, value in points) / spread
        rest = sum((value - middle - rise * (at_s - middle_s)) ** 2 for at_s, value in points)
        return cls(rise * 3600, (rest / max(1, len(points) - 2) / spread) ** 0.5 * 3600)


def slopes(samples: list[Sample], warm_up_s: float) -> dict[str, Slope]:
    """Return the slope of each column after the warm-up, of its least in each epoch; none for less than three epochs."""
    epochs: dict[int, list[Sample]] = {}
    for sample in samples:
        if sample.at_s >= warm_up_s:
            epochs.setdefault(int(sample.at_s // EPOCH_S), []).append(sample)
    if len(epochs) < 3:
        return {}
    return {
        label: Slope.of(
            [
                (statistics.median(one.at_s for one in each), min(getattr(one, name) for one in each))
                for each in epochs.values()
            ]
        )
        for label, name in COLUMNS.items()
    }


def draw(samples: list[Sample]) -> str:
    """Return a picture with a line for each column, each to its own scale."""
    width, height, left = 860, 110, 20
    last_s = max(samples[-1].at_s, 1)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height * len(COLUMNS)}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{height * len(COLUMNS)}" fill="#fff"/>',
    ]
    for row, (label, name) in enumerate(COLUMNS.items()):
        values = [getattr(sample, name) for sample in samples]
        scale = (height - 40) / (max(values) or 1)
        bottom = (row + 1) * height - 10
        points = " ".join(
            f"{left + sample.at_s / last_s * (width - 2 * left):.1f},{bottom - value * scale:.1f}"
            for sample, value in zip(samples, values, strict=True)
        )
        text = f"{label}: {min(values):.1f} to {max(values):.1f}, in {last_s / 3600:.2f} h"
        lines += [
            f'<text x="{left}" y="{bottom - height + 30}">{text}</text>',
            f'<polyline points="{points}" fill="none" stroke="#0072b2"/>',
            f'<path d="M{left} {bottom}H{width - left}" stroke="#52606d"/>',
        ]
    return "\n".join((*lines, "</svg>", ""))


class Soak:
    """One run: epochs of steps at a rate that leaves the broker its part of a core."""

    def __init__(self, seed: int, place: Path, cores: float) -> None:
        self.world = World(seed, place, None)
        for kind in ("fork", "large"):  # their memory is not that of the load
            self.world.steps.pop(kind, None)
        self._rng = random.Random(seed)
        self._cores = cores
        clients = self.world.clients
        clients.rate = Rate(sys.maxsize, clients.rate.pause_s * CORES / cores)
        self._pause_s = 0.01
        self.pages_cut = 0

    async def run(self, duration_s: float, report: Path) -> list[Sample]:
        """Run for a time, at least one epoch; Finding. After each epoch the report is written."""
        world = self.world
        with world.broker:
            await world.start()
            meter = Meter(world.broker.process.pid, world.data)
            began = time.monotonic()
            try:
                while not meter.samples or time.monotonic() - began < duration_s:
                    await world.prepare()
                    await self._epoch(meter)
                    await self._settle()
                    world.look_at_log(None)
                    report.with_suffix(".svg").write_text(draw(meter.samples))
                    rows = [
                        ",".join(("s", *COLUMNS)),
                        *(",".join(f"{value:.3f}" for value in one) for one in meter.samples),
                    ]
                    report.with_suffix(".csv").write_text("\n".join(rows) + "\n")
                    print(
                        f"{time.monotonic() - began:.0f} s, {self.pages_cut} pages cut: {meter.samples[-1]}", flush=True
                    )
            finally:
                await world.close()
        return meter.samples

    async def _epoch(self, meter: Meter) -> None:
        """Take steps, and look at pages."""
        world = self.world
        world.clients.start(with_java=False)
        end = sample_at = page_at = time.monotonic()
        end += EPOCH_S
        while time.monotonic() < end:
            began = time.monotonic()
            try:
                if await world.step() == "send":
                    meter.latencies_ms.append((time.monotonic() - began) * 1000)
            except Refused as error:
                world.note(error)
            except GONE as error:
                if isinstance(error, TimeoutError) or not world.broker.process.is_running:
                    raise Finding(f"the broker is gone, or does not answer: {error!r}") from error
                await world.disconnect()
            if began >= page_at:
                page_at = began + PAGE_S
                await asyncio.to_thread(self._look_at_page, self._rng.choice(PAGES))
            if began >= sample_at:
                sample_at = began + SAMPLE_S
                taken = meter.take()
                self._pause_s = min(1, max(0.001, self._pause_s * (1.3 if taken.processor > self._cores else 0.8)))
            await self._wait_for_turn()

    async def _wait_for_turn(self) -> None:
        await asyncio.sleep(self._pause_s)

    def _look_at_page(self, page: str) -> None:
        try:
            with urllib.request.urlopen(self.world.admin.http + page, timeout=60) as answer:
                answer.read1(1 << 16) if page.startswith("/live") else answer.read()
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.NOT_FOUND:  # as long as there is no group
                raise Finding(f"{page}: {error.code} {error.read()[:1000]!r}") from error
        except (OSError, HTTPException):
            self.pages_cut += 1  # ten seconds were not enough on a busy machine

    async def _settle(self) -> None:
        """Check all, go back to a snapshot, check again, and remove topics and groups."""
        world = self.world
        await world.join()
        await world.finish()
        await world.clients.stop(world.history)
        await world.check()
        await world.go_back()
        for _ in range(20):
            with suppress(Refused):
                await world.step()
        await world.join()
        await world.finish()
        await world.go_back()
        await world.check()
        wire = await world.wire()
        groups = {group for group, _ in world.history.offsets} | {one.group for one in world.transactions}
        for name, topic in world.history.topics.items():
            if topic.is_deleted is False:
                await wait_for(lambda name=name: world.admin.run(wire, world.admin.delete(name)))  # type: ignore[misc]
        answer = await wire.call(DELETE_GROUPS, 2, {"groups_names": sorted(groups)})
        codes = {ErrorCode(int(one.error_code)).name for one in answer.results}
        if not codes <= {"NONE", "GROUP_ID_NOT_FOUND"}:
            raise Finding(f"DeleteGroups: {codes}")
        world.history = world.admin.history = History(certified=world.history.certified)
        world.snapshot = None
        await world.admin.drop_snapshots()


def main() -> int:
    """Run, report, and say what rises; 1 if something does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--for", dest="duration", type=seconds, default=3600.0, metavar="TIME")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--cores",
        type=float,
        default=CORES,
        help="what the broker may take (default: %(default)s); less for several at once",
    )
    parser.add_argument(
        "--report", type=Path, default=Path("build/soak"), help="of a .csv and an .svg (default: build/soak)"
    )
    given = parser.parse_args()
    given.report.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="diamant-soak-"))
    samples = asyncio.run(Soak(given.seed, place, given.cores).run(given.duration, given.report))
    shutil.rmtree(place)
    warm_up_s = min(WARM_UP_S, given.duration / 3)
    risen = []
    for label, slope in slopes(samples, warm_up_s).items():
        print(f"{label}: {slope.by_hour:+.2f} ± {slope.error:.2f} an hour after {warm_up_s:.0f} s")
        if slope.by_hour - 2 * slope.error > MAX_SLOPES.get(label, float("inf")):
            risen.append(label)
    print(f"{given.report}.svg; {f'rises: {risen}' if risen else 'nothing rises'}")
    return 1 if risen else 0


if __name__ == "__main__":
    sys.exit(main())
