"""`diamant spark person`: find a person's data in log directories of any size, with the same map."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from diamant.broker.commands.person.on_directory import told_errors, topic_task
from diamant.broker.commands.person.people_map import check_new, give_draft, records_option
from diamant.broker.commands.person.show import ShowOptions, show_lines, show_options
from diamant.broker.commands.settings.mode_option import chosen_mode
from diamant.broker.commands.settings.schema_options import schema_options
from diamant.broker.commands.settings.spark_options import conf_option, master_option
from diamant.broker.commands.spark.running import running
from diamant.broker.commands.terminal.lazy import LazyCommand, LazyGroup
from diamant.cleaner.person.people_map import parse_people_map
from diamant.cleaner.person.suggestion import suggest as suggested
from diamant.cleaner.values.schema_places import SchemaPlaces
from diamant.storage import names
from diamant.storage.env.clocks import SystemClock
from diamant.storage.env.env import RealEnv

if TYPE_CHECKING:
    from diamant.cleaner.person.directory_search import PartitionTask
    from diamant.cleaner.spark.analyses.person_search import PersonSearch

_HERE = "diamant.broker.commands.spark.person"


@click.group(
    cls=LazyGroup,
    lazy={
        "suggest": LazyCommand(f"{_HERE}:suggest", "Suggest a map of people, from samples of the topics."),
        "show": LazyCommand(f"{_HERE}:show", "Show all records of a person, and write a copy."),
    },
)
def person() -> None:
    """Find a person's data in log directories. Like `diamant person`, but without a broker."""


_path = click.argument("path")
_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@click.command()
@_path
@show_options
@schema_options
@master_option
@conf_option
@_json
def show(
    path: str, wanted: ShowOptions, places: SchemaPlaces, master: str, spark_settings: Sequence[str], *, as_json: bool
) -> None:
    """Show all records below PATH of the person identified by NAME=VALUE.

    See `diamant log person show`. PATH is a log directory, a quoted glob or an s3: URI, whose partitions are copied to executors.

    Exit codes: 0 done; 1 failed; 2 usage, or an identifier that several people may share (--confirm); 3 nothing was found,
    something could not be read, or a topic of the map could not be searched.
    """
    with _searching(path, places, master, spark_settings) as search:
        lines = search.lines(parse_people_map(wanted.people), wanted.identifiers, is_confirmed=wanted.confirm)
        show_lines(lines, wanted, path, as_json=as_json)


@click.command()
@_path
@records_option
@click.option("--file", type=click.Path(dir_okay=False), help="Write the draft to this file, which must not exist yet.")
@schema_options
@master_option
@conf_option
@_json
def suggest(
    path: str,
    records: int,
    file: str | None,
    places: SchemaPlaces,
    master: str,
    spark_settings: Sequence[str],
    as_json: bool,
) -> None:
    """Suggest a map of people from samples of the topics below PATH. Like `diamant person suggest`, but without a broker.

    Exit codes: 0 done; 1 failed; 2 usage, or the file exists; 3 no field looks like an identifier of people.
    """
    check_new(file)
    with _searching(path, places, master, spark_settings) as search:
        draft = suggested(list(search.samples(records)))
    give_draft(draft.to_fields(), file, as_json=as_json)


@contextmanager
def _searching(path: str, places: SchemaPlaces, master: str, settings: Sequence[str]) -> Iterator[PersonSearch]:
    with running("person", master, settings, [path]) as session, told_errors():
        from diamant.cleaner.spark.analyses.person_search import PersonSearch

        yield PersonSearch(session, _tasks(path), places)


def _tasks(path: str) -> dict[str, list[PartitionTask]]:
    from diamant.cleaner.spark.analyses.log_table import topic_configs
    from diamant.cleaner.spark.source.partition_logs import (
        find_partitions,
        log_directories,
        place_of,
        read_checkpoint,
    )

    logs, now_ms = find_partitions([path]), SystemClock().now_ms()
    modes, configs, checkpoints = {}, {}, {}
    for one in log_directories(logs):
        modes[one] = chosen_mode(RealEnv(), one.path, None).mode
        configs[one] = topic_configs(one)
        checkpoints[one] = read_checkpoint(one, names.CLEANER_CHECKPOINT)
    found: dict[str, list[PartitionTask]] = {}
    for log in logs:
        place = place_of(log).parent
        task = topic_task(log, configs[place].get(log.topic), modes[place], checkpoints[place], now_ms)
        found.setdefault(log.topic, []).append(task)
    return found
