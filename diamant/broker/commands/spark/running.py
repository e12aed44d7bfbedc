"""Parts shared by the commands of `diamant spark`: options, a session with progress, one-line errors, output."""

from __future__ import annotations

import itertools
import json
import logging
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from diamant.broker.commands.settings.spark_options import conf_option, master_option, parse_conf
from diamant.broker.commands.terminal.failures import wants_json
from diamant.broker.commands.terminal.files import bytes_json, one_line_errors
from diamant.broker.commands.terminal.progress_text import LiveProgress
from diamant.storage.errors import WrongInput
from diamant.words import size_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

F = TypeVar("F", bound=Callable[..., object])
_LOOK_EVERY_S = 0.25
OF_ONE_PROCESS = ("stats", "find")
"""Commands for which `diamant log` has an equivalent."""
SMALL_BYTES = 1024 * 1024 * 1024
"""The size that `diamant log stats` and `find` read in about a second of processor time; Spark takes ten seconds to start."""


def spark_options(command: F) -> F:
    """Add the options shared by all commands that only read."""
    for option in reversed(
        (
            click.argument("paths", nargs=-1, required=True, metavar="PATH..."),
            click.option("--topic", "topics", multiple=True, help="Only this topic; may be repeated."),
            master_option,
            conf_option,
            click.option("--json", "as_json", is_flag=True, help="Print each row as one line of JSON."),
            click.option(
                "--parquet", metavar="DIRECTORY", help="Write the rows as Parquet files to a new directory instead."
            ),
        )
    ):
        command = option(command)
    return command


@contextmanager
def running(
    name: str,
    master: str,
    settings: Sequence[str],
    paths: Sequence[str] = (),
    topics: Sequence[str] = (),
    parquet: str | None = None,
    *,
    figure: Callable[[], str] = lambda: "",
) -> Iterator[SparkSession]:
    """Run a Spark session, and show its progress on a terminal. A Spark error is reported in one line.

    Another thread calls `figure` for a text to show after the number of tasks. Local paths and topics are checked first, because
    a session takes ten seconds to start.
    """
    conf = parse_conf(settings)
    with one_line_errors(), no_traces():
        from diamant.cleaner.spark.environment.spark_errors import SparkError
        from diamant.cleaner.spark.session.session import reason_of, spark_session

        _check_paths(name, paths, topics, parquet)
        with _scratch(conf) as scratch, spark_session(master, f"diamant spark {name}", scratch) as session:
            from py4j.protocol import Py4JError
            from pyspark.errors import PySparkException

            try:
                with _progress(session, figure):
                    yield session
            except (Py4JError, PySparkException) as error:
                raise SparkError(reason_of(session.sparkContext, error)) from error


@contextmanager
def _scratch(conf: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Keep all temporary files in directories that the next command or broker removes if this process is killed."""
    from diamant.cleaner.spark.runner.driver_scratch import DriverScratch
    from diamant.cleaner.spark.session.session import changed_environment

    scratch, directory = DriverScratch(conf), tempfile.tempdir
    try:
        scratch.make()
        with changed_environment(scratch.environment):
            tempfile.tempdir = None  # so that tempfile determines its directory again
            yield scratch.conf
    finally:
        tempfile.tempdir = directory
        scratch.remove()


@contextmanager
def no_traces() -> Iterator[None]:
    """Keep Py4J from logging the errors that it also raises; otherwise, Ctrl-C would print four tracebacks."""

    def is_told(_: logging.LogRecord) -> bool:
        return False

    # Py4J logs directly to the root logger. This filter does not affect records from other loggers.
    root = logging.getLogger()
    root.addFilter(is_told)
    try:
        yield
    finally:
        root.removeFilter(is_told)


def _check_paths(name: str, paths: Sequence[str], topics: Sequence[str], parquet: str | None) -> None:
    from diamant.cleaner.spark.environment.locations import Location
    from diamant.cleaner.spark.source.partition_logs import find_partitions

    if paths and all(Location.parse(path).is_local for path in paths):
        size = sum(one.size for one in find_partitions(paths, topics))
        if name in OF_ONE_PROCESS and parquet is None and size <= SMALL_BYTES and not wants_json():
            click.echo(
                f"{size_text(size)}: one process does this in a second, without Spark: diamant log {name} DIRECTORY",
                err=True,
            )
    # A scheme unknown here may be known to Spark.
    if parquet is not None and (parquet.startswith("file:") or ":/" not in parquet):
        found = Location.parse(parquet).find()
        if found is not None:
            raise WrongInput(f"{parquet} already exists: expected a new directory")


def give(result: DataFrame, *, as_json: bool, parquet: str | None, show: Callable[[Iterator[Any]], object]) -> bool:
    """Write rows as Parquet files, print them as JSON lines, or pass them to `show`, in Spark's order.

    Returns whether there were any rows.
    """
    if parquet is not None:
        result.write.parquet(parquet)
        click.echo(f"written to {parquet}", err=True)
        return not result.sparkSession.read.schema(result.schema).parquet(parquet).isEmpty()
    return give_rows(result.toLocalIterator(), as_json=as_json, show=show)


def give_rows(rows: Iterator[Any], *, as_json: bool, show: Callable[[Iterator[Any]], object]) -> bool:
    """Print rows as JSON lines, or pass them to `show`. Returns whether there were any rows."""
    first = list(itertools.islice(rows, 1))
    rows = itertools.chain(first, rows)
    if as_json:
        _print_json(rows)
    else:
        show(rows)
    return bool(first)


def _print_json(rows: Iterator[Any]) -> None:
    for row in rows:
        click.echo(json.dumps({name: cell_json(value) for name, value in row.asDict(recursive=True).items()}))


def cell_json(value: Any) -> Any:
    """Convert a value in a row to a value for JSON."""
    if isinstance(value, bytes | bytearray):
        return bytes_json(bytes(value))
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"
    return value


@contextmanager
def _progress(session: SparkSession, figure: Callable[[], str]) -> Iterator[None]:
    """Show how many tasks of the running stages are done, and the figure, if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    is_done = threading.Event()
    with LiveProgress() as progress:
        thread = threading.Thread(target=_follow, args=(session, progress, figure, is_done), daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_done.set()
            thread.join()


def _follow(session: SparkSession, progress: LiveProgress, figure: Callable[[], str], is_done: threading.Event) -> None:
    tracker = session.sparkContext.statusTracker()
    while not is_done.wait(_LOOK_EVERY_S):
        stages = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage)) is not None]
        if stages:
            done, total = (sum(getattr(stage, name) for stage in stages) for name in ("numCompletedTasks", "numTasks"))
            progress.show(f"{done} of {total} tasks {figure()}".rstrip())
