"""One round of the cleaner over a directory, without a broker: values of two sizes in three codecs, mode kafka."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from figure import Figure
from made_log import START_MS, Batches, Written, copy_of, overwritten_keys, write_log

from diamant.cleaner.offline.offline_clean import (
    Engine,
    PartitionSettings,
    clean_partition,
    compiled_engine,
    process_engine,
)
from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.rules.plan_of_log import CleanerSettings
from diamant.cleaner.rules.result import CleanResult, OnOutput
from diamant.protocol.batches.compression import LZ4, NONE, ZSTD
from diamant.storage.env.clocks import SettableClock
from diamant.storage.env.env import Env, RealEnv
from diamant.storage.segments.log_config import LogConfig

NOW_MS = START_MS + 1000
BATCH_BYTES = 16 * 1024
SEGMENT_BYTES = 256 * 1024 * 1024
CODECS = {"none": NONE, "lz4": LZ4, "zstd": ZSTD}
KINDS = ((2_000_000, 100), (400_000, 1024))
"""Records of a log, bytes of a value."""


class Took(NamedTuple):
    """Seconds of one round."""

    cpu_s: float
    wall_s: float


def cleaning(directory: Path, scale: float, command: str | None) -> Iterator[Figure]:
    """Records per second of this process's time by the compiled engine, and on the clock by a worker process; or of `command`."""
    copy = directory / "copy" / "bench-0"
    warm = write_log(directory / "warm-0", Batches(100, 100), 1000, overwritten_keys(), SEGMENT_BYTES)
    clean(copy_of(directory / "warm-0", copy), warm, compiled_engine)
    for (whole, value_bytes), codec in itertools.product(KINDS, CODECS):
        records = max(1, int(whole * scale))
        name, log = f"{records:,} of {value_bytes} B, {codec}", directory / f"{codec}{value_bytes}-0"
        batches = Batches(value_bytes, BATCH_BYTES // (value_bytes + 24), CODECS[codec])
        written = write_log(log, batches, records, overwritten_keys(), SEGMENT_BYTES)
        if command:
            cpu_s, wall_s = clean_by(command, copy_of(log, copy))
        else:
            cpu_s = clean(copy_of(log, copy), written, compiled_engine).cpu_s
            wall_s = clean(copy_of(log, copy), written, process_engine).wall_s
        shutil.rmtree(log)
        yield Figure(f"{name}: per CPU second", written.records / 1000 / cpu_s, "k/s")
        yield Figure(f"{name}: on the clock, in a worker process", written.records / 1000 / wall_s, "k/s")


def clean(directory: Path, written: Written, engine: Engine, mode: str = "kafka") -> Took:
    """Clean the whole of a partition: the time from the plan to the last output in its place."""
    took: list[Took] = []

    def clocked(env: Env, plan: CleanPlan, on_output: OnOutput) -> CleanResult:
        cpu_s, began = time.process_time(), time.perf_counter()
        result = engine(env, plan, on_output)
        took.append(Took(time.process_time() - cpu_s, time.perf_counter() - began))
        return result

    report = clean_partition(
        RealEnv(SettableClock(NOW_MS)),
        str(directory),
        PartitionSettings(
            LogConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=4 * SEGMENT_BYTES),
            CleanerSettings(mode=mode, hash_key=bytes(16)),
            86_400_000,
        ),
        force=True,
        engine=clocked,
    )
    assert report.result
    assert report.result.stats.messages_written == written.keys
    return took[0]


def clean_by(command: str, directory: Path) -> Took:
    """Have another cleaner do it, which prints JSON with `process_cpu_s` and `wall_s` anywhere in it."""
    filled = command.format(dir=directory, now=NOW_MS, segment_bytes=4 * SEGMENT_BYTES)
    done = subprocess.run(filled, shell=True, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S602  (a shell's line)
    found = dict(re.findall(r'"(process_cpu_s|wall_s)"\s*:\s*([0-9.]+)', done.stdout))
    return Took(float(found["process_cpu_s"]), float(found["wall_s"]))
