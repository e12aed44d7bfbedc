"""Where the comparing commands run Spark: `--master`, `--conf`, or `--cluster` for one that is started for the command."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from diamant.cleaner.spark.environment.java import find_java
from tests.cleaner.spark.cluster import Cluster
from tests.cleaner.spark.conftest import CONF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def add_session_options(parser: argparse.ArgumentParser) -> None:
    """Add the three options."""
    parser.add_argument("--master", default="local[2]", help="where Spark runs (default: local[2])")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a configuration of Spark")
    parser.add_argument(
        "--cluster", action="store_true", help="start a standalone master and two workers, and run Spark there"
    )


@contextmanager
def chosen_session(chosen: argparse.Namespace, name: str) -> Iterator[SparkSession]:
    """Start the session that the options ask for."""
    from diamant.cleaner.spark.session.session import spark_session

    conf: Mapping[str, str] = CONF | dict(setting.split("=", 1) for setting in chosen.conf)
    with ExitStack() as stack:
        master = chosen.master
        if chosen.cluster:
            place = stack.enter_context(tempfile.TemporaryDirectory(prefix="cluster-"))
            cluster = stack.enter_context(Cluster(find_java(os.environ).home, Path(place)))
            master, conf = cluster.master, {**conf, **cluster.conf}
        yield stack.enter_context(spark_session(master, name, conf))
