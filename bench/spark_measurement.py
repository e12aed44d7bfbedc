"""One measurement in a process of its own, so that its memory is nobody else's: `python spark_measurement.py JSON`.

It prints a line of JSON when it is ready (a session is there, its Python workers have answered), and one with the figures.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from made_log import START_MS, log_bytes

from diamant.cleaner.offline.clean import Engine, clean_partition, process_engine
from diamant.cleaner.offline.stats import read_stats
from diamant.cleaner.rules.planning import CleanerSettings
from diamant.cleaner.segments.tolerant_reader import open_log_directory
from diamant.storage.env.clock import SettableClock
from diamant.storage.env.env import RealEnv
from diamant.storage.segments.log_config import LogConfig

NOW_MS = START_MS + 1000
PROCESS = "process"
"""The engine that is no Spark: a worker process that cleans, or for stats this very process."""


def say(**fields: Any) -> None:
    """Print a line."""
    print(json.dumps(fields), flush=True)


@contextmanager
def session_of(engine: str, scratch: str, memory: str) -> Iterator[Any]:
    """Start a session of Spark, if the engine is a master; None otherwise."""
    if engine == PROCESS:
        yield None
        return
    from diamant.cleaner.spark.session.session import spark_session

    with spark_session(engine, "bench", {"spark.driver.memory": memory, "spark.local.dir": scratch}) as session:
        yield session


def clean(directory: Path, session: Any, mode: str, segment_bytes: int) -> dict[str, Any]:
    """Clean the whole of a partition; what is left."""
    engine: Engine = process_engine
    if session is not None:
        from diamant.cleaner.spark.clean.in_session import session_engine

        engine = session_engine(session.sparkContext)
    report = clean_partition(
        RealEnv(SettableClock(NOW_MS)),
        str(directory),
        LogConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=segment_bytes),
        CleanerSettings(mode=mode, hash_key=os.urandom(16)),
        producer_expiration_ms=86_400_000,
        is_forced=True,
        engine=engine,
    )
    assert report.result is not None
    return {"kept": report.result.stats.messages_written, "bytes_after": log_bytes(directory)}


def stats(directory: Path, session: Any) -> dict[str, Any]:
    """Count what is in a partition."""
    if session is None:
        with open_log_directory(RealEnv(), str(directory)) as opened:
            [topic] = read_stats(RealEnv(), opened)
        [found] = topic.partitions
        return {"records": found.records, "keys": found.distinct_keys, "superseded": found.superseded}
    from diamant.cleaner.spark.analyses.stats import read_stats as read_stats_on_spark

    [row] = read_stats_on_spark(session, [str(directory)]).collect()
    return {"records": row["records"], "keys": row["distinct_keys"], "superseded": row["superseded"]}


def shuffled(session: Any) -> dict[str, int]:
    """Return what went through Spark's shuffle, as Spark itself counts it, and what of it did not fit into memory."""
    context = session.sparkContext
    store = context._jsc.sc().statusStore()
    found = store.stageList(None, False, False, context._gateway.new_array(context._jvm.double, 0), None)
    stages = [found.apply(number) for number in range(found.size())]
    return {
        "shuffle_bytes": sum(stage.shuffleWriteBytes() for stage in stages),
        "spilled_bytes": sum(stage.diskBytesSpilled() for stage in stages),
    }


def main() -> None:
    """Do what the argument says: what, engine, directory, scratch, memory, mode, segment_bytes."""
    asked = json.loads(sys.argv[1])
    directory = Path(asked["directory"])
    start_s = time.monotonic()
    with session_of(asked["engine"], asked["scratch"], asked["memory"]) as session:
        ready_s = time.monotonic()
        say(is_ready=True)
        if asked["what"] == "clean":
            answer = clean(directory, session, asked["mode"], asked["segment_bytes"])
        else:
            answer = stats(directory, session)
        end_s = time.monotonic()
        say(
            start_s=0.0 if session is None else ready_s - start_s,
            seconds=end_s - ready_s,
            answer=answer,
            **({} if session is None else shuffled(session)),
        )


if __name__ == "__main__":
    main()
