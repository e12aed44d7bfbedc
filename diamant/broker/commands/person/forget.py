"""`diamant person forget`: show what would happen to a person's records, then do it, and save the certificate (the paper)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypeVar

import click

from diamant.broker.commands.person.person_commands import chosen_people, numbered, people_options
from diamant.broker.commands.terminal import remote
from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.console import Console, escape
from diamant.broker.commands.terminal.files import time_text
from diamant.broker.commands.terminal.wide_table import TableColumn, print_table
from diamant.broker.operation_errors import EXIT_DONE, EXIT_FAILED, EXIT_NOT_SO, EXIT_NOTHING
from diamant.json_types import JsonObject
from diamant.storage.certificate_states import NOT_CERTIFIED, NOTHING_MATCHED
from diamant.words import counted, not_searched_text, stay_text

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--reason", help="The reason. The paper records it, so it must not contain an identifier."),
    click.option("--reference", default="", help="The case number of the request, recorded in the paper."),
    click.option("--received", default="", help="When the request was received, such as 2026-03-01. Default: now."),
    click.option("--dry-run", is_flag=True, help="Show what would happen, and change nothing."),
    click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
    click.option("--confirm", is_flag=True, help="Follow identifiers that may belong to several people."),
    click.option(
        "--now",
        is_flag=True,
        help="Also remove the tombstones now, before their delete horizon, if all groups have read them.",
    ),
    click.option("--confirm-groups-behind", is_flag=True, help="Apply --now even if groups have unread tombstones."),
)


def forget_options(command: F) -> F:
    """Add the command-line arguments and options for `forget_person` to a command."""
    for option in reversed((people_options, remote.certificate_options, *_OPTIONS)):
        command = option(command)
    return command


@click.command()
@forget_options
@remote.registry_option
@remote.asking
def forget(asked: Asked, **fields: Any) -> None:
    """Forget the person identified by NAME=VALUE in all topics of the map, and certify it.

    First shows what would happen in each topic, and asks for confirmation. With --each, forgets several people in one search and
    one job, and writes one paper per person; the exit code is 4 only if nothing was found for any of them.

    Exit codes: 0 done; 1 failed, or a file could not be written; 2 usage; 3 not everything is certified, a topic could not be
    searched, records of the person were written again, or you declined; 4 nothing was found for the person.
    """
    forget_person(asked, asked.admin.person, asked.admin.certificate, **fields)


class Forgets(Protocol):
    """The part of `admin.person` that the command needs."""

    @property
    def preview(self) -> Callable[..., JsonObject]: ...

    @property
    def preview_each(self) -> Callable[..., JsonObject]: ...

    @property
    def forget(self) -> Callable[..., JsonObject]: ...

    @property
    def forget_each(self) -> Callable[..., JsonObject]: ...


def forget_person(
    asked: Asked,
    person: Forgets,
    certificate: Callable[[str], JsonObject],
    identifiers: Sequence[tuple[str, str]],
    each: list[dict[str, list[str]]] | None,
    people: Mapping[str, Any],
    file: str | None,
    page: str | None,
    reason: str | None,
    *,
    dry_run: bool,
    yes: bool,
    **fields: Any,
) -> NoReturn:
    """Show what would happen, ask for confirmation, forget the person, and exit with the command's exit code."""
    subjects = chosen_people(identifiers, each)
    if reason is None and not dry_run:
        raise click.UsageError("Missing option '--reason'.")
    with remote.going_on(asked):
        of_search = {name: fields[name] for name in ("confirm", "registry")}
        if each is None:
            preview = person.preview(subjects[0], people, **of_search, **asked.waiting)
        else:
            preview = person.preview_each(subjects, people, **of_search, **asked.waiting)
    plans = preview.get("people", [preview])
    asked.end_progress()
    if dry_run:
        asked.show(preview, lambda console: _print_plans(console, plans))
        sys.exit(EXIT_DONE if preview["records"] else EXIT_NOTHING)
    if not yes and not _is_agreed(plans):
        sys.exit(EXIT_NOT_SO)
    with remote.going_on(asked):
        if each is None:
            answer = person.forget(subjects[0], people, reason=reason or "", **fields, **asked.waiting)
        else:
            answer = person.forget_each(subjects, people, reason=reason or "", **fields, **asked.waiting)
    asked.end_progress()
    codes, console = set(), Console()
    for number, one in enumerate(answer.get("people", [answer]), 1):
        found = one if each is None or one["error"] else {**one, "certificate": certificate(one["id"])}
        paths = (file, page) if each is None else (numbered(file, number), numbered(page, number))
        is_written = "certificate" not in found or remote.write_outputs(found, *paths)
        codes |= {_code(found)} if is_written else {_code(found), EXIT_FAILED}
        if not asked.as_json:
            _print_heading(console, number, 1 if each is None else len(answer["people"]))
            _print(console, asked, found)
    if asked.as_json:
        click.echo(json.dumps(answer))
    worst_first = (EXIT_NOT_SO, EXIT_FAILED, EXIT_DONE, EXIT_NOTHING)
    sys.exit(next(code for code in worst_first if code in codes))


