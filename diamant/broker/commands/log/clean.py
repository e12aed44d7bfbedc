"""`diamant log clean`: run one cleaning round, without a broker, on one partition or all compacted partitions of a log directory.

Opens a partition as a broker would after an orderly shutdown, cleans it if a broker would clean it now (or with --force), and
closes it. Kafka or Diamant can use it afterwards. --set overrides configurations by Kafka's names, and accepts values below a
broker's minimum. The other configurations of a topic come from the metadata log of the log directory, if there is one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import click

from diamant.broker.commands.settings.clean_settings import (
    all_settings,
    describe,
    parse_settings,
    print_outcome,
    sum_text,
)
from diamant.broker.commands.settings.directory_settings import DirectorySettings, locked_directory
from diamant.broker.commands.settings.mode_option import chosen_mode, mode_option
from diamant.broker.commands.settings.spark_options import conf_option, master_option, parse_conf, staging_option
from diamant.broker.commands.settings.topic_settings import (
    CLEANUP_POLICY,
    names_set,
)
from diamant.broker.commands.settings.value_hint import with_hint
from diamant.broker.commands.terminal.failures import fail, note, tell
from diamant.broker.commands.terminal.files import one_line_errors
from diamant.broker.operation_errors import EXIT_FAILED
from diamant.cleaner.offline.clean_on_spark import PartitionOutcome, partitions_by_size, topic_of
from diamant.cleaner.offline.offline_clean import (
    ENGINES,
    Engine,
    OfflineReport,
    PartitionSettings,
    clean_partition,
    preview_partition,
    spark_engine_of,
)
from diamant.cleaner.rules.modes import KAFKA
from diamant.cleaner.segments.tolerant_reader import check_is_log_directory, is_partition_directory
from diamant.kernels import ARE_COMPILED, require_kernels
from diamant.storage import names
from diamant.storage.config_key import ConfigError
from diamant.storage.env.clocks import SettableClock, SystemClock
from diamant.storage.env.env import RealEnv, parent
from diamant.storage.errors import StorageError

_NOT_COMPACTED = (
    "{name}: cleanup.policy is delete in {place}'s metadata; compacting would remove records that no later one replaces. --set "
    "cleanup.policy=compact compacts it anyway"
)
_NOT_STOPPED = (
    "warning: {directory} has no {mark}, so its broker crashed or the files were copied from a running broker. The end of each "
    "log is used without recovery. --unclean recovers it first, as a broker does when it starts after a crash; --unclean "
    "--dry-run shows what the recovery would cut off"
)


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@click.option("--now", "now_ms", type=int, metavar="MS", help="The time to assume, in ms since 1970. Default: now.")
@click.option(
    "--set",
    "-s",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A configuration of a topic, one of log.cleaner.*, message.max.bytes or producer.id.expiration.ms.",
)
@mode_option
@click.option(
    "--engine",
    type=click.Choice(list(ENGINES)),
    default="compiled" if ARE_COMPILED else "inline",
    show_default=True,
    help="The engine: plain Python, compiled code, compiled code in a worker process (as in a broker), or Spark.",
)
@master_option
@conf_option
@staging_option
@click.option(
    "--first-dirty", type=click.IntRange(min=0), metavar="OFFSET", help="Override the checkpoint of one partition."
)
@click.option("--force", is_flag=True, help="Clean a log if anything is cleanable, even if a broker would wait.")
@click.option("--retention", is_flag=True, help="Afterwards, remove whole segments as cleanup.policy=delete does.")
@click.option("--unclean", is_flag=True, help="First recover the log above the recovery point, as after a crash.")
@click.option("--dry-run", is_flag=True, help="Report what would be done, without changing the directory.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as one JSON object for each partition.")
def clean(
    directory: str,
    now_ms: int | None,
    settings: Sequence[str],
    mode: str | None,
    engine: str,
    master: str,
    spark_settings: Sequence[str],
    staging: str,
    first_dirty: int | None,
    force: bool,
    retention: bool,
    unclean: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Compact the partition in DIRECTORY, or each compacted partition of the log directory DIRECTORY. No broker may be using it.

    Uses and updates the checkpoints of the log directory. Topic configurations come from the metadata log there; --set overrides
    them. Without a metadata log, Kafka's defaults apply, with cleanup.policy=compact. Refuses a partition whose topic is not
    compacted (or skips it, if DIRECTORY is a log directory) unless --set cleanup.policy=compact or --retention is given; for a
    single partition, --retention has this effect only without --force.

    Exit codes: 0 done, even if there was nothing to clean; 1 the directory is in use, or a partition cannot be cleaned; 2 usage.
    """
    directory = os.path.abspath(directory)
    clock = SystemClock() if now_ms is None else SettableClock(now_ms)
    env = RealEnv(clock)
    try:
        parse_settings(settings, mode or KAFKA)
    except ConfigError as error:
        fail(with_hint(error), "bad-argument")
    is_whole = not is_partition_directory(env, directory)
    if is_whole and first_dirty is not None:
        fail("--first-dirty is the offset of one partition: give the partition's directory", "bad-argument")
    with _failing(directory):
        check_is_log_directory(env, directory, has_partitions=not is_whole or bool(partitions_by_size(env, directory)))
    log_directory = directory if is_whole else parent(directory)
    cleaning = _Cleaning(
        env,
        log_directory,
        _engine(engine, master, spark_settings, staging),
        first_dirty,
        force,
        retention,
        unclean,
        dry_run,
    )
    with _failing(directory), locked_directory(env, log_directory):
        if not unclean and not env.exists(f"{log_directory}/{names.CLEAN_SHUTDOWN}"):
            note(_NOT_STOPPED.format(directory=log_directory, mark=names.CLEAN_SHUTDOWN))
        mode, line = chosen_mode(env, log_directory, mode)
        if line and not as_json:
            tell(line)
        if is_whole:
            cleaning.clean_all(settings, mode, as_json=as_json)
        else:
            cleaning.clean_one(directory, settings, mode, as_json=as_json)


