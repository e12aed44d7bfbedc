"""`diamant person show`: find all records of a person in the topics of a map, and write a copy to hand to that person."""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, NoReturn, TypeVar

import click

from diamant.broker.commands.person.person_commands import person_options
from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.console import Console, escape
from diamant.broker.commands.terminal.failures import fail
from diamant.broker.commands.terminal.key_options import by_name
from diamant.broker.commands.terminal.remote import OutputFile, asking, registry_option
from diamant.broker.commands.terminal.wide_table import TableColumn, print_table
from diamant.broker.operation_errors import EXIT_DONE, EXIT_NOT_SO
from diamant.words import not_searched_text

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ShowOptions:
    """The options of the commands that show a person."""

    identifiers: Mapping[str, Sequence[str]]
    people: Mapping[str, Any]
    confirm: bool
    file: str | None
    page: str | None


def show_options(command: F) -> F:
    """Add the arguments NAME=VALUE and the options for the map, the search and the copy; the command gets them as `wanted`."""

    @functools.wraps(command)
    def run(
        *args: Any,
        identifiers: Sequence[tuple[str, str]],
        people: Mapping[str, Any],
        confirm: bool,
        file: str | None,
        page: str | None,
        **options: Any,
    ) -> Any:
        return command(*args, wanted=ShowOptions(by_name(identifiers), people, confirm, file, page), **options)

    for option in reversed(
        (
            person_options,
            click.option("--confirm", is_flag=True, help="Follow identifiers that may belong to several people."),
            click.option("--file", type=OutputFile(), help="Write the copy to this file, one JSON object per line."),
            click.option("--page", type=OutputFile(), help="Write the copy as an HTML page to this file."),
        )
    ):
        run = option(run)
    return run  # type: ignore[return-value]


@click.command()
@show_options
@registry_option
@asking
def show(wanted: ShowOptions, registry: str | None, asked: Asked) -> None:
    """Show all records of the person identified by NAME=VALUE in all topics of the map, including those not yet cleaned away.

    Follows identifiers found in the records until no new ones turn up, and prints each with its source. Without --file and
    --page, prints the records, one JSON object per line. --timeout bounds the wait for each part of the response.

    Exit codes: 0 done; 1 failed; 2 usage, or an identifier that several people may share (--confirm); 3 nothing was found,
    something could not be read, or a topic of the map could not be searched.
    """
    lines = asked.admin.person.show(
        wanted.identifiers, wanted.people, confirm=wanted.confirm, registry=registry, timeout=asked.timeout_s
    )
    show_lines(_without_progress(lines, asked), wanted, asked.bootstrap, as_json=asked.as_json)


def _without_progress(lines: Iterable[Mapping[str, Any]], asked: Asked) -> Iterator[Mapping[str, Any]]:
    for line in lines:
        if line["kind"] != "progress":
            yield line
            continue
        asked.on_progress(
            {
                "stage": "searching",
                "done": line["read_bytes"],
                "total": line["total_bytes"],
                "unit": "bytes",
                "rate_per_s": None,
                "left_s": None,
            }
        )
    asked.end_progress()


def show_lines(lines: Iterable[Mapping[str, Any]], wanted: ShowOptions, source: str, *, as_json: bool) -> NoReturn:
    """Write the copy, or print it, and exit with the command's exit code. `source` is the origin to state on the page."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as kept:  # Print nothing before the result is complete.
        kept.writelines(f"{json.dumps(line)}\n" for line in lines)
        found = _counts(_read(kept))
        _write(kept, wanted, source)
        if as_json:
            click.echo(json.dumps(found))
        elif wanted.file is None and wanted.page is None:
            for one in _read(kept):
                click.echo(json.dumps(one))
        else:
            _print(Console(), found)
    sys.exit(EXIT_DONE if found["records"] and found["is_complete"] else EXIT_NOT_SO)


def _read(lines: IO[str]) -> Iterator[Mapping[str, Any]]:
    lines.seek(0)
    yield from map(json.loads, lines)


def _write(lines: IO[str], wanted: ShowOptions, source: str) -> None:
    texts: dict[str, Iterable[str]] = {}
    if wanted.file is not None:
        texts[wanted.file] = (f"{json.dumps(line)}\n" for line in _read(lines))
    if wanted.page is not None:
        from diamant.cleaner.person.copy_page import copy_page

        texts[wanted.page] = copy_page(lambda: _read(lines), int(time.time() * 1000), source)
    for path, parts in texts.items():
        try:
            with open(path, "w", encoding="utf-8", opener=_private) as out:
                out.writelines(parts)
        except OSError as error:
            fail(f"{path}: {error.strerror or error}")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _counts(lines: Iterable[Mapping[str, Any]]) -> dict[str, object]:
    """Summarize the result without the records: identifiers, topics and counts."""
    kept: dict[str, list[Mapping[str, Any]]] = {"identifier": [], "topic": []}
    end: Mapping[str, Any] = {}
    for line in lines:
        if line["kind"] in kept:
            kept[line["kind"]].append({name: value for name, value in line.items() if name != "kind"})
        elif line["kind"] == "end":
            end = line
    return {
        "identifiers": kept["identifier"],
        "topics": kept["topic"],
        "records": end["records"],
        "without_topic": end["without_topic"],
        "not_searched": end["not_searched"],
        "is_complete": end["is_complete"],
    }


def _print(console: Console, found: Mapping[str, Any]) -> None:
    for one in found["identifiers"]:
        source = "given" if one["topic"] is None else f"from {one['topic']}, by {one['by']}"
        console.print(f"{one['name']} = {escape(one['value'])}  ({source})", soft_wrap=True)
    rows = [[one["topic"], f"{one['records']:,}", f"{one['of']:,}"] for one in found["topics"]]
    heads = ("topic", "records", "of")
    print_table([TableColumn(head, is_text=head == "topic") for head in heads], rows, console=console, is_ruled=False)
    for one in found["topics"]:
        for problem in one["problems"]:
            console.print(f"[red]{one['topic']}: {escape(problem)}[/red]", soft_wrap=True)
    for entry in found["without_topic"]:
        console.print(f"[yellow]The map has {escape(entry)}, and no topic is called so.[/yellow]")
    for one in found["not_searched"]:
        console.print(f"[yellow]{escape(not_searched_text(one))}.[/yellow]", soft_wrap=True)
    if not found["records"]:
        console.print("[yellow]Nothing of this person was found.[/yellow]")
