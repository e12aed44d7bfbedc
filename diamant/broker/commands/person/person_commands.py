"""`diamant person`: the command group, and the options that several of its commands have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from diamant.broker.commands.terminal.key_options import IdentifierOption, PeopleFile, by_name
from diamant.broker.commands.terminal.lazy import LazyCommand, LazyGroup
from diamant.storage.input_file import read_input

_MAP = "diamant.broker.commands.person.people_map"
_FORGET = "diamant.broker.commands.person.forget"
_REQUESTS = "diamant.broker.commands.person.requests"

PERSON_COMMANDS = {
    "suggest": LazyCommand(f"{_MAP}:suggest", "Suggest a map of people, from samples of the topics."),
    "check": LazyCommand(f"{_MAP}:check", "Check a map of people against the topics."),
    "show": LazyCommand("diamant.broker.commands.person.show:show", "Show all records of a person, and write a copy."),
    "forget": LazyCommand(f"{_FORGET}:forget", "Forget a person in all topics of a map, and certify it."),
    "requests": LazyCommand(f"{_REQUESTS}:requests", "List the requests of persons, those due next first."),
    "receive": LazyCommand(f"{_REQUESTS}:receive", "Register a request before anything is done about it."),
    "extend": LazyCommand(f"{_REQUESTS}:extend", "Extend the due date of a request, with a reason."),
    "close": LazyCommand(f"{_REQUESTS}:close", "Close a request, with a reason; one in progress is cancelled."),
}

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=LazyGroup, lazy=PERSON_COMMANDS)
def person() -> None:
    """Find and forget a person's data in all topics, with one certificate (the paper), and track requests and their due dates."""


class MapFile(click.ParamType["dict[str, object]"]):
    """The path of a data map, converted to its JSON object."""

    name = "FILE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, object]:
        if isinstance(value, dict):
            return value
        from diamant.cleaner.person.map_file import MAX_BYTES, parse_map_file
        from diamant.cleaner.person.people_map import MapError

        try:
            return parse_map_file(read_input(value, MAX_BYTES), str(value)).to_fields()
        except OSError as error:
            self.fail(f"{value}: {error.strerror or error}", param, ctx)
        except MapError as error:
            self.fail(str(error), param, ctx)


def map_option(command: F) -> F:
    """Add the option `--map`, which the command gets as `people`."""
    option = click.option(
        "--map",
        "people",
        type=MapFile(),
        default="people.yaml",
        show_default=True,
        help="The map of people, YAML or JSON, or a dataset of Fides.",
    )
    return option(command)


def person_options(command: F) -> F:
    """Add the arguments NAME=VALUE, which the command gets as `identifiers`, and the option `--map`."""
    return click.argument("identifiers", nargs=-1, required=True, type=IdentifierOption())(map_option(command))


def people_options(command: F) -> F:
    """Add the arguments NAME=VALUE, which the command gets as `identifiers`, and the options `--each` and `--map`."""
    each = click.option(
        "--each",
        type=PeopleFile(),
        help="Instead of NAME=VALUE: a file with one line NAME=VALUE for each person. Output files are numbered: with "
        "paper.json, the second person's file is paper-2.json.",
    )
    return click.argument("identifiers", nargs=-1, type=IdentifierOption())(each(map_option(command)))


def chosen_people(
    identifiers: Sequence[tuple[str, str]], each: list[dict[str, list[str]]] | None
) -> list[dict[str, list[str]]]:
    """Return the identifiers of each person that a command is about. Raises UsageError unless exactly one source is given."""
    if bool(identifiers) == (each is not None):
        raise click.UsageError("expected either NAME=VALUE, such as customer_id=42, or --each FILE")
    return [by_name(identifiers)] if each is None else each


def numbered(path: str | None, number: int | None) -> str | None:
    """Return the output path for the person with this number; without a number, the path itself."""
    if path is None or number is None:
        return path
    found = Path(path)
    return str(found.with_name(f"{found.stem}-{number}{found.suffix}"))
