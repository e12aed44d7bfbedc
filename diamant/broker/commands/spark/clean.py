"""`diamant spark clean`: compact every partition of a copied log directory in one Spark application."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import click

from diamant.broker.commands.settings.clean_settings import parse_settings, print_outcome, sum_text
from diamant.broker.commands.settings.directory_settings import DirectorySettings, locked_directory
from diamant.broker.commands.settings.mode_option import chosen_mode, mode_option
from diamant.broker.commands.settings.spark_options import conf_option, master_option, staging_option
from diamant.broker.commands.settings.value_hint import with_hint
from diamant.broker.commands.spark.running import running
from diamant.broker.commands.terminal.failures import fail, tell
from diamant.broker.commands.terminal.files import one_line_errors
from diamant.cleaner.offline.offline_clean import PartitionSettings
from diamant.cleaner.rules.modes import KAFKA
from diamant.storage.checkpoints.checkpoints import read_clean_shutdown
from diamant.storage.config_key import ConfigError
from diamant.storage.env.clocks import SettableClock, SystemClock
from diamant.storage.env.env import RealEnv
from diamant.words import counted, size_text

if TYPE_CHECKING:
    from diamant.cleaner.offline.clean_on_spark import PartitionOutcome
    from diamant.cleaner.spark.clean.progress import JobProgress


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@master_option
@conf_option
@staging_option
@click.option("--now", "now_ms", type=int, metavar="MS", help="The time to assume, in ms since 1970. Default: now.")
@mode_option
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be repeated.")
@click.option(
    "--set",
    "-s",
    "overrides",
    multiple=True,
    metavar="NAME=VALUE",
    help="As for `diamant log clean`, applied to all cleaned topics.",
)
@click.option("--force", is_flag=True, help="Clean a partition if anything is cleanable, even if a broker would wait.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per partition.")
def clean(
    directory: str,
    *,
    master: str,
    spark_settings: Sequence[str],
    staging: str,
    now_ms: int | None,
    mode: str | None,
    topics: Sequence[str],
    overrides: Sequence[str],
    force: bool,
    as_json: bool,
) -> None:
    """Compact all partitions of the log directory DIRECTORY. No broker may be using it: work on a copy.

    Cleans the largest partitions first, in one application. The result is the same, byte for byte, as with the local engines.
    Partitions of a few MB are cleaned without Spark. Topic configurations come from the directory's metadata log; topics that
    are not compacted are left alone. Without a metadata log, give --set cleanup.policy=compact or --topic. Kafka and Diamant can
    open the result. The exit code is 1 if any partition could not be cleaned.
    """
    directory = os.path.abspath(directory)
    env = RealEnv(SystemClock() if now_ms is None else SettableClock(now_ms))
    try:
        parse_settings(overrides, mode or KAFKA)
    except ConfigError as error:
        raise click.UsageError(with_hint(error)) from None
    outcomes: list[PartitionOutcome] = []
    with _outcomes_if_interrupted(outcomes), one_line_errors(), locked_directory(env, directory):
        mode, line = chosen_mode(env, directory, mode)
        if line and not as_json:
            tell(line)
        known = DirectorySettings(env, directory, overrides, mode, topics=topics, hint="name them with --topic")
        jobs: list[JobProgress] = []
        with running("clean", master, spark_settings, figure=lambda: _done_by(jobs)) as session:
            from diamant.cleaner.offline.clean_on_spark import (
                MAX_AT_ONCE,
                clean_directory,
                partitions_by_size,
                topic_of,
            )
            from diamant.cleaner.spark.clean.in_session import session_engine, whole_bytes

            found = partitions_by_size(env, directory)
            settings_of = partial(_of_compacted, known)
            sizes = [size for path, size in found if settings_of(topic_of(path)) is not None]
            cores = session.sparkContext.defaultParallelism
            at_once = max(1, min(cores, len(sizes), MAX_AT_ONCE))
            engine = session_engine(
                session.sparkContext, staging, jobs.append, whole_bytes=whole_bytes(sizes, cores), at_once=at_once
            )
            for outcome in clean_directory(
                env,
                [path for path, _ in found],
                settings_of,
                engine,
                force=force,
                is_clean=read_clean_shutdown(env, directory) is not None,
                at_once=at_once,
                on_end=outcomes.append,
            ):
                print_outcome(outcome, as_json=as_json)
    if not as_json:
        tell(sum_text(outcomes))
    if any(one.error is not None for one in outcomes):
        sys.exit(1)


@contextmanager
def _outcomes_if_interrupted(outcomes: Sequence[PartitionOutcome]) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        done = counted(sum(one.error is None for one in outcomes), "partition")
        left = "others are as they were, or cleaned in part: no record is lost, and the same command continues"
        fail(f"interrupted: {done} dealt with; {left}", "interrupted")


def _of_compacted(known: DirectorySettings, topic: str) -> PartitionSettings | None:
    found = known.of(topic)
    return None if found is None or not found.config.is_compacted else found


def _done_by(jobs: Sequence[JobProgress]) -> str:
    return f"{size_text(sum(job.bytes for job in jobs))} read and written"
