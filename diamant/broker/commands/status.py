"""`diamant status`: how a broker and its cleaner are."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from diamant.broker.commands.asking import EXIT_DONE, EXIT_NOT_SO, Asked, asking
from diamant.broker.commands.clock import clock_text
from diamant.broker.commands.reading import counted, time_text
from diamant.broker.verbs.duration import duration_text

if TYPE_CHECKING:
    from rich.console import Console

MAX_ROWS = 50


@click.command()
@click.option("--all", "is_all", is_flag=True, help=f"Print all compacted partitions, not only the first {MAX_ROWS}.")
@asking
def status(is_all: bool, asked: Asked) -> None:
    """Print what a broker is, its clock, and how far its cleaner is with each compacted partition.

    The exit code is 3 if a partition is offline, or one that the cleaner leaves alone because of an error.
    """
    found = asked.admin.status(timeout_s=asked.timeout_s)
    asked.show(found, lambda console: _print(console, found, None if is_all else MAX_ROWS))
    is_well = not found["offline"] and not found["cleaner"]["uncleanable_partitions"] and not found["is_stopping"]
    sys.exit(EXIT_DONE if is_well else EXIT_NOT_SO)


def _print(console: Console, found: Mapping[str, Any], limit: int | None) -> None:
    from rich.markup import escape
    from rich.table import Table

    uptime = duration_text(int(found["uptime_s"]) * 1000)
    state = "[bold red]stopping[/]" if found["is_stopping"] else "[green]running[/]"
    console.print(
        f"broker {found['node_id']} (Diamant {found['version']}, cluster {found['cluster_id']}), {state} for {uptime}"
    )
    console.print(f"listens on {', '.join(found['listeners'])}, HTTP at {found['http_address']}")
    console.print(f"{counted(found['topics'], 'topic')}, {counted(found['partitions'], 'partition')}")
    console.print(f"clock: {clock_text(found['clock'])}")
    if found["offline"]:
        console.print(f"[bold red]offline:[/] {escape(', '.join(found['offline']))}")
    cleaner = found["cleaner"]
    trouble = (
        f", [bold red]{cleaner['uncleanable_partitions']} uncleanable[/]" if cleaner["uncleanable_partitions"] else ""
    )
    on = "" if cleaner["is_enabled"] else ", [bold red]off[/]"
    console.print(
        f"cleaner: mode {cleaner['mode']}{on}, {cleaner['compacted_partitions']} compacted partitions{trouble}"
    )
    rows = cleaner["partitions"][:limit]
    if not rows:
        return
    table = Table("partition", "dirty", "oldest dirty", "overdue", "last cleaned", "rounds", "removed", "state")
    for one in rows:
        trouble = one["uncleanable_reason"] or "; ".join(one["quarantined"])
        table.add_row(
            escape(f"{one['topic']}-{one['partition']}"),
            f"{100 * one['dirty_ratio']:.0f} %",
            duration_text(one["compaction_lag_ms"]) if one["compaction_lag_ms"] else "-",
            duration_text(one["overdue_ms"]) if one["overdue_ms"] else "-",
            time_text(one["last_cleaned_ms"]),
            str(one["rounds"]),
            str(one["records_removed"]),
            f"[red]{escape(trouble)}[/]" if trouble else "ok",
        )
    console.print(table)
    if len(rows) < cleaner["compacted_partitions"]:
        console.print(f"... and {cleaner['compacted_partitions'] - len(rows)} more (--all, --json)")
