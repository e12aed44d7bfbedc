"""An archive of the classes of Spark's JVMs, as the JVM has them in memory (AppCDS): with it, they start in half the time.

    python -m tests.cleaner.spark.class_archive FILE        writes one for the classes below SPARK_HOME

A JVM that finds other jars, in another place, or is of another version than the archive's, does without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cleaner.spark.cluster import JAVA_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[3]
OTHER_PROCESSES = (
    "deploy.client.StandaloneAppClient", "deploy.master.Master", "deploy.worker.ExecutorRunner", "deploy.worker.Worker",
    "executor.CoarseGrainedExecutorBackend", "scheduler.cluster.StandaloneSchedulerBackend",
)  # fmt: skip
"""What a session in one process does not load."""


def use_of(archive: Path) -> str:
    """Return the options of a JVM that uses an archive, which is refused unless verification is turned off as for the archive."""
    return f'{JAVA_OPTIONS} "-XX:SharedArchiveFile={archive}" -Xlog:cds=off -Xlog:cds+dynamic=off'


def make(archive: Path, home: Path, java: str) -> None:
    """Write an archive; there is none if that fails."""
    unfinished = archive.with_suffix(".unfinished")
    environment = os.environ | {"SPARK_HOME": str(home), "JAVA_HOME": java}
    # Until the JVM has written it and ends: it has the ends of the pipes, too.
    subprocess.run(
        [sys.executable, "-m", __name__, str(unfinished)], env=environment, cwd=ROOT, capture_output=True, check=False
    )
    if unfinished.exists():
        unfinished.rename(archive)


def load_classes(session: SparkSession) -> None:
    """Have a session load what all sessions of the tests load. Classes of SQL and Parquet cost more than two would save."""
    context = session.sparkContext
    context.parallelize(range(4), 2).map(lambda number: (number % 2, number)).partitionBy(2).collect()
    for name in OTHER_PROCESSES:
        context._jvm.java.lang.Class.forName(f"org.apache.spark.{name}")  # type: ignore[union-attr]


def main(archive: str) -> int:
    """Write the archive."""
    from diamant.cleaner.spark.session.session import spark_session

    conf = {"spark.driver.extraJavaOptions": f'{JAVA_OPTIONS} "-XX:ArchiveClassesAtExit={archive}"'}
    with spark_session("local[2]", "classes", conf) as session:
        load_classes(session)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
