"""Cleaning one large partition: on Spark in `local[1]` and `local[2]` beside the process runner, with memory and shuffle.

    python bench/spark_clean.py --gb 1 5 --keys 2000000 --directory /data/bench --engine process local[1] local[2]

Each log is written once (records of 16 + 180 bytes, 64 to a batch, uncompressed, keys at random), and every engine cleans a
copy of hard links. A line of JSON for each round: seconds, GB/s over the log, records/s, greatest resident memory of each sort
of process, and what went through Spark's shuffle. The page cache is as warm as it is; nothing is pinned.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from diamant.cleaner.offline import Engine, clean_partition, process_engine
from diamant.cleaner.plan import CleanerSettings
from diamant.cleaner.spark.session_engine import session_engine
from diamant.protocol.records import Record, build_batch
from diamant.storage.clock import SettableClock
from diamant.storage.env import RealEnv
from diamant.storage.log_config import LogConfig

START_MS = 1_700_000_000_000
BATCH_RECORDS = 64
"""As many as have offset deltas of one byte."""
KEY_BYTES, VALUE_BYTES = 16, 180
SEGMENT_BYTES = 256 * 1024 * 1024
BATCHES_AT_ONCE = 512
SAMPLE_S = 0.2


def write_log(directory: Path, size: int, keys: int) -> int:
    """Write a partition of about `size` bytes; how many records it has."""
    directory.mkdir(parents=True)
    value = np.random.default_rng(1).integers(0, 256, VALUE_BYTES, np.uint8).tobytes()
    records = [Record(index, START_MS, b"0" * KEY_BYTES, value) for index in range(BATCH_RECORDS)]
    template = np.frombuffer(bytes(build_batch(records, base_offset=0, leader_epoch=0)), np.uint8)
    first = template.tobytes().index(b"0" * KEY_BYTES)
    step = (len(template) - 61) // BATCH_RECORDS
    places = first + step * np.arange(BATCH_RECORDS)[:, None] + np.arange(KEY_BYTES)
    random = np.random.default_rng(2)
    offset = written = 0
    while written < size:
        with (
            (directory / f"{offset:020d}.log").open("wb") as log,
            (directory / f"{offset:020d}.index").open("wb") as index,
        ):
            base, position = offset, 0
            while position < SEGMENT_BYTES and written + position < size:
                batches = np.repeat(template[None, :], BATCHES_AT_ONCE, axis=0)
                drawn = random.integers(0, keys, (BATCHES_AT_ONCE, BATCH_RECORDS))
                digits = drawn[:, :, None] // 10 ** np.arange(KEY_BYTES - 1, -1, -1) % 10 + ord("0")
                batches[:, places] = digits.astype(np.uint8)
                offsets = offset + BATCH_RECORDS * np.arange(BATCHES_AT_ONCE, dtype=np.int64)
                batches[:, :8] = offsets.astype(">i8")[:, None].view(np.uint8)
                for number, batch in enumerate(batches):
                    batch[17:21] = np.frombuffer(crc32c(batch[21:].data).to_bytes(4, "big"), np.uint8)
                    last = offset + BATCH_RECORDS * (number + 1) - 1
                    if position or number:
                        index.write(
                            (last - base).to_bytes(4, "big") + (position + number * len(template)).to_bytes(4, "big")
                        )
                log.write(batches.data)
                position += batches.nbytes
                offset += BATCH_RECORDS * BATCHES_AT_ONCE
        (directory / f"{base:020d}.timeindex").write_bytes(b"")
        written += position
    active = directory / f"{offset:020d}"
    for suffix in (".log", ".index", ".timeindex"):
        active.with_name(active.name + suffix).write_bytes(b"")
    return offset


def linked(source: Path, target: Path) -> None:
    """Make a copy of hard links: cleaning never writes to a segment that is there."""
    target.mkdir(parents=True)
    for path in source.iterdir():
        os.link(path, target / path.name)


class Memory:
    """The greatest resident memory of this process and of each sort of process below it, in MiB, while it is used."""

    def __init__(self) -> None:
        self.peak: dict[str, int] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._is_over.wait(SAMPLE_S):
            for sort, size in _family(os.getpid()):
                self.peak[sort] = max(self.peak.get(sort, 0), size)


def _family(root: int) -> Iterator[tuple[str, int]]:
    """Yield sort and resident MiB of a process and all below it."""
    below: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path("/proc", name, "stat").read_text()
            except OSError:
                continue
            below.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(name))
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        waiting += below.get(pid, [])
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            continue
        sort = "driver" if pid == root else "jvm" if "java" in command[:200] else "worker"
        yield sort, pages * os.sysconf("SC_PAGESIZE") // (1 << 20)


def rounds(engine: str) -> Iterator[tuple[Engine, Callable[[], dict[str, Any]]]]:
    """Yield the engine, and what tells of its shuffle."""
    if engine == "process":
        yield process_engine, dict
        return
    from diamant.cleaner.spark.session import spark_session

    with spark_session(engine, "bench", {"spark.driver.memory": "1g"}) as session:
        context = session.sparkContext
        yield session_engine(context), lambda: _shuffled(context)


def _shuffled(context: Any) -> dict[str, Any]:
    stages = (
        context._jsc.sc()
        .statusStore()
        .stageList(None, False, False, context._gateway.new_array(context._jvm.double, 0), None)
    )
    found = [stages.apply(number) for number in range(stages.size())]
    return {
        "shuffle_write_bytes": sum(stage.shuffleWriteBytes() for stage in found),
        "spilled_bytes": sum(stage.diskBytesSpilled() for stage in found),
    }


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gb", type=float, nargs="+", default=[1.0], help="sizes of the log, in 10^9 bytes")
    parser.add_argument("--keys", type=int, default=2_000_000, help="distinct keys")
    parser.add_argument("--engine", nargs="+", default=["process", "local[1]", "local[2]"])
    parser.add_argument("--directory", type=Path, required=True, help="where to work; what is made there is removed")
    parser.add_argument("--mode", default="prompt")
    arguments = parser.parse_args()
    for gb in arguments.gb:
        source = arguments.directory / "source" / "bench-0"
        shutil.rmtree(source.parent, ignore_errors=True)
        records = write_log(source, int(gb * 1e9), arguments.keys)
        size = sum(path.stat().st_size for path in source.glob("*.log"))
        for engine in arguments.engine:
            target = arguments.directory / "target" / "bench-0"
            shutil.rmtree(target.parent, ignore_errors=True)
            linked(source, target)
            for run, shuffled in rounds(engine):
                with Memory() as memory:
                    start_s = time.monotonic()
                    report = clean_partition(
                        RealEnv(SettableClock(START_MS + 1000)),
                        str(target),
                        LogConfig(cleanup_policy=frozenset({"compact"})),
                        CleanerSettings(mode=arguments.mode, hash_key=os.urandom(16)),
                        producer_expiration_ms=86_400_000,
                        is_forced=True,
                        engine=run,
                    )
                    took_s = time.monotonic() - start_s
                assert report.result is not None
                figures = {
                    "engine": engine,
                    "gb": round(size / 1e9, 2),
                    "records": records,
                    "keys": arguments.keys,
                    "seconds": round(took_s, 1),
                    "gb_per_s": round(size / took_s / 1e9, 3),
                    "records_per_s": round(records / took_s),
                    "kept": report.result.stats.messages_written,
                    "peak_mib": memory.peak,
                    "load": os.getloadavg()[0],
                    **shuffled(),
                }
                if "shuffle_write_bytes" in figures:
                    figures["shuffle_bytes_per_record"] = round(figures["shuffle_write_bytes"] / records, 1)
                print(json.dumps(figures), flush=True)
            shutil.rmtree(target.parent)
        shutil.rmtree(source.parent)


if __name__ == "__main__":
    main()
