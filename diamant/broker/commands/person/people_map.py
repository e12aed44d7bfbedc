"""`diamant person suggest` and `check`: draft a map of people, and check one against the topics."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import click

from diamant.broker.commands.person.person_commands import map_option
from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.completion import topic_names
from diamant.broker.commands.terminal.console import Console
from diamant.broker.commands.terminal.failures import fail
from diamant.broker.commands.terminal.remote import OutputFile, asking, registry_option
from diamant.broker.operation_errors import EXIT_DONE, EXIT_NOT_SO

records_option = click.option(
    "--records",
    type=click.IntRange(1, 100_000),
    default=1_000,
    show_default=True,
    metavar="N",
    help="The number of newest records to sample in each topic.",
)


@click.command()
@click.argument("topics", nargs=-1, shell_complete=topic_names)
@records_option
@click.option("--file", type=click.Path(dir_okay=False), help="Write the draft to this file, which must not exist yet.")
@registry_option
@asking
def suggest(topics: tuple[str, ...], records: int, file: str | None, registry: str | None, asked: Asked) -> None:
    """Suggest a map of people from samples of TOPICS (default: all), as YAML with reasons and counts.

    Recognizes the fields with identifiers of people by the shape of their values (e-mail, phone), by their names, by tags in the
    schema (confluent:tags), and by values that they have in common with fields of other topics.

    Exit codes: 0 done; 1 failed; 2 usage, or the file exists; 3 no field looks like an identifier of people.
    """
    check_new(file)
    found = asked.admin.person.suggest(topics, records=records, registry=registry, **asked.waiting)
    asked.end_progress()
    give_draft(found, file, as_json=asked.as_json)


def check_new(file: str | None) -> None:
    """Exit with an error if the file for a draft exists already."""
    if file is not None and os.path.exists(file):
        fail(f"{file}: it exists, and may have been edited; expected the name of a new file", "bad-argument")


def give_draft(found: Mapping[str, Any], file: str | None, *, as_json: bool) -> NoReturn:
    """Write a draft to a file, or print it, and exit with the command's exit code."""
    from diamant.cleaner.person.map_file import draft_text

    text = draft_text(found)
    if file is not None:
        _write(file, text, "x")
    if as_json:
        click.echo(json.dumps(found))
    elif file is None:
        click.echo(text, nl=False)
    else:
        _print_draft(Console(), found, file)
    sys.exit(EXIT_DONE if found["places"] else EXIT_NOT_SO)


@click.command()
@map_option
@records_option
@click.option("--fides", type=OutputFile(), help="Also write the map as a dataset of Fides to this file.")
@registry_option
@asking
def check(people: Mapping[str, Any], records: int, fides: str | None, registry: str | None, asked: Asked) -> None:
    """Check a map of people against the topics. Reports topics that are missing in the map, fields that no record has,
    identifiers to which no other identifier leads, and topic retention that does not match how long the map keeps records.

    Exit codes: 0 nothing was found; 1 failed; 2 usage, or an invalid map; 3 something was found.
    """
    if fides is not None:
        from diamant.cleaner.person.map_file import dataset_text
        from diamant.cleaner.person.people_map import parse_people_map

        _write(fides, dataset_text(parse_people_map(people), "diamant"), "w")
    found = asked.admin.person.check(people, records=records, registry=registry, **asked.waiting)
    asked.end_progress()
    give_problems(found, as_json=asked.as_json)


def give_problems(found: Mapping[str, Any], *, as_json: bool) -> NoReturn:
    """Print what is wrong with a map, and exit with the command's exit code."""
    if as_json:
        click.echo(json.dumps(found))
    else:
        _print_problems(Console(), found)
    sys.exit(EXIT_NOT_SO if found["problems"] else EXIT_DONE)


def _write(path: str, text: str, mode: str) -> None:
    try:
        with open(path, mode, encoding="utf-8") as out:
            out.write(text)
    except OSError as error:
        fail(f"{path}: {error.strerror or error}")


def _print_draft(console: Console, found: Mapping[str, Any], file: str) -> None:
    topics, places = len(found["map"]["topics"]), len(found["places"])
    console.print(f"{file}: {topics} of {len(found['sampled'])} topics, {places} places of identifiers", markup=False)
    console.print("Check every entry, then: diamant person check")


def _print_problems(console: Console, found: Mapping[str, Any]) -> None:
    for one in found["problems"]:
        where = " ".join(text for text in (one["topic"], one["place"]) if text)
        console.print(
            f"{where}: {one['text']} ({one['kind']})" if where else f"{one['text']} ({one['kind']})", markup=False
        )
    if not found["problems"]:
        records = sum(found["sampled"].values())
        console.print(f"Nothing was found in {records:,} records of {len(found['sampled'])} topics.")
