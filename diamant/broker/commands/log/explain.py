"""`diamant log explain`: explain why records are still in the files of a log directory, without a broker."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NoReturn

import click

from diamant.broker.commands.settings.clean_settings import parse_settings
from diamant.broker.commands.settings.mode_option import chosen_mode, mode_option
from diamant.broker.commands.settings.topic_settings import assumed_line, topic_configs_of, with_topic_configs
from diamant.broker.commands.settings.value_hint import with_hint
from diamant.broker.commands.terminal.console import Console
from diamant.broker.commands.terminal.explanation_view import MAX_ROWS, show_explanation
from diamant.broker.commands.terminal.failures import fail, note
from diamant.broker.commands.terminal.files import one_line_errors, show_problem
from diamant.broker.commands.terminal.key_options import key_options
from diamant.broker.commands.terminal.progress_text import LiveProgress
from diamant.broker.operation_errors import EXIT_DONE, EXIT_FAILED
from diamant.broker.record_json import key_fields
from diamant.broker.topics.internal_names import INTERNAL_TOPICS
from diamant.cleaner.offline.explain_partition import explain_partition
from diamant.cleaner.rules.modes import KAFKA, followed_version
from diamant.cleaner.rules.plan_of_log import CleanerSettings
from diamant.cleaner.segments.tolerant_reader import Problem, open_log_directory
from diamant.cleaner.service.partition_view import CleanerView
from diamant.json_types import JsonObject
from diamant.storage.config_key import ConfigError
from diamant.storage.env.clocks import SystemClock
from diamant.storage.env.env import RealEnv
from diamant.storage.errors import StorageError
from diamant.words import counted


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@key_options("Explain every record of a key")
@click.option(
    "--offset",
    "-o",
    type=click.IntRange(min=0),
    metavar="N",
    help="Explain the record at this offset of one partition, and the other records of its key.",
)
@click.option("--set", "-s", "settings", multiple=True, metavar="NAME=VALUE", help="A configuration, as for log clean.")
@mode_option
@click.option("--now", "now_ms", type=click.IntRange(min=0), metavar="MS", help="The time to assume. Default: now.")
@click.option(
    "--all",
    "is_all",
    is_flag=True,
    help=f"Print all records, not only {MAX_ROWS} per partition, and the empty partitions of internal topics.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per topic.")
def explain(
    directory: str,
    key: bytes | None,
    offset: int | None,
    settings: tuple[str, ...],
    mode: str | None,
    now_ms: int | None,
    is_all: bool,
    as_json: bool,
) -> None:
    """Explain why records are still in DIRECTORY, a log directory or a partition directory, and when they would be removed.

    A broker started on these files now would give the same explanation. Topic configurations come from the directory's metadata
    log (else cleanup.policy=compact and Kafka's defaults) and from --set. Without a key or an offset, the command explains why
    each partition is not clean. Nothing is changed.

    Exit codes: 0 done; 1 a file cannot be read; 2 usage; 3 no such record.
    """
    _check_usage(settings, mode, key, offset)
    env = RealEnv()
    now_ms = SystemClock().now_ms() if now_ms is None else now_ms
    problems, notes = list[Problem](), list[str]()
    is_found, folded = False, 0
    # With a key or an offset, an empty partition has no output anyway.
    is_folding = not (is_all or as_json) and key is None and offset is None
    with one_line_errors(), open_log_directory(env, directory) as opened:
        if offset is not None and len(opened.partitions) != 1:
            raise click.UsageError("an offset needs one partition: give the partition's directory")
        mode, line = chosen_mode(env, opened.path, mode)
        configs = topic_configs_of(env, opened)
        for one in filter(None, () if as_json else (line, assumed_line(opened, configs, settings))):
            click.echo(f"{one}\n")
        problems += opened.problems
        size = sum(one.size for one in opened.partitions) * (1 + (key is not None) + 2 * (offset is not None))
        with (
            LiveProgress(size, is_shown=size > 0) as bar,
            tempfile.TemporaryDirectory(prefix="diamant-explain-") as scratch,
        ):
            for topic, group in groupby(opened.partitions, key=lambda one: one.topic):
                known = with_topic_configs(None if configs is None else configs.get(topic), settings)
                parsed = parse_settings(known, mode)
                told = []
                for partition in group:
                    if is_folding and not partition.size and topic in INTERNAL_TOPICS and len(opened.partitions) > 1:
                        folded += 1
                        continue
                    os.mkdir(place := f"{scratch}/{partition.name}")
                    checkpoint = opened.cleaner_checkpoint.get((topic, partition.partition))
                    view = CleanerView(mode=mode, checkpoint=checkpoint)
                    try:
                        found, said, damage = explain_partition(
                            env, partition, parsed.config, view, now_ms, place,
                            producer_expiration_ms=parsed.producer_expiration_ms, key=key, offset=offset,
                            advance=bar.advance,
                        )  # fmt: skip
                    except StorageError as error:
                        problems.append(Problem(partition.directory, None, str(error)))
                        continue
                    is_found |= bool(found.records)
                    told.append({**_without_changes(found.to_fields()), "recovery": said})
                    notes += said
                    problems += damage
                bar.hide()
                _show(topic, parsed.cleaner, now_ms, key, offset, told, is_all=is_all, as_json=as_json)
    if folded:
        click.echo(f"and {counted(folded, 'empty partition')} of internal topics (--all shows them)")
    is_missing = not is_found and (key is not None or offset is not None)
    _end(() if as_json else notes, problems, is_missing=is_missing)


def _check_usage(settings: tuple[str, ...], mode: str | None, key: bytes | None, offset: int | None) -> None:
    try:
        parse_settings(settings, mode or KAFKA)
    except ConfigError as error:
        raise click.UsageError(with_hint(error)) from None
    if key is not None and offset is not None:
        raise click.UsageError("a key and an offset exclude each other")


def _without_changes(fields: JsonObject) -> JsonObject:
    """Omit the suggestions for removing records now, because they need a running broker."""
    for one in (fields, *fields["records"]):
        one["change"] = None
    return fields


def _show(
    topic: str,
    cleaner: CleanerSettings,
    now_ms: int,
    key: bytes | None,
    offset: int | None,
    told: list[JsonObject],
    *,
    is_all: bool,
    as_json: bool,
) -> None:
    if not as_json:
        told = [{**one, "problems": ()} for one in told]  # printed to standard error at the end
    fields = {
        "topic": topic,
        "mode": cleaner.mode,
        "kafka_version": followed_version(cleaner.mode, cleaner.kafka_version),
        "now_ms": now_ms,
        "key": None if key is None else key_fields(key),
        "offset": offset,
        "partitions": told,
    }
    if as_json:
        click.echo(json.dumps(fields))
        return
    if not told or ((key is not None or offset is not None) and not any(one["records"] for one in told)):
        return
    console = Console()
    show_explanation(console, fields, False, None if is_all else MAX_ROWS, clock="the clock of this machine")
    console.print()


def _end(notes: Iterable[str], problems: Sequence[Problem], *, is_missing: bool) -> NoReturn:
    for text in notes:
        note(f"a broker would report when it starts: {text}")
    for problem in problems:
        show_problem(problem)
    if is_missing and not problems:
        fail("nothing was found", "not-so")
    if is_missing:
        note("nothing was found")
    sys.exit(EXIT_FAILED if problems else EXIT_DONE)
