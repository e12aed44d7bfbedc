"""`diamant fault`: inject faults into a running broker, for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.console import Console, escape
from diamant.broker.commands.terminal.lazy import LazyGroup
from diamant.broker.commands.terminal.remote import asking

_COUNTS = ("id", "matched", "count", "held", "fired")
_ID = click.argument("id", type=click.IntRange(min=1), metavar="ID")


@click.group(cls=LazyGroup)
def fault() -> None:
    """Inject faults into a running broker, for tests."""


@fault.command()
@click.argument("fields", nargs=-1, required=True, metavar="NAME=VALUE...")
@asking
def add(fields: tuple[str, ...], asked: Asked) -> None:
    """Add a fault and print its ID: diamant fault add api=Produce error=NOT_LEADER_OR_FOLLOWER times=2.

    The fields are those of POST /v1/faults. A VALUE is read as JSON (a number, true, an object) if possible, otherwise as text.

    Exit codes: 0 done; 1 failed; 2 usage, or refused.
    """
    made = asked.admin.call("POST", "/v1/faults", dict(map(_field, fields)), timeout=asked.timeout_s)
    asked.show(made, lambda console: console.print(str(made["id"])))


@fault.command(name="list")
@asking
def show(asked: Asked) -> None:
    """List all faults and how often each has fired."""
    found = asked.admin.call("GET", "/v1/faults", timeout=asked.timeout_s)
    asked.show(found, lambda console: _print(console, found))


@fault.command()
@_ID
@asking
def release(id: int, asked: Asked) -> None:
    """Release the requests held by the fault ID."""
    found = asked.admin.call("POST", f"/v1/faults/{id}/release", {}, timeout=asked.timeout_s)
    asked.show(found, lambda console: console.print(f"released {id}"))


@fault.command()
@_ID
@asking
def remove(id: int, asked: Asked) -> None:
    """Remove the fault ID."""
    found = asked.admin.call("DELETE", f"/v1/faults/{id}", timeout=asked.timeout_s)
    asked.show(found, lambda console: console.print(f"removed {id}"))


def _field(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r}: expected NAME=VALUE, as in times=2")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _print(console: Console, found: Mapping[str, Any]) -> None:
    for one in found["faults"]:
        spec = {
            name: value for name, value in one.items() if name not in _COUNTS and value not in (None, False, [], {})
        }
        text = ", ".join(f"{name}={value}" for name, value in spec.items())
        console.print(f"[bold]{one['id']}[/]: {escape(text)}; fired {one['count']:,} times")
    if not found["faults"]:
        console.print("no fault is armed")
