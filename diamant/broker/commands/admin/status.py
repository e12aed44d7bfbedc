"""`diamant status`: show the state of a broker and its cleaner."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from diamant.broker.commands.admin.clock import clock_text
from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.console import Console, escape
from diamant.broker.commands.terminal.files import time_text
from diamant.broker.commands.terminal.progress_text import progress_text, round_text
from diamant.broker.commands.terminal.remote import asking
from diamant.broker.commands.terminal.wide_table import Cell, StyledCell, TableColumn, print_table
from diamant.broker.operation_errors import EXIT_DONE, EXIT_NOT_SO
from diamant.duration import duration_text
from diamant.words import counted

MAX_ROWS = 50
_COLUMNS = ("dirty", "lag", "overdue", "last cleaned", "rounds", "removed")
_WIDE_ONLY = ("lag", "last cleaned", "rounds", "removed")
_WIDE = 100
"""The minimum terminal width at which all columns are shown."""
_STATE_WIDTH = 10
_NAME_WIDTH = 30
"""The number of characters of a partition's name that fit on a line with all other columns."""


@click.command()
@click.option("--all", "is_all", is_flag=True, help=f"Print all compacted partitions, not only the first {MAX_ROWS}.")
@click.option(
    "--ready",
    "is_only_ready",
    is_flag=True,
    help="Only check, without a login, that the broker answers, and print nothing. For container health checks.",
)
@asking
def status(is_all: bool, is_only_ready: bool, asked: Asked) -> None:
    """Print a broker's identity, its clock, and the cleaner's progress in each compacted partition.

    Exit codes: 0 all is well; 1 failed; 2 usage; 3 the broker is stopping, a partition is offline, or the cleaner skips a
    partition or a damaged segment.
    """
    if is_only_ready:
        asked.check_ready()
        return
    found = asked.admin.status(timeout=asked.timeout_s)
    jobs = [one for one in asked.admin.call("GET", "/v1/jobs")["jobs"] if one["state"] == "running"]
    asked.show({**found, "jobs": jobs}, lambda console: _print(console, found, jobs, None if is_all else MAX_ROWS))
    is_well = not found["offline"] and not found["cleaner"]["uncleanable_partitions"] and not found["is_stopping"]
    sys.exit(EXIT_DONE if is_well else EXIT_NOT_SO)


def _print(console: Console, found: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]], limit: int | None) -> None:
    from diamant.kernels import WITHOUT_KERNELS

    uptime = duration_text(int(found["uptime_s"]) * 1000)
    state = "[bold red]stopping[/]" if found["is_stopping"] else "[green]running[/]"
    console.print(
        f"broker {found['node_id']} (Diamant {found['version']}, cluster {found['cluster_id']}), {state} for {uptime}"
    )
    if not found.get("has_kernels", True):  # not sent by brokers of earlier versions
        console.print(f"[bold red]without kernels:[/] {WITHOUT_KERNELS}")
    console.print(f"listens on {', '.join(found['listeners'])}, HTTP at {found['http_address']}")
    for one in found.get("brokers", []):
        up = "[green]up[/]" if one["is_up"] else "[bold red]down[/]"
        partitions = f"leads {one['leads']}, follows {one['follows']}"
        rack = f", rack {escape(one['rack'])}" if one["rack"] else ""
        console.print(f"broker {one['broker_id']} {up} at {', '.join(one['listeners'])}{rack}: {partitions}")
    console.print(f"{counted(found['topics'], 'topic')}, {counted(found['partitions'], 'partition')}")
    console.print(f"clock: {clock_text(found['clock'])}")
    if found["offline"]:
        console.print(f"[bold red]offline:[/] {escape(', '.join(found['offline']))}")
    for one in found["future_holds"][:MAX_ROWS]:
        where, until = f"{one['topic']}-{one['partition']}", time_text(one["until_ms"])
        console.print(f"[yellow]timestamps in the future[/] keep {escape(where)} from retention.ms until {until}")
    _print_transactions(console, found.get("transaction_holds", []))
    for one in found.get("share_partitions", [])[:limit]:
        held = "".join(
            f"\n    {escape(lock['member_id'])} holds {lock['first']} to {lock['last']}, delivery {lock['deliveries']}, "
            f"until {time_text(lock['lock_ends_ms'])}"
            for lock in one["held"][:limit]
        )
        where = escape(f"{one['group']}, {one['topic']}-{one['partition']}")
        console.print(f"share group {where}: at {one['start_offset']}, {one['in_flight']} in flight{held}")
    cleaner = found["cleaner"]
    trouble = (
        f", [bold red]{cleaner['uncleanable_partitions']} uncleanable[/]" if cleaner["uncleanable_partitions"] else ""
    )
    if cleaner["must_clean_partitions"]:
        share = f"{100 * cleaner['must_clean_ratio']:.0f} % of the bytes"
        trouble += f", {cleaner['must_clean_partitions']} past max.compaction.lag.ms ({share})"
    kafka_version = cleaner.get("kafka_version")  # not sent by brokers of version 0.3
    mode = f"{cleaner['mode']} {kafka_version}" if kafka_version else cleaner["mode"]
    on = "" if cleaner["is_enabled"] else ", [bold red]off[/]"
    console.print(
        f"cleaner: mode {mode}{on}, {counted(cleaner['compacted_partitions'], 'compacted partition')}{trouble}"
    )
    for one in cleaner["in_progress"]:
        console.print(f"in progress: {escape(round_text(one))}")
    for one in jobs:
        of = f", {one['undertaking']}" if one["undertaking"] is not None else ""
        console.print(f"job {one['id']}: {one['verb']}{of}: {escape(progress_text(one['progress']))}")
    found_partitions = cleaner["partitions"]
    # A broker has a hundred partitions of internal topics, most of them without a record.
    shown = [one for one in found_partitions if limit is None or not _is_idle(one)]
    rows = shown[:limit]
    if rows:
        _print_partitions(console, rows)
    if len(rows) < len(shown):
        console.print(f"... and {len(shown) - len(rows)} more (--all, --json)")
    idle = len(found_partitions) - len(shown)
    if idle:
        console.print(f"and {counted(idle, 'partition')} of internal topics with nothing to clean yet (--all)")
    left_out = cleaner["compacted_partitions"] - len(found_partitions)
    if left_out:
        console.print(f"and {counted(left_out, 'partition')} that the broker does not list")


