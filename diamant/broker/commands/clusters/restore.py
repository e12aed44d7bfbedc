"""`diamant restore`: put back the configurations of a cluster's topics that a killed run has left lowered."""

from __future__ import annotations

import sys

import click

from diamant.broker.clusters import for_admin
from diamant.broker.clusters.register import Register
from diamant.broker.commands.clusters.erase import print_not_as_before
from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.console import Console, escape
from diamant.broker.commands.terminal.failures import note
from diamant.broker.commands.terminal.files import time_text
from diamant.broker.commands.terminal.remote import asking
from diamant.broker.commands.terminal.wide_table import TableColumn, print_table
from diamant.broker.operation_errors import EXIT_DONE, EXIT_FAILED, EXIT_NOT_SO
from diamant.json_types import JsonObject


@click.command()
@click.argument("id", metavar="[ID]", required=False)
@click.option(
    "--forget", is_flag=True, help="Also give up the erasure if it is open, and remove its key from this machine."
)
@asking
def restore(id: str | None, asked: Asked, *, forget: bool) -> None:
    """Put back the configurations that a killed erasure or compaction left lowered on a Kafka cluster other than Diamant.
    Without the ID of an erasure or compaction, list all open work, including erasures with replicas that have not been read.

    Values that another client has changed since then are reported and left alone. A topic that fails does not stop the others;
    it is reported, and stays in the list. Exit codes: 0 done; 1 failed on at least one topic, or a file in the list is damaged;
    2 usage, another cluster, or no such ID; 3 some values were left alone.
    """
    if id is None:
        if forget:
            raise click.UsageError(
                "--forget needs the ID of the erasure to give up; without it, restore lists what is open"
            )
        rows, damaged = _open_work()
        asked.show({"open": rows, "damaged": damaged}, lambda console: _print(console, asked, rows, damaged))
        sys.exit(EXIT_FAILED if damaged else EXIT_DONE)
    found = for_admin.restore(asked.admin, id, forget=forget)
    asked.show(found, lambda console: _print_restored(console, asked, found))
    sys.exit(EXIT_FAILED if found["not_put_back"] else EXIT_NOT_SO if found["left"] else EXIT_DONE)


def _open_work() -> tuple[list[JsonObject], list[str]]:
    register = Register()
    works, damaged = register.listed()
    rows: list[JsonObject] = [
        {
            "id": work.id,
            "verb": work.verb,
            "cluster_id": work.cluster_id,
            "bootstrap_server": work.bootstrap,
            "topics": work.topics,
            "began_ms": work.began_ms,
            "is_in_progress": register.is_in_progress(work),
            "lowered": {topic: sorted(own) for topic, own in work.changes.items()},
            "missing": {} if work.outcome is None else work.outcome.missing,
        }
        for work in works
    ]
    return rows, damaged


def _print(console: Console, asked: Asked, rows: list[JsonObject], damaged: list[str]) -> None:
    for problem in damaged:
        note(problem)
    if not rows:
        console.print("nothing else is open" if damaged else "nothing is open")
        return
    heads = ("id", "work", "topics", "since", "cluster", "lowered", "open replicas")
    cells = [
        [
            one["id"],
            one["verb"],
            ", ".join(one["topics"]),
            time_text(one["began_ms"]),
            one["bootstrap_server"],
            ", ".join(one["lowered"]) or "-",
            ", ".join(one["missing"]) or "-",
        ]
        for one in rows
    ]
    print_table([TableColumn(head, is_text=True) for head in heads], cells, console=console, is_ruled=False)
    for one in rows:
        if one["is_in_progress"]:
            console.print(f"{one['id']} is in progress")
        elif one["lowered"]:
            console.print(
                f"to put back what {one['id']} has lowered: {asked.command('restore', one['id'])}", soft_wrap=True
            )
        elif not one["missing"]:
            again = asked.command("erase", "--resume", one["id"])
            console.print(f"to remove the tombstones of {one['id']} after their horizon: {again}", soft_wrap=True)
        else:
            console.print(f"to continue {one['id']}: {asked.command('erase', '--resume', one['id'])}", soft_wrap=True)


def _print_restored(console: Console, asked: Asked, found: JsonObject) -> None:
    console.print(f"{found['id']}: put back on {escape(', '.join(found['topics'])) or 'no topic'}")
    print_not_as_before(console, asked, found, found["id"])
    if found["is_open"]:
        console.print(f"The erasure is open: {asked.command('erase', '--resume', found['id'])}", soft_wrap=True)
