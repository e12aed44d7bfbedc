"""Cleaning and counting of larger logs: on Spark, and beside that as a broker does it without, by a worker process."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from cleaning import SEGMENT_BYTES, clean, clean_by
from figure import Figure
from made_log import Batches, Written, distinct_keys, log_bytes, overwritten_keys, write_log
from processes import cpu_seconds, family, memory_mib

from diamant.cleaner.offline.offline_clean import process_engine
from diamant.cleaner.offline.partition_stats import read_stats
from diamant.cleaner.segments.tolerant_reader import open_log_directory
from diamant.storage.env.env import RealEnv

RECORDS, VALUE_BYTES = 1_000_000, 480
DISTINCT_KEYS, DISTINCT_VALUE_BYTES = 2_500_000, 8
DISTINCT_AGAIN = 1.1
BATCH_RECORDS = 64
HEAP = "1g"


def by_process(directory: Path, scale: float, command: str | None) -> Iterator[Figure]:
    """Count in this process and clean by a worker process, or clean by `command`."""
    for name, log, written in _logs(directory, scale):
        if command:
            yield Figure(f"clean {name}", log_bytes(log) / 1e9 / clean_by(command, log).wall_s, "GB/s")
        else:
            yield from _figures(name, log, written, None)


def on_spark(directory: Path, scale: float, cores: int, *, is_divided: bool = False) -> Iterator[Figure]:
    """Count and clean in a session of Spark on so many cores, as the commands do; `is_divided`: only clean, in divided rounds."""
    from diamant.cleaner.spark.session.session import spark_session

    logs, began = list(_logs(directory, scale)), time.perf_counter()
    conf = {"spark.driver.memory": HEAP, "spark.local.dir": str(directory)}
    with spark_session(f"local[{cores}]", "bench", conf) as session:
        yield Figure("start of a session", time.perf_counter() - began, "s")
        for name, log, written in logs:
            yield from _figures(name, log, written, session, is_divided=is_divided)


def _logs(directory: Path, scale: float) -> Iterator[tuple[str, Path, Written]]:
    """Write a log in which a tenth of the records is not superseded, and one of distinct keys."""
    keys = max(1, int(DISTINCT_KEYS * scale))
    for name, value_bytes, records, numbers in (
        ("overwritten", VALUE_BYTES, max(1, int(RECORDS * scale)), overwritten_keys()),
        ("distinct", DISTINCT_VALUE_BYTES, int(keys * DISTINCT_AGAIN), distinct_keys(keys)),
    ):
        log = directory / f"{name}-0"
        yield name, log, write_log(log, Batches(value_bytes, BATCH_RECORDS), records, numbers, SEGMENT_BYTES)


def _figures(name: str, log: Path, written: Written, session: Any, *, is_divided: bool = False) -> Iterator[Figure]:
    """Count what is in a log, and clean it: how fast, with what processor time, bytes shuffled, and peaks of memory."""
    size = log_bytes(log)
    for what, work in (("count", _count), ("clean", partial(_clean, is_divided=is_divided))):
        if what == "count" and (name == "distinct" or is_divided):
            continue
        _forget_peaks()
        cpu_s, shuffled_bytes = cpu_seconds(os.getpid()), _shuffled_bytes(session)
        took_s = work(log, written, session)
        yield Figure(f"{what} {name}", size / 1e9 / took_s, "GB/s")
        yield Figure(f"{what} {name}: CPU", (cpu_seconds(os.getpid()) - cpu_s) / (size / 1e9), "s/GB")
        if session is not None:
            shuffled_bytes = _shuffled_bytes(session) - shuffled_bytes
            yield Figure(f"{what} {name}: shuffled for each record", shuffled_bytes / written.records, "B")
        for sort, peak_mib in _peaks_mib().items():
            yield Figure(f"{what} {name}: peak of the {sort}", peak_mib, "MiB")


def _count(log: Path, written: Written, session: Any) -> float:
    began = time.perf_counter()
    if session is None:
        with open_log_directory(RealEnv(), str(log)) as opened:
            [topic] = read_stats(RealEnv(), opened)
        keys = topic.partitions[0].kinds.distinct_keys
    else:
        from diamant.cleaner.spark.analyses.stats_rows import stats_rows

        keys = stats_rows(session.sparkContext, [str(log)])[0]["distinct_keys"]
    assert keys == written.keys
    return time.perf_counter() - began


def _clean(log: Path, written: Written, session: Any, *, is_divided: bool) -> float:
    if session is None:
        return clean(log, written, process_engine, "prompt").wall_s
    from diamant.cleaner.spark.clean.in_session import session_engine, whole_bytes

    context = session.sparkContext
    most = -1 if is_divided else whole_bytes([log_bytes(log)], context.defaultParallelism)
    return clean(log, written, session_engine(context, whole_bytes=most), "prompt").wall_s


def _shuffled_bytes(session: Any) -> int:
    """All that went through Spark's shuffle so far, as Spark itself counts it."""
    if session is None:
        return 0
    context = session.sparkContext
    store = context._jsc.sc().statusStore()
    found = store.stageList(None, False, False, context._gateway.new_array(context._jvm.double, 0), None)
    return sum(found.apply(number).shuffleWriteBytes() for number in range(found.size()))


def _forget_peaks() -> None:
    for pid in family(os.getpid()):
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def _peaks_mib() -> dict[str, float]:
    """Resident memory at most of this process, of the JVM, and of the largest other process below it, ended ones included."""
    ended_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    peaks = {"worker": ended_mib} if ended_mib else {}
    for pid in family(os.getpid()):
        with contextlib.suppress(OSError):
            is_java = Path(f"/proc/{pid}/comm").read_text() == "java\n"
            sort = "driver" if pid == os.getpid() else "JVM" if is_java else "worker"
            peaks[sort] = max(peaks.get(sort, 0.0), memory_mib(pid, "VmHWM"))
    return peaks
