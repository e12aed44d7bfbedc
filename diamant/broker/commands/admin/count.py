"""`diamant count`: how many records are in a topic of a running broker, by kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from diamant.broker.commands.terminal.remote import Asked, asking

if TYPE_CHECKING:
    from rich.console import Console

_KINDS = ("records", "live", "superseded", "tombstones", "other", "markers")


@click.command()
@click.argument("topic")
@click.option("--partition", "-p", type=click.IntRange(min=0), metavar="N", help="Only this partition.")
@click.option("--exact", "is_exact", is_flag=True, help="Read every record, instead of bounds at once.")
@asking
def count(topic: str, partition: int | None, is_exact: bool, asked: Asked) -> None:
    """Print how many records TOPIC has: live ones, superseded ones, tombstones, others, and markers of transactions.

    Without --exact these are bounds from headers; right after a compaction they are exact. "other" is aborted, of an open
    transaction, or without a key. Markers are no records.

    Exit codes: 0 done; 1 failed; 2 usage, or no such topic.
    """
    found = asked.admin.count(
        topic, partition, exact=is_exact, timeout_s=asked.timeout_s, on_progress=asked.on_progress
    )
    asked.show(found, lambda console: _print(console, found))


def _print(console: Console, found: Mapping[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    console.print(
        f"[bold]{escape(found['topic'])}[/]{'' if found['is_exact'] else ' (--exact counts what is not certain)'}"
    )
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("partition", *_KINDS):
        table.add_column(name, justify="right")
    for one in found["partitions"]:
        table.add_row(str(one["partition"]), *(_text(one[kind]) for kind in _KINDS))
    if len(found["partitions"]) > 1:
        table.add_row("all", *(_text(found[kind]) for kind in _KINDS))
    console.print(table)
    for one in found["partitions"]:
        for problem in one["problems"]:
            console.print(f"partition {one['partition']}: [red]{escape(problem)}[/]")


def _text(bounds: Mapping[str, int]) -> str:
    least, most = bounds["least"], bounds["most"]
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