def _code(found: Mapping[str, Any]) -> int:
    """Return the exit code for the outcome of one person."""
    if "certificate" not in found:
        return EXIT_FAILED
    paper = found["certificate"]
    if found["state"] == NOT_CERTIFIED or paper["not_searched"] or _written_since(paper):
        return EXIT_NOT_SO
    return EXIT_NOTHING if found["state"] == NOTHING_MATCHED else EXIT_DONE


def _is_agreed(plans: Sequence[Mapping[str, Any]]) -> bool:
    """Show the plans and ask for confirmation, both on standard error. No answer means no."""
    _print_plans(Console(sys.stderr), plans)
    try:
        return click.confirm("Do this now?", err=True)
    except click.Abort:
        click.echo(err=True)
        return False


def _print_heading(console: Console, number: int, count: int) -> None:
    if count > 1:
        console.print(f"[bold]person {number} of {count}[/bold]")


def _print_plans(console: Console, plans: Sequence[Mapping[str, Any]]) -> None:
    for number, plan in enumerate(plans, 1):
        _print_heading(console, number, len(plans))
        _print_plan(console, plan)


def _print_plan(console: Console, plan: Mapping[str, Any]) -> None:
    rows = [[one["topic"], f"{one['records']:,}", f"{one['of_records']:,}", _what(one)] for one in plan["topics"]]
    heads = ("topic", "records", "of", "what happens")
    print_table([TableColumn(head, is_text=True) for head in heads], rows, console=console, is_ruled=False)
    _print_stays(console, plan["topics"])
    for one in plan["topics"]:
        if one["undecided"]:
            records = counted(one["undecided"], "record")
            console.print(
                f"[yellow]{one['topic']}: {records} may match and cannot be decoded, or cannot be changed; they hold the "
                "paper.[/yellow]"
            )
        if one["fields_not_seen"]:
            names = ", ".join(one["fields_not_seen"])
            text = f"{one['topic']}: no record of the person has {names}, so the paper would not be certified"
            console.print(f"[yellow]{escape(text)}: correct the map, or take it out.[/yellow]", soft_wrap=True)
        for partition, groups in one["groups_behind"].items():
            console.print(f"{partition}: {escape(', '.join(groups))} would read the tombstone later.")
    for text in plan["doubts"]:
        console.print(f"[yellow]{escape(text)}.[/yellow]", soft_wrap=True)
    for topic, names in plan["not_searched"].items():
        text = not_searched_text({"topic": topic, "identifiers": names})
        console.print(f"[yellow]{escape(text)}.[/yellow]", soft_wrap=True)
    if not plan["records"]:
        console.print("[yellow]Nothing of this person was found.[/yellow]")


def _what(one: Mapping[str, Any]) -> str:
    """Return what happens to the records of a topic."""
    if one["do"] == "blank":
        return f"blanked: {', '.join(one['fields'])}"
    done = {"keep": "stays", "erase-key": "values go, a tombstone tells readers", "remove-record": "removed"}
    return done[one["do"]]


def _print_stays(console: Console, topics: Sequence[Mapping[str, Any]]) -> None:
    for text in map(stay_text, topics):
        if text:
            console.print(f"{escape(text)}.", soft_wrap=True)


def _written_since(paper: Mapping[str, Any]) -> int:
    from diamant.cleaner.evidence.certificates.page_words import written_since_count

    return sum(written_since_count(part) for part in paper["parts"])


def _print(console: Console, asked: Asked, found: Mapping[str, Any]) -> None:
    if "certificate" not in found:
        console.print(f"[red]{escape(found['error'])}[/red]", soft_wrap=True)
        return
    paper = found["certificate"]
    states = {part["id"]: part["state"] for part in paper["parts"]}
    console.print(f"[bold]{found['state']}[/bold], certificate {escape(found['certificate_path'])}", soft_wrap=True)
    for one in paper["not_searched"]:
        console.print(f"[yellow]{escape(not_searched_text(one))}.[/yellow]", soft_wrap=True)
    rows = [
        [row["topic"], f"{row['records']:,}", ", ".join(sorted({states[one] for one in row["parts"]})) or row["do"]]
        for row in paper["topics"]
    ]
    heads = ("topic", "records", "state")
    print_table([TableColumn(head, is_text=True) for head in heads], rows, console=console, is_ruled=False)
    _print_stays(console, paper["topics"])
    for row in paper["topics"]:
        if row["problem"]:
            console.print(f"[red]{row['topic']}: {escape(row['problem'])}[/red]")
    if since := _written_since(paper):
        console.print(f"[red]The person wrote again: {counted(since, 'record')}, which are no part of it.[/red]")
    for partition, groups in found["groups_behind"].items():
        console.print(f"{partition}: the tombstone stays, {escape(', '.join(groups))} have not read it.")
    if found["next_due_ms"] is not None:
        console.print(
            f"The next paper follows from {time_text(found['next_due_ms'])} on: {asked.command('certificates', found['id'])}",
            soft_wrap=True,
        )
    if not paper["is_evidence"]:
        console.print("[yellow]A manual clock is in use: this is no evidence.[/yellow]")
