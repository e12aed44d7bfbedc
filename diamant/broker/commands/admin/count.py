"""`diamant count`: count the records of a topic of a running broker, by kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.console import Console, escape
from diamant.broker.commands.terminal.operation_command import operation_command
from diamant.broker.commands.terminal.strip_text import draw, of_fields
from diamant.broker.commands.terminal.wide_table import TableColumn, print_table
from diamant.cleaner.rules.record_kinds import RARE, SHOWN
from diamant.words import size_text


@operation_command("count")
@click.option("--segments", is_flag=True, help="Read every record and draw the segments of each partition.")
def count(asked: Asked, segments: bool, **fields: Any) -> None:
    """Print how many records of each kind TOPIC has, and how many transaction markers.

    Without --exact, reads at most 1 GiB of records, for at most a second of processor time. For the partitions beyond that limit,
    prints bounds taken from batch headers, which are exact right after a compaction. Aborted, undecided (part of an open
    transaction) and keyless records, and transaction markers, which are not records, have a column only if there are any.

    Exit codes: 0 done; 1 failed; 2 usage, or no such topic.
    """
    if segments:
        fields.pop("exact")
        by_segment = asked.admin.segments(**fields, all=True, **asked.waiting)
        asked.show(by_segment, lambda console: _print_segments(console, by_segment))
        return
    found = asked.admin.count(**fields, **asked.waiting)
    asked.show(found, lambda console: _print(console, found))


def _print(console: Console, found: Mapping[str, Any]) -> None:
    console.print(f"[bold]{escape(found['topic'])}[/]")
    kinds = [kind for kind in SHOWN if kind not in RARE or found[kind]["most"]]
    rows = [[str(one["partition"]), *(_text(one[kind]) for kind in kinds)] for one in found["partitions"]]
    if len(rows) > 1:
        rows.append(["all", *(_text(found[kind]) for kind in kinds)])
    print_table([*map(TableColumn, ("partition", *kinds))], rows, console=console)
    for one in found["partitions"]:
        for problem in one["problems"]:
            console.print(f"partition {one['partition']}: [red]{escape(problem)}[/]")
    if found["why_not_exact"]:
        console.print(f"bounds: {escape(found['why_not_exact'])}; --exact counts all")


def _print_segments(console: Console, found: Mapping[str, Any]) -> None:
    draw(console, of_fields(found))
    counted = [segment["counts"] for one in found["partitions"] for segment in one["segments"] if segment["counts"]]
    kinds = [kind for kind in SHOWN if kind not in RARE or any(one[kind] for one in counted)]
    rows = [
        [str(one["partition"]), str(segment["base_offset"]), size_text(segment["bytes"]), *_counts(segment, kinds)]
        for one in found["partitions"]
        for segment in one["segments"]
    ]
    heads = ("partition", "segment", "bytes", *kinds)
    print_table([*map(TableColumn, heads)], rows, console=console)


def _counts(segment: Mapping[str, Any], kinds: Sequence[str]) -> list[str]:
    """Return the cells of a segment: `?` if its records were not counted, 0 if it is empty."""
    counts = segment["counts"]
    if counts is None:
        return ["?" if segment["bytes"] else "0"] * len(kinds)
    return [f"{counts[kind]:,}" for kind in kinds]


def _text(bounds: Mapping[str, int]) -> str:
    least, most = bounds["least"], bounds["most"]
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
