"""`diamant snapshot` and `diamant reset`: save the state of a broker, and restore it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.console import Console
from diamant.broker.commands.terminal.files import time_text
from diamant.broker.commands.terminal.lazy import LazyGroup
from diamant.broker.commands.terminal.operation_command import operation_command
from diamant.broker.commands.terminal.remote import asking
from diamant.broker.commands.terminal.wide_table import TableColumn, print_table


@click.group(cls=LazyGroup)
def snapshot() -> None:
    """Save the state of a broker, for tests that start over from it (diamant reset)."""


@snapshot.command()
@asking
def create(asked: Asked) -> None:
    """Save the current state and print its ID."""
    made = asked.admin.snapshot()
    asked.show(made, lambda console: console.print(made["id"]))


@snapshot.command(name="list")
@asking
def show(asked: Asked) -> None:
    """List all snapshots, oldest first."""
    found = asked.admin.snapshots()
    asked.show(found, lambda console: _print(console, found["snapshots"]))


@snapshot.command()
@click.argument("id", metavar="ID")
@asking
def delete(id: str, asked: Asked) -> None:
    """Delete the snapshot ID."""
    asked.admin.delete_snapshot(id)
    asked.show({"id": id}, lambda console: console.print(f"deleted {id}"))


@operation_command("reset")
def reset(asked: Asked, **fields: Any) -> None:
    """Restore a SNAPSHOT, given by its ID: topics, records, groups, transactions, configurations, and a manual clock.

    Everything written since is lost. To clients, the reset looks like a restart of the broker.
    """
    found = asked.admin.reset(**fields, timeout=asked.timeout_s)
    asked.show(found, lambda console: console.print(f"back at {found['id']}"))


def _print(console: Console, found: Sequence[Mapping[str, Any]]) -> None:
    if not found:
        console.print("There are no snapshots.")
        return
    columns = [TableColumn("id", is_text=True), TableColumn("made", is_text=True), TableColumn("bytes")]
    rows = [[one["id"], time_text(one["created_ms"]), f"{one['size_bytes']:,}"] for one in found]
    print_table(columns, rows, console=console, is_ruled=False)
