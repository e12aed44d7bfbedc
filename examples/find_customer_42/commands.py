"""`diamant spark find` as a process, and what it found."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.forget_customer_42.broker import diamant

SPARK_TIMEOUT_S = 300.0
MASTER = "local[2]"
CONF = {
    # Little data: what is compiled for it costs more than it does.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
}
"""Of Spark; for a real directory the defaults are better."""


class SparkFailed(Exception):
    """A command on Spark did not do what it was to do."""


@dataclass(frozen=True, slots=True)
class Found:
    """One record."""

    topic: str
    partition: int
    offset: int
    status: str
    """`live`, `superseded`, `tombstone`."""
    places: str
    """Where in the record: key, value."""


def find_command(data: Path, pattern: str) -> list[str]:
    """What one would type, without what only makes a small search quicker."""
    return ["diamant", "spark", "find", str(data), "--pattern", pattern, "--master", MASTER]


def find(data: Path, pattern: str) -> list[Found]:
    """Run `diamant spark find`. SparkFailed with what it said if it could not."""
    _, *words = find_command(data, pattern)
    conf = [word for name, value in CONF.items() for word in ("--conf", f"{name}={value}")]
    try:
        done = subprocess.run(
            diamant(*words, "--json", *conf), capture_output=True, text=True, check=False, timeout=SPARK_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise SparkFailed(f"diamant spark find did not end within {SPARK_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        raise SparkFailed(done.stderr.strip() or f"diamant spark find ended with {done.returncode}")
    return [_found(json.loads(line)) for line in done.stdout.splitlines()]


def _found(row: Mapping[str, Any]) -> Found:
    return Found(row["topic"], row["partition"], row["offset"], row["status"], ", ".join(row["places"]))


def broker_settings() -> list[str]:
    """What has a broker clean on the same Spark when it is asked to."""
    prefix = "diamant.cleaner.spark"
    # One driver for all partitions, as one would have it for many small ones.
    return [
        f"{prefix}.master={MASTER}",
        f"{prefix}.driver.max.idle.ms=60000",
        *(f"{prefix}.conf.{name}={value}" for name, value in CONF.items()),
    ]
