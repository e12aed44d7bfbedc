"""`diamant spark whatif`: the forecast of `diamant log whatif` for thousands of partitions."""

from __future__ import annotations

from collections.abc import Sequence

import click

from diamant.broker.commands.log.whatif import WhatIfRequest, print_results, whatif_options
from diamant.broker.commands.settings.spark_options import conf_option, master_option
from diamant.broker.commands.settings.topic_settings import topic_configs_of
from diamant.broker.commands.spark.running import running
from diamant.broker.commands.terminal.files import one_line_errors
from diamant.cleaner.segments.tolerant_reader import open_log_directory
from diamant.storage.env.env import RealEnv


def _local_directory(context: click.Context, parameter: click.Parameter, text: str) -> str:
    from diamant.cleaner.spark.environment.locations import Location
    from diamant.cleaner.spark.environment.spark_errors import SparkError

    try:
        location = Location.parse(text)
    except SparkError as error:
        raise click.BadParameter(str(error)) from None
    if not location.is_local:
        raise click.BadParameter(
            f"{location}: the cleaner opens segments in place: expected a directory that the driver and all executors have at "
            "the same path; mount it there, or copy it"
        )
    return str(click.Path(exists=True, file_okay=False).convert(location.path, parameter, context))


@click.command()
@click.argument("directory", callback=_local_directory)
@master_option
@conf_option
@whatif_options
def whatif(
    directory: str,
    *,
    master: str,
    spark_settings: Sequence[str],
    topics: Sequence[str],
    settings: Sequence[str],
    mode: str | None,
    now_ms: int | None,
    until_ms: int | None,
    is_all: bool,
    as_json: bool,
    memory_mib: int,
) -> None:
    """Predict what settings would leave of DIRECTORY, and when, with one Spark task per partition.

    Scenarios, assumptions and output are the same as for `diamant log whatif`. DIRECTORY is a log directory or a partition
    directory that no broker is using. The driver and all executors must have it at the same local or mounted path; s3: URIs are
    not supported.

    DIRECTORY is not changed. Each task uses --memory, and one to two times its partition's size in spark.local.dir.

    Exit codes: 0 done; 1 some files are damaged or unreadable, the rest is reported; 2 usage.
    """
    request = WhatIfRequest.of(settings, mode, now_ms, until_ms, memory_mib)
    env = RealEnv()
    with one_line_errors(), open_log_directory(env, directory) as opened:
        from diamant.cleaner.forecast.whatif_on_spark import Trial, run_trials

        request.choose_mode(env, opened.path, mode)
        opened.keep_topics(topics)
        configs = topic_configs_of(env, opened)
        trials = [
            Trial(
                partition,
                opened.cleaner_checkpoint.get((partition.topic, partition.partition)),
                tuple(request.scenarios(partition.topic, configs)),
            )
            for partition in opened.partitions
        ]
        with running("whatif", master, spark_settings) as session:
            outcomes = run_trials(
                session, trials, now_ms=request.now_ms, until_ms=request.until_ms, key_bytes=request.key_bytes
            )
        found = [(one.partition, one.forecasts) for one in outcomes if one.forecasts]
        problems = [*opened.problems, *(problem for one in outcomes for problem in one.problems)]
        print_results(opened, request, found, problems, is_all=is_all, as_json=as_json)
