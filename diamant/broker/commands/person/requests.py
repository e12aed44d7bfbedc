"""`diamant person requests`, `receive`, `extend` and `close`: the register of requests with their due dates."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.console import Console
from diamant.broker.commands.terminal.files import time_text
from diamant.broker.commands.terminal.key_options import IdentifierOption, by_name
from diamant.broker.commands.terminal.remote import asking, going_on
from diamant.broker.operation_errors import EXIT_DONE, EXIT_NOT_SO
from diamant.storage.certificate_states import NOT_CERTIFIED
from diamant.words import counted

_ID = click.argument("id", metavar="ID")


@click.command()
@click.option("--open", "is_open", is_flag=True, help="List only open requests.")
@asking
def requests(*, is_open: bool, asked: Asked) -> None:
    """List people's requests by due date, the earliest first. Exit codes: 0 done; 1 failed; 3 a request is overdue."""
    found = asked.admin.person.requests(open=is_open, timeout=asked.timeout_s)
    asked.show(found, lambda console: _print(console, found["requests"]))
    sys.exit(EXIT_NOT_SO if any(one["is_overdue"] for one in found["requests"]) else EXIT_DONE)


@click.command()
@click.argument("identifiers", nargs=-1, required=True, type=IdentifierOption())
@click.option(
    "--kind",
    type=click.Choice(["forget", "show", "correct"]),
    default="forget",
    show_default=True,
    help="The kind of request.",
)
@click.option("--reference", default="", help="The case number of the request.")
@click.option("--received", default="", help="When the request was received, such as 2026-03-01. Default: now.")
@asking
def receive(identifiers: Sequence[tuple[str, str]], asked: Asked, **fields: Any) -> None:
    """Register a request from the person identified by NAME=VALUE. It is due in a month; `diamant person forget` continues it."""
    _show(asked, asked.admin.person.receive(by_name(identifiers), **fields, timeout=asked.timeout_s))


@click.command()
@_ID
@click.option("--reason", required=True, help="Why more time is needed.")
@click.option("--months", type=click.IntRange(1, 2), default=2, show_default=True, help="The number of months to add.")
@asking
def extend(id: str, reason: str, months: int, asked: Asked) -> None:
    """Extend the due date of request ID, by at most two months in total."""
    _show(asked, asked.admin.person.extend(id, reason=reason, months=months, timeout=asked.timeout_s))


@click.command()
@_ID
@click.option("--reason", required=True, help="Why the request is closed, such as: answered, withdrawn, refused.")
@asking
def close(id: str, reason: str, asked: Asked) -> None:
    """Close request ID. This cancels a request in progress: its last paper says not-certified, and data already removed stays
    removed. The command is refused if every part of the request is complete and only the last paper is missing.
    """
    with going_on(asked, is_named=True):
        found = asked.admin.person.close(id, reason=reason, **asked.waiting)
    _show(asked, found)
    if found["certificate"] == NOT_CERTIFIED and not asked.as_json:
        click.echo(
            "It ended as not certified: what was removed by then stays removed, and its last paper certifies no more."
        )


def _show(asked: Asked, found: Mapping[str, Any]) -> None:
    asked.show(found, lambda console: _print(console, [found]))


def _print(console: Console, found: Sequence[Mapping[str, Any]]) -> None:
    for one in found:
        paper = f" ({one['certificate']})" if one["certificate"] else ""
        due = "" if one["closed_ms"] is not None else f", due {time_text(one['due_ms'])}"
        style = "red" if one.get("is_overdue") else ""
        line = f"{one['id']}  {one['kind']:7}  {one['state']}{paper}{due}{' OVERDUE' if style else ''}"
        console.print(line, style=style, soft_wrap=True, markup=False)
        names = ", ".join(identifier["name"] for identifier in one["identifiers"])
        about = f"    received {time_text(one['received_ms'])}; known by: {names}; reference: {one['reference'] or '-'}"
        console.print(about, soft_wrap=True, markup=False)
        for extension in one["extensions"]:
            console.print(f"    extended {time_text(extension['at_ms'])}: {extension['reason']}", markup=False)
        if one.get("next_due_ms") is not None:
            console.print(
                f"    in progress: the next paper follows from {time_text(one['next_due_ms'])} on", markup=False
            )
        for topic in one["topics"]:
            if (until_ms := topic.get("kept_until_ms")) is not None:
                records = counted(topic["records"], "record")
                console.print(f"    {topic['topic']}: {records} kept until {time_text(until_ms)}", markup=False)
        if one["closed_because"]:
            console.print(f"    closed: {one['closed_because']}", markup=False)
    if not found:
        console.print("There are no requests.")
