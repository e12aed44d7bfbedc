"""`diamant spark clean`: compact every partition of a copied log directory in one Spark application."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from diamant.broker.commands.settings.clean_settings import describe, parse_settings
from diamant.broker.commands.settings.spark_options import conf_option, master_option, staging_option
from diamant.broker.commands.settings.topic_settings import (
    CLEANUP_POLICY,
    names_set,
    read_topic_configs,
    with_topic_configs,
)
from diamant.broker.commands.settings.value_hint import with_hint
from diamant.broker.commands.spark.running import running
from diamant.broker.commands.terminal.failures import EXIT_INTERRUPTED, fail, say
from diamant.broker.commands.terminal.files import counted, one_line_errors, size_text
from diamant.broker.config.config_key import ConfigError
from diamant.cleaner.offline.spark_clean import PartitionSettings, total_removed
from diamant.cleaner.rules.modes import MODES, PROMPT
from diamant.storage import names
from diamant.storage.checkpoints.checkpoints import read_clean_shutdown
from diamant.storage.env.clock import SettableClock, SystemClock
from diamant.storage.env.env import Env, RealEnv
from diamant.storage.errors import StorageError

if TYPE_CHECKING:
    from diamant.cleaner.offline.spark_clean import PartitionOutcome
    from diamant.cleaner.spark.clean.progress import JobProgress


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@master_option
@conf_option
@staging_option
@click.option("--now", "now_ms", type=int, metavar="MS", help="The time to assume, in ms since 1970. Default: now.")
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default=PROMPT,
    show_default=True,
    help="kafka: byte for byte as Kafka; prompt: removes records as soon as the rules allow.",
)
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be repeated.")
@click.option(
    "--set",
    "-s",
    "overrides",
    multiple=True,
    metavar="NAME=VALUE",
    help="As for `diamant log clean`, applied to all cleaned topics.",
)
@click.option("--force", is_flag=True, help="Also clean partitions that are not due but have something to clean.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line for each partition.")
def clean(
    directory: str,
    *,
    master: str,
    spark_settings: Sequence[str],
    staging: str,
    now_ms: int | None,
    mode: str,
    topics: Sequence[str],
    overrides: Sequence[str],
    force: bool,
    as_json: bool,
) -> None:
    """Compact all partitions of the log directory DIRECTORY. No broker may be using it: work on a copy.

    Cleans the largest partitions first, in one application, byte for byte as the local engines do. Partitions of a few MB are
    cleaned without Spark. Topic configurations come from the directory's metadata log; topics that are not compacted are left
    alone. Without a metadata log, give --set cleanup.policy=compact or --topic. Kafka and Diamant open the result. Exit code 1:
    a partition could not be cleaned; the others were.
    """
    directory = os.path.abspath(directory)
    env = RealEnv(SystemClock() if now_ms is None else SettableClock(now_ms))
    try:
        parse_settings(overrides, mode)
    except ConfigError as error:
        raise click.UsageError(with_hint(error)) from None
    outcomes: list[PartitionOutcome] = []
    with _outcomes_if_interrupted(outcomes), one_line_errors(), _locked(env, directory):
        known = _Settings(env, directory, topics, overrides, mode)
        jobs: list[JobProgress] = []
        with running("clean", master, spark_settings, figure=lambda: _done_by(jobs)) as session:
            from diamant.cleaner.offline.spark_clean import MAX_AT_ONCE, clean_directory, partitions_by_size, topic_of
            from diamant.cleaner.spark.clean.in_session import session_engine, whole_bytes

            found = partitions_by_size(env, directory)
            sizes = [size for path, size in found if known.of(topic_of(path)) is not None]
            cores = session.sparkContext.defaultParallelism
            at_once = max(1, min(cores, len(sizes), MAX_AT_ONCE))
            engine = session_engine(
                session.sparkContext, staging, jobs.append, whole_bytes=whole_bytes(sizes, cores), at_once=at_once
            )
            for outcome in clean_directory(
                env,
                [path for path, _ in found],
                known.of,
                engine,
                is_forced=force,
                is_clean=read_clean_shutdown(env, directory) is not None,
                at_once=at_once,
                on_end=outcomes.append,
            ):
                _print(outcome, as_json=as_json)
    failed = sum(one.error is not None for one in outcomes)
    if not as_json:
        removed = total_removed(outcomes)
        went = ", ".join(f"{count:,} {reason}" for reason, count in sorted(removed.items())) or "nothing"
        click.echo(f"{counted(len(outcomes), 'partition')}, {failed} failed; records removed: {went}")
    if failed:
        sys.exit(1)


@contextmanager
def _outcomes_if_interrupted(outcomes: Sequence[PartitionOutcome]) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        done = counted(sum(one.error is None for one in outcomes), "partition")
        left = "others are as they were, or cleaned in part: no record is lost, and the same command continues"
        fail(f"interrupted: {done} dealt with; {left}", EXIT_INTERRUPTED)


@contextmanager
def _locked(env: Env, directory: str) -> Iterator[None]:
    lock = env.lock(f"{directory}/{names.LOCK}")
    try:
        yield
    finally:
        lock.release()


class _Settings:
    """The settings of each topic; None for a topic that is left alone."""

    def __init__(self, env: Env, directory: str, topics: Sequence[str], overrides: Sequence[str], mode: str) -> None:
        self._topics = topics
        self._overrides = overrides
        self._mode = mode
        self._is_told = CLEANUP_POLICY in names_set(overrides) or bool(topics)
        try:
            self._configs = read_topic_configs(env, directory)
        except (StorageError, OSError) as error:
            if not self._is_told:
                raise StorageError(f"{error}; --set cleanup.policy=compact cleans all topics anyway") from error
            self._configs = None
        if self._configs is None and not self._is_told:
            raise StorageError(
                f"{directory} has no metadata log, so its compacted topics are unknown: name them with --topic, or clean all "
                "topics with --set cleanup.policy=compact"
            )

    def of(self, topic: str) -> PartitionSettings | None:
        if self._topics and topic not in self._topics:
            return None
        configs = None if self._configs is None else self._configs.get(topic)
        parsed = parse_settings(with_topic_configs(configs, self._overrides), self._mode)
        if not parsed.config.is_compacted:
            return None
        return PartitionSettings(parsed.config, parsed.cleaner, parsed.producer_expiration_ms)


def _done_by(jobs: Sequence[JobProgress]) -> str:
    return f"{size_text(sum(job.bytes for job in jobs))} read and written"


def _print(outcome: PartitionOutcome, *, as_json: bool) -> None:
    if as_json:
        fields: dict[str, Any] = {"partition": outcome.partition, "error": outcome.error}
        click.echo(json.dumps(fields if outcome.report is None else outcome.report.to_fields()))
    elif outcome.report is not None:
        click.echo(describe(outcome.report, is_dry_run=False))
    else:
        say(f"{outcome.partition}: {outcome.error}")
