"""`diamant log clean`: run one cleaning round on a partition directory, without a broker.

The directory is opened as after an orderly shutdown, cleaned if a broker would clean it now (or with --force), and closed.
Kafka or Diamant can use it afterwards. --set overrides configurations by Kafka's names, without a broker's minima. The others
come from the topic's configuration in the log directory's metadata log, if there is one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

import click

from diamant.broker.commands.settings.clean_settings import all_settings, describe, parse_settings
from diamant.broker.commands.settings.spark_options import conf_option, master_option, parse_conf, staging_option
from diamant.broker.commands.settings.topic_settings import (
    CLEANUP_POLICY,
    names_set,
)
from diamant.broker.commands.settings.value_hint import with_hint
from diamant.broker.commands.terminal.failures import EXIT_USAGE, fail, say
from diamant.broker.config.config_key import ConfigError
from diamant.cleaner.offline.clean import (
    ENGINES,
    Engine,
    OfflineReport,
    clean_partition,
    preview_partition,
    spark_engine_of,
)
from diamant.cleaner.rules.modes import MODES, PROMPT
from diamant.storage import names
from diamant.storage.env.clock import SettableClock, SystemClock
from diamant.storage.env.env import RealEnv, parent
from diamant.storage.errors import StorageError

_NOT_COMPACTED = (
    "{name}: cleanup.policy is delete in {place}'s metadata; compacting would remove records that no later one replaces. --set "
    "cleanup.policy=compact compacts it anyway"
)
_NOT_STOPPED = (
    "warning: {directory} has no {mark}: its broker crashed, or these files were copied from a running broker. The end of the "
    "log is taken as it is. --unclean recovers it first, as a start after a crash does; --unclean --dry-run shows what that cuts "
    "off"
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
    help="A topic configuration, a log.cleaner.* one, message.max.bytes or producer.id.expiration.ms.",
)
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default=PROMPT,
    show_default=True,
    help="kafka: byte for byte as Kafka; prompt: removes records as soon as the rules allow.",
)
@click.option(
    "--engine",
    type=click.Choice(list(ENGINES)),
    default="compiled",
    show_default=True,
    help="The engine: plain Python, compiled code, or compiled code in a worker process, as in a broker.",
)
@master_option
@conf_option
@staging_option
@click.option("--first-dirty", type=click.IntRange(min=0), metavar="OFFSET", help="Overrides the checkpoint.")
@click.option("--force", is_flag=True, help="Clean even if the log is not due, if anything is cleanable.")
@click.option("--retention", is_flag=True, help="Then remove whole segments as cleanup.policy=delete does.")
@click.option("--unclean", is_flag=True, help="First recover the log above the recovery point, as after a crash.")
@click.option("--dry-run", is_flag=True, help="Report what would be done, without changing the directory.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as JSON.")
def clean(
    directory: str,
    now_ms: int | None,
    settings: Sequence[str],
    mode: str,
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
    """Compact the partition in DIRECTORY (a directory named like my-topic-0). No broker may be using it.

    Uses and updates the checkpoints in the parent directory. Topic configurations come from the metadata log there; --set
    overrides them. Without a metadata log, Kafka's defaults apply, with cleanup.policy=compact. A topic that is not compacted is
    refused, except with --set cleanup.policy=compact or for --retention alone.

    Exit codes: 0 done, even if there was nothing to clean; 1 in use, or cannot be cleaned; 2 usage.
    """
    directory = os.path.abspath(directory)
    clock = SystemClock() if now_ms is None else SettableClock(now_ms)
    env = RealEnv(clock)
    try:
        parse_settings(settings, mode)
    except ConfigError as error:
        fail(with_hint(error), EXIT_USAGE)
    try:
        topic, _ = names.parse_partition_dir(os.path.basename(directory))
        lock = env.lock(f"{parent(directory)}/{names.LOCK}")
    except (StorageError, ValueError) as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename or directory}: {error.strerror or error}")

    def run(target: str) -> OfflineReport:
        return clean_partition(
            env,
            target,
            parsed.config,
            parsed.cleaner,
            producer_expiration_ms=parsed.producer_expiration_ms,
            first_dirty_offset=first_dirty,
            is_forced=force,
            with_retention=retention,
            is_clean=not unclean,
            engine=_engine(engine, master, spark_settings, staging),
        )

    if not unclean and not env.exists(f"{parent(directory)}/{names.CLEAN_SHUTDOWN}"):
        say(_NOT_STOPPED.format(directory=parent(directory), mark=names.CLEAN_SHUTDOWN))
    try:
        parsed = parse_settings(all_settings(env, parent(directory), topic, settings), mode)
        if not parsed.config.is_compacted and CLEANUP_POLICY not in names_set(settings) and (force or not retention):
            raise StorageError(_NOT_COMPACTED.format(name=os.path.basename(directory), place=parent(directory)))
        report = preview_partition(env, directory, clean=run, is_clean=not unclean) if dry_run else run(directory)
    except StorageError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename or directory}: {error.strerror or error}")
    finally:
        lock.release()
    if as_json:
        click.echo(json.dumps(report.to_fields()))
    else:
        click.echo(describe(report, is_dry_run=dry_run, is_compacted=parsed.config.is_compacted))


def _engine(name: str, master: str, spark_settings: Sequence[str], staging: str) -> Engine:
    if name != "spark":
        return ENGINES[name]
    from diamant.cleaner.spark.environment.settings import SparkSettings

    return spark_engine_of(SparkSettings(master, staging, conf=parse_conf(spark_settings)))