def _print_transactions(console: Console, held: Sequence[Mapping[str, Any]]) -> None:
    """Print each transaction once, with the overdue partitions that wait for it, and how to abort it."""
    from diamant.cleaner.rules.open_transaction import OpenTransaction

    places: dict[tuple[object, object], list[Mapping[str, Any]]] = {}
    for one in held:
        places.setdefault((one["producer_id"], one["transactional_id"]), []).append(one)
    for group in [*places.values()][:MAX_ROWS]:
        one = group[0]
        opened = OpenTransaction(
            one["producer_id"], one["first_offset"], one["since_ms"], one["aborts_ms"], one["transactional_id"]
        )
        more = f" and {len(group) - 1} more overdue" if len(group) > 1 else ", which is overdue,"
        text = f"{opened.text}, keeps {one['topic']}-{one['partition']}{more} from being cleaned; {opened.end_text}"
        console.print(text, style="yellow", markup=False)
        console.print(f"    to abort it: {one['abort_command']}", soft_wrap=True, markup=False)


def _is_idle(one: Mapping[str, Any]) -> bool:
    trouble = one["uncleanable_reason"] or one["quarantined"] or one["overdue_ms"]
    return one["topic"].startswith("__") and not trouble and not one["rounds"] and not one["dirty_ratio"]


def _print_partitions(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    names = [name for name in _COLUMNS if console.width >= _WIDE or name not in _WIDE_ONLY]
    columns = [
        TableColumn("partition", is_text=True, least=_NAME_WIDTH),
        *map(TableColumn, names),
        TableColumn("state", is_text=True, least=_STATE_WIDTH),
    ]
    lines: list[list[Cell]] = []
    for one in rows:
        trouble = one["uncleanable_reason"] or "; ".join(one["quarantined"])
        cells = {
            "dirty": f"{100 * one['dirty_ratio']:.0f} %",
            "lag": duration_text(one["compaction_lag_ms"]) if one["compaction_lag_ms"] else "-",
            "overdue": duration_text(one["overdue_ms"]) if one["overdue_ms"] else "-",
            "last cleaned": time_text(one["last_cleaned_ms"])[: len("2026-01-31T12:00:00")].replace("T", " "),
            "rounds": f"{one['rounds']:,}",
            "removed": f"{one['records_removed']:,}",
        }
        state = StyledCell(trouble, "red") if trouble else "ok"
        lines.append([f"{one['topic']}-{one['partition']}", *(cells[name] for name in names), state])
    print_table(columns, lines, console=console)
