"""Measures one round of the cleaner in mode kafka, over values of two sizes in three codecs; README.md says how."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from made_log import START_MS, Keys, log_bytes, make_active, overwritten_keys
from rich.console import Console
from rich.table import Table

from diamant.cleaner.offline.clean import Engine, clean_partition, compiled_engine, process_engine
from diamant.cleaner.rules.planning import CleanerSettings
from diamant.protocol.batches.compression import LZ4, NONE, ZSTD
from diamant.protocol.batches.header import Record
from diamant.protocol.batches.records import build_batch
from diamant.storage.env.clock import SettableClock
from diamant.storage.env.env import RealEnv
from diamant.storage.segments.log_config import LogConfig

NOW_MS = START_MS + 1000
BATCH_BYTES = 16 * 1024
SEGMENT_BYTES = 256 * 1024 * 1024
CODECS = {"none": NONE, "lz4": LZ4, "zstd": ZSTD}
KINDS = ((100, 10_000_000), (1024, 2_000_000))
"""Bytes of a value, and records of a whole log."""


class Took(NamedTuple):
    """Seconds of one round."""

    cpu_s: float
    wall_s: float


def write_log(directory: Path, value_bytes: int, records: int, codec: int, keys: Keys) -> int:
    """Write closed segments with offset indexes, and an empty active one; how many records there are."""
    directory.mkdir(parents=True)
    per_batch = max(1, BATCH_BYTES // (value_bytes + 24))
    noise = np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8).tobytes().hex().encode()
    offset = 0
    while offset < records:
        base, position = offset, 0
        with (directory / f"{base:020d}.log").open("xb") as log, (directory / f"{base:020d}.index").open("xb") as index:
            while position < SEGMENT_BYTES and offset < records:
                taken = [(n * value_bytes % (1 << 20), key) for n, key in enumerate(keys(offset, per_batch), offset)]
                built = [
                    Record(offset + n, START_MS, b"key-%012d" % key, noise[at : at + value_bytes])
                    for n, (at, key) in enumerate(taken)
                ]
                batch = build_batch(built, base_offset=offset, leader_epoch=0, codec=codec)
                if position:
                    index.write((offset - base + per_batch - 1).to_bytes(4, "big") + position.to_bytes(4, "big"))
                log.write(batch)
                position += len(batch)
                offset += per_batch
        (directory / f"{base:020d}.timeindex").touch()
    make_active(directory, offset)
    return offset


def copy_of(source: Path, target: Path) -> Path:
    """Copy a log; `.log` files are links, since who cleans a log never writes to those that are closed."""
    shutil.rmtree(target.parent, ignore_errors=True)
    target.mkdir(parents=True)
    for path in source.iterdir():
        (os.link if path.suffix == ".log" and path.stat().st_size else shutil.copyfile)(path, target / path.name)
    return target


def clean(directory: Path, engine: Engine) -> Took:
    """Clean the whole of a partition."""
    cpu_s, began = time.process_time(), time.perf_counter()
    report = clean_partition(
        RealEnv(SettableClock(NOW_MS)),
        str(directory),
        LogConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=4 * SEGMENT_BYTES),
        CleanerSettings(mode="kafka", hash_key=bytes(16)),
        producer_expiration_ms=86_400_000,
        is_forced=True,
        engine=engine,
    )
    assert report.is_cleaned
    return Took(time.process_time() - cpu_s, time.perf_counter() - began)


def clean_by(command: str, directory: Path) -> Took:
    """Have another cleaner do it; it prints JSON with `process_cpu_s` and `wall_s` anywhere in it."""
    filled = command.format(dir=directory, now=NOW_MS, segment_bytes=4 * SEGMENT_BYTES)
    done = subprocess.run(filled, shell=True, check=True, stdout=subprocess.PIPE, text=True)
    found = dict(re.findall(r'"(process_cpu_s|wall_s)":\s*([0-9.]+)', done.stdout))
    return Took(float(found["process_cpu_s"]), float(found["wall_s"]))


def main() -> None:
    """Write each log, clean copies of it in turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--directory", type=Path, required=True, help="where logs are written; three times the largest, 30 GB"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of records: 0.1 for a tenth")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kafka-clean", metavar="COMMAND", help="another cleaner, as of spark_clean.py")
    options = parser.parse_args()
    place = options.directory / "cleaning"
    heads = ["k/CPU s", "k/s in a worker", *(["other, k/CPU s", "other, k/s"] if options.kafka_clean else [])]
    table = Table("values, records, codec", *heads, "bytes left")
    try:
        write_log(place / "warm" / "bench-0", 100, 100_000, NONE, overwritten_keys())
        clean(copy_of(place / "warm" / "bench-0", place / "copy" / "bench-0"), compiled_engine)
        for value_bytes, total in KINDS:
            for name, codec in CODECS.items():
                source, copy = place / "log" / "bench-0", place / "copy" / "bench-0"
                shutil.rmtree(source.parent, ignore_errors=True)
                records = write_log(source, value_bytes, int(total * options.scale), codec, overwritten_keys())
                rows: list[list[float]] = []
                for _ in range(options.rounds):
                    rows.append([clean(copy_of(source, copy), compiled_engine).cpu_s])
                    rows[-1].append(clean(copy_of(source, copy), process_engine).wall_s)
                    size = log_bytes(copy)
                    if options.kafka_clean:
                        rows[-1].extend(clean_by(options.kafka_clean, copy_of(source, copy)))
                cells = [f"{records / 1000 / statistics.median(column):,.0f}" for column in zip(*rows, strict=True)]
                table.add_row(f"{value_bytes} B, {records:,}, {name}", *cells, f"{size:,}")
    finally:
        shutil.rmtree(place, ignore_errors=True)
    Console().print(table)


if __name__ == "__main__":
    main()
