"""`diamant log person`: find a person's data in a log directory that no broker is using, with the same map."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import click

from diamant.broker.commands.person.people_map import check_new, give_draft, give_problems, records_option
from diamant.broker.commands.person.person_commands import map_option
from diamant.broker.commands.person.show import ShowOptions, show_lines, show_options
from diamant.broker.commands.settings.clean_settings import parse_settings
from diamant.broker.commands.settings.mode_option import chosen_mode
from diamant.broker.commands.settings.schema_options import schema_options
from diamant.broker.commands.settings.topic_settings import assumed_line, topic_configs_of, with_topic_configs
from diamant.broker.commands.terminal.failures import fail, note
from diamant.broker.commands.terminal.files import one_line_errors, show_problem
from diamant.broker.commands.terminal.lazy import LazyCommand, LazyGroup
from diamant.broker.commands.terminal.progress_text import LiveProgress
from diamant.cleaner.person.directory_search import (
    PartitionTask,
    directory_lines,
    newest_records,
    search_one_by_one,
)
from diamant.cleaner.person.identifiers import Doubtful, TooManyIdentifiers
from diamant.cleaner.person.map_check import check_map
from diamant.cleaner.person.partition_search import TooManyRecords
from diamant.cleaner.person.people_map import MapError, is_internal, parse_people_map
from diamant.cleaner.person.sampling import TopicSample
from diamant.cleaner.person.suggestion import suggest as suggested
from diamant.cleaner.segments.tolerant_reader import OpenLogDirectory, PartitionFiles, open_log_directory
from diamant.cleaner.service.partition_view import CleanerView
from diamant.cleaner.values.schema_places import SchemaPlaces
from diamant.cleaner.values.schemas import Schemas, Values
from diamant.cleaner.values.schemas_topic import SchemasTopic
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.clocks import SystemClock
from diamant.storage.env.env import RealEnv
from diamant.storage.segments.log_config import LogConfig

_HERE = "diamant.broker.commands.person.on_directory"


@click.group(
    cls=LazyGroup,
    lazy={
        "suggest": LazyCommand(f"{_HERE}:suggest", "Suggest a map of people, from samples of the topics."),
        "check": LazyCommand(f"{_HERE}:check", "Check a map of people against the topics."),
        "show": LazyCommand(f"{_HERE}:show", "Show all records of a person, and write a copy."),
        "forget": LazyCommand(
            "diamant.broker.launch.forget_on_directory:forget",
            "Forget a person in all topics of a map, and certify it.",
        ),
    },
)
def person() -> None:
    """Find a person's data in a log directory, and forget it. Like `diamant person`, but without a broker."""


_directory = click.argument("directory", type=click.Path(exists=True, file_okay=False))
_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@click.command()
@_directory
@show_options
@schema_options
@_json
def show(directory: str, wanted: ShowOptions, places: SchemaPlaces, *, as_json: bool) -> None:
    """Show all records in DIRECTORY of the person identified by NAME=VALUE. Like `diamant person show`, but without a broker.

    Explains the records in the same way as a broker that is started on these files now. Changes nothing.

    Exit codes: 0 done; 1 failed; 2 usage, or an identifier that several people may share (--confirm); 3 nothing was found,
    something could not be read, or a topic of the map could not be searched.
    """
    with (
        _opened(directory, places) as found,
        LiveProgress(found.size) as bar,
        tempfile.TemporaryDirectory(prefix="diamant-person-") as scratch,
    ):
        run = partial(search_one_by_one, RealEnv(), found.schemas, scratch, bar.advance)
        people = parse_people_map(wanted.people)
        lines = directory_lines(found.tasks, people, wanted.identifiers, run, is_confirmed=wanted.confirm)
        show_lines(lines, wanted, directory, as_json=as_json)


@click.command()
@_directory
@records_option
@click.option("--file", type=click.Path(dir_okay=False), help="Write the draft to this file, which must not exist yet.")
@schema_options
@_json
def suggest(directory: str, records: int, file: str | None, places: SchemaPlaces, as_json: bool) -> None:
    """Suggest a map of people from samples of the topics in DIRECTORY. Like `diamant person suggest`, but without a broker.

    Exit codes: 0 done; 1 failed; 2 usage, or the file exists; 3 no field looks like an identifier of people.
    """
    check_new(file)
    with _opened(directory, places) as found:
        draft = suggested(found.samples(records))
    give_draft(draft.to_fields(), file, as_json=as_json)