class _Cleaning(NamedTuple):
    """The options that all partitions share."""

    env: RealEnv
    log_directory: str
    engine: Engine
    first_dirty: int | None
    force: bool
    with_retention: bool
    is_unclean: bool
    is_dry_run: bool

    def clean_one(self, directory: str, settings: Sequence[str], mode: str, *, as_json: bool) -> None:
        """Clean a partition and print its report. Raises StorageError if it is not compacted."""
        topic, _ = names.parse_partition_dir(os.path.basename(directory))
        using = parse_settings(all_settings(self.env, self.log_directory, topic, settings), mode)
        is_told = CLEANUP_POLICY in names_set(settings) or (self.with_retention and not self.force)
        if not using.config.is_compacted and not is_told:
            raise StorageError(_NOT_COMPACTED.format(name=os.path.basename(directory), place=self.log_directory))
        report = self._run(directory, using)
        if as_json:
            tell(json.dumps(report.to_fields()))
        else:
            tell(describe(report, is_dry_run=self.is_dry_run, is_compacted=using.config.is_compacted))

    def clean_all(self, settings: Sequence[str], mode: str, *, as_json: bool) -> None:
        """Clean each compacted partition of a log directory, and print its outcome. Exits with code 1 if any has failed."""
        found = partitions_by_size(self.env, self.log_directory)
        hint = "name the directories of partitions"
        known = DirectorySettings(self.env, self.log_directory, settings, mode, topics=(), hint=hint)
        outcomes = []
        for directory, size in found:
            using = known.of(topic_of(directory))
            if using is None or not size or not (using.config.is_compacted or self.with_retention):
                continue
            name = os.path.basename(directory)
            try:
                outcome = PartitionOutcome(name, self._run(directory, using))
            except (StorageError, OSError) as error:
                outcome = PartitionOutcome(name, None, str(error))
            outcomes.append(outcome)
            is_compacted = using.config.is_compacted
            print_outcome(outcome, is_dry_run=self.is_dry_run, is_compacted=is_compacted, as_json=as_json)
        if not as_json:
            tell(sum_text(outcomes))
        if any(one.error is not None for one in outcomes):
            sys.exit(EXIT_FAILED)

    def _run(self, directory: str, using: PartitionSettings) -> OfflineReport:
        def clean(place: str) -> OfflineReport:
            return clean_partition(
                self.env,
                place,
                using,
                first_dirty_offset=self.first_dirty,
                force=self.force,
                with_retention=self.with_retention,
                is_clean=not self.is_unclean,
                engine=self.engine,
            )

        if self.is_dry_run:
            return preview_partition(self.env, directory, clean=clean, is_clean=not self.is_unclean)
        return clean(directory)


@contextmanager
def _failing(directory: str) -> Iterator[None]:
    """Report an error in one line and exit. The line names `directory` for an OSError without a file name."""
    with one_line_errors():
        try:
            yield
        except ValueError as error:
            fail(str(error), "bad-argument")
        except OSError as error:
            fail(f"{error.filename or directory}: {error.strerror or error}")


def _engine(name: str, master: str, spark_settings: Sequence[str], staging: str) -> Engine:
    if name in ("compiled", "spark"):
        require_kernels(f"--engine {name}")
    if name != "spark":
        return ENGINES[name]
    from diamant.cleaner.spark.environment.spark_settings import SparkSettings

    return spark_engine_of(SparkSettings(master, staging, conf=parse_conf(spark_settings)))
