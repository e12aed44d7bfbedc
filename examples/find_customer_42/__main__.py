"""`python -m examples.find_customer_42 [--keep] [--directory DIR]`: see the package.

Exit codes: 0 everything is as it was told; 1 a claim was not so, or something failed; 2 usage.
"""

from __future__ import annotations

import argparse
import io
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from confluent_kafka import KafkaException

from diamant.broker.client.admin import AdminError
from diamant.cleaner.spark.environment.java import JavaNotFound, find_java
from examples.find_customer_42.commands import SparkFailed
from examples.find_customer_42.story import Story
from examples.forget_customer_42.broker import BrokerFailed
from examples.forget_customer_42.telling import ClaimFailed, Teller


def main(arguments: Sequence[str] | None = None, teller: Teller | None = None) -> int:
    """Tell the story; the exit code."""
    parser = argparse.ArgumentParser(
        "find_customer_42", description="Spark finds customer 42 in all topics, and forgets."
    )
    parser.add_argument("--keep", action="store_true", help="keep the files: both data directories, the certificate")
    parser.add_argument("--directory", type=Path, help="where; it must not exist (default: a temporary one)")
    options = parser.parse_args(arguments)
    if options.directory is not None and options.directory.exists():
        parser.error(f"{options.directory} exists already: name a directory that does not")
    told = teller or Teller()
    if (missing := _missing()) is not None:
        told.failed(f"it cannot begin: {missing}")
        return 1
    directory = options.directory or Path(tempfile.mkdtemp(prefix="diamant-demo-"))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        return run(directory, told, is_kept=options.keep)
    finally:
        if not options.keep:
            shutil.rmtree(directory, ignore_errors=True)


def run(directory: Path, teller: Teller, *, is_kept: bool) -> int:
    """Tell the story in a directory of its own; the exit code."""
    began = time.monotonic()
    try:
        Story(directory, teller).tell()
    except ClaimFailed as error:
        teller.failed(str(error))
        return 1
    except (AdminError, BrokerFailed, KafkaException, SparkFailed, TimeoutError) as error:
        teller.failed(f"it could not go on: {error}")
        return 1
    teller.end(f"All {teller.claims} claims were checked, and hold. It took {time.monotonic() - began:.0f} s.")
    if is_kept:
        teller.say(f"Everything is kept in {directory}; for people: {directory}/certificates/spark.html")
    else:
        teller.say("Its files are removed. To keep them, and see the certificate as a page: make demo-spark KEEP=yes")
    return 0


def _missing() -> str | None:
    """What Spark needs and is not there."""
    if find_spec("pyspark") is None:
        return "PySpark is not installed: in a clone of Diamant, pip install '.[spark]'"
    try:
        find_java()
    except JavaNotFound as error:
        return str(error)
    return None


if __name__ == "__main__":
    # What the output cannot show (a tick, where it is no UTF-8) is not a reason to fail.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    # Told to stop, it stops its brokers and removes its files as at any other end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
