"""`diamant count`: count the records of a topic of a running broker, by kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from diamant.broker.commands.terminal.files import size_text
from diamant.broker.commands.terminal.operation_command import operation_command
from diamant.broker.commands.terminal.remote import Asked
from diamant.broker.commands.terminal.strip import draw, of_fields
from diamant.broker.commands.terminal.wide_table import TableColumn, print_table

if TYPE_CHECKING:
    from rich.console import Console

_SEGMENT_KINDS = ("live", "superseded", "tombstones", "aborted", "undecided", "keyless", "markers")
_KINDS = ("records", "live", "superseded", "tombstones", "other", "markers")


@operation_command("count")
@click.option("--segments", is_flag=True, help="Read every record and draw the segments of each partition.")
def count(asked: Asked, segments: bool, **fields: Any) -> None:
    """Print the number of live records, superseded records, tombstones, other records and transaction markers of TOPIC.

    The numbers are exact for up to 1 GiB of records that can be counted in a second of processor time. Without --exact, further
    partitions get bounds from batch headers; right after a compaction these are exact, too. "other" records are aborted, part of
    an open transaction, or have no key. Markers are not records.

    Exit codes: 0 done; 1 failed; 2 usage, or no such topic.
    """
    if segments:
        fields.pop("exact")
        by_segment = asked.admin.call("POST", "/v1/segments", {**fields, "all": True}, **asked.waiting)
        asked.show(by_segment, lambda console: _print_segments(console, by_segment))
        return
    found = asked.admin.count(**fields, **asked.waiting)
    asked.show(found, lambda console: _print(console, found))


def _print(console: Console, found: Mapping[str, Any]) -> None:
    from rich.markup import escape

    console.print(f"[bold]{escape(found['topic'])}[/]")
    rows = [[str(one["partition"]), *(_text(one[kind]) for kind in _KINDS)] for one in found["partitions"]]
    if len(rows) > 1:
        rows.append(["all", *(_text(found[kind]) for kind in _KINDS)])
    print_table([*map(TableColumn, ("partition", *_KINDS))], rows, console=console)
    for one in found["partitions"]:
        for problem in one["problems"]:
            console.print(f"partition {one['partition']}: [red]{escape(problem)}[/]")
    if found["why_not_exact"]:
        console.print(f"bounds: {escape(found['why_not_exact'])}; --exact counts all")


def _print_segments(console: Console, found: Mapping[str, Any]) -> None:
    draw(console, of_fields(found))
    rows = [
        [str(one["partition"]), str(segment["base_offset"]), size_text(segment["bytes"]), *_counts(segment)]
        for one in found["partitions"]
        for segment in one["segments"]
    ]
    heads = ("partition", "segment", "bytes", *_SEGMENT_KINDS)
    print_table([*map(TableColumn, heads)], rows, console=console)


def _counts(segment: Mapping[str, Any]) -> list[str]:
    """Return the cells of a segment: `?` if it was not counted. An empty one need not be."""
    counts = segment["counts"]
    if counts is None:
        return ["?" if segment["bytes"] else "0"] * len(_SEGMENT_KINDS)
    return [f"{counts[kind]:,}" for kind in _SEGMENT_KINDS]


def _text(bounds: Mapping[str, int]) -> str:
    least, most = bounds["least"], bounds["most"]
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