@click.command()
@_directory
@map_option
@records_option
@schema_options
@_json
def check(directory: str, people: Mapping[str, Any], records: int, places: SchemaPlaces, as_json: bool) -> None:
    """Check a map of people against the topics in DIRECTORY. Like `diamant person check`, but without a broker.

    Exit codes: 0 nothing was found; 1 failed; 2 usage, or an invalid map; 3 something was found.
    """
    with _opened(directory, places) as found:
        samples = found.samples(records)
        problems = check_map(parse_people_map(people), samples, found.configs, SystemClock().now_ms())
    sampled = {one.topic: one.records for one in samples}
    give_problems({"problems": [one._asdict() for one in problems], "sampled": sampled}, as_json=as_json)


class _Directory(NamedTuple):
    """The partitions of each topic in a log directory, and the schemas with which to decode their records."""

    tasks: Mapping[str, Sequence[PartitionTask]]
    schemas: Schemas

    @property
    def size(self) -> int:
        return sum(one.partition.size for some in self.tasks.values() for one in some)

    @property
    def configs(self) -> Mapping[str, LogConfig]:
        """The configurations of all topics except internal ones."""
        return {topic: some[0].config for topic, some in self.tasks.items() if not is_internal(topic)}

    def samples(self, records: int) -> list[TopicSample]:
        """Return samples of all topics except internal ones, from about `records` of the newest records of each topic."""
        found = []
        for topic, config in self.configs.items():
            sample = TopicSample(topic, config.is_compacted)
            tasks = self.tasks[topic]
            for task in tasks:
                most = -(-records // len(tasks))
                for record in newest_records(RealEnv(), task.partition, most, show_problem):
                    sample.add(record, Values(self.schemas, topic))
            found.append(sample)
        return found


@contextmanager
def _opened(path: str, places: SchemaPlaces) -> Iterator[_Directory]:
    env, now_ms = RealEnv(), SystemClock().now_ms()
    with one_line_errors(), open_log_directory(env, path) as opened, told_errors():
        schemas = places.schemas(env, SchemasTopic(env, opened.path))
        yield _Directory(_tasks(opened, now_ms), schemas)


@contextmanager
def told_errors() -> Iterator[None]:
    """End a command with a one-line error if its search fails."""
    try:
        yield
    except MapError as error:
        fail(f"map: {error}", "bad-argument")
    except Doubtful as error:
        fail(f"{error}. Check the identifiers and the map, and confirm the search if it is right", "unconfirmed")
    except (TooManyIdentifiers, TooManyRecords) as error:
        fail(str(error) or "too many records of a partition match: several people may share an identifier")


def _tasks(opened: OpenLogDirectory, now_ms: int) -> dict[str, list[PartitionTask]]:
    env = RealEnv()
    mode = chosen_mode(env, opened.path, None).mode
    configs = topic_configs_of(env, opened)
    assumed = assumed_line(opened, configs, ())
    if assumed:
        note(assumed)
    for problem in opened.problems:
        show_problem(problem)
    found: dict[str, list[PartitionTask]] = {}
    for one in opened.partitions:
        known = None if configs is None else configs.get(one.topic)
        task = topic_task(one, known, mode, opened.cleaner_checkpoint, now_ms)
        found.setdefault(one.topic, []).append(task)
    return found


def topic_task(
    partition: PartitionFiles,
    configs: Mapping[str, str] | None,
    mode: str,
    checkpoint: Mapping[TopicPartition, int],
    now_ms: int,
) -> PartitionTask:
    """Return the task of searching a partition. `configs`: the configurations of its topic, None if they are unknown."""
    config = parse_settings(with_topic_configs(configs, ()), mode).config
    view = CleanerView(mode=mode, checkpoint=checkpoint.get((partition.topic, partition.partition)))
    return PartitionTask(partition, config, view, now_ms)
