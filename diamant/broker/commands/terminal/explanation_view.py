"""Explanations as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from diamant.broker.commands.terminal.console import Console, escape, plain, wrap
from diamant.broker.commands.terminal.files import time_text
from diamant.duration import duration_text
from diamant.words import counted

MAX_ROWS = 100


MAX_GROUPS = 10


MIN_TEXT_WIDTH = 30


_ORDINALS = ("first", "second", "third", "fourth", "fifth")


_STATUS_STYLES = {"live": "green", "superseded": "yellow", "tombstone": "magenta", "undecided": "cyan"}


def show_explanation(
    console: Console,
    found: Mapping[str, Any],
    is_tombstones: bool,
    limit: int | None,
    *,
    clock: str = "the broker's clock",
) -> None:
    """Print an explanation: for each partition with a finding, a heading, and the reasons why it or its records are kept."""
    is_of_records = found["key"] is not None or found["offset"] is not None or is_tombstones
    count = sum(len(one["records"]) + one["records_left_out"] for one in found["partitions"])
    now_ms = found["now_ms"]
    console.print(f"[bold]{escape(found['topic'])}[/] at {_time(now_ms)} by {clock}")
    if is_of_records:
        what = "tombstone" if is_tombstones else "record"
        which = "that is the latest of its key" if is_tombstones else "of the key on the disk"
        plural = "tombstones that are the latest of their keys" if is_tombstones else "records of the key on the disk"
        console.print(counted(count, f"{what} {which}", plural) if count else f"[green]no {plural}[/]")
    for one in found["partitions"]:
        if is_of_records and not one["records"] and not one["problems"]:
            continue
        _heading(console, one, is_bounded=found.get("visibility") == "bounded")
        if is_of_records:
            _records(console, one, now_ms, limit, with_groups=is_tombstones)
        else:
            _whole(console, one, now_ms)
        for problem in one["problems"]:
            console.print(f"[red]could not be read:[/] {escape(problem)}")


def _heading(console: Console, one: Mapping[str, Any], *, is_bounded: bool) -> None:
    """Print a partition's heading. `is_bounded`: the offset up to which it is clean is only a lower bound."""
    clean = "never cleaned"
    if "compact" in one["cleanup_policy"]:
        clean = f"clean to {'at least ' * is_bounded}{one['first_dirty_offset']:,}"
    policy = one["cleanup_policy"] or "none"
    console.print(
        f"\n[bold]{escape(one['topic'])}-{one['partition']}[/]: policy {policy}, offsets {one['log_start_offset']:,} to "
        f"{one['log_end_offset']:,}, {clean}, {counted(one['segments'], 'segment')}, {counted(one['bytes'], 'byte')}"
    )


def _whole(console: Console, one: Mapping[str, Any], now_ms: int) -> None:
    """Print why a partition is not clean."""
    is_compacted = "compact" in one["cleanup_policy"]
    rows = []
    if one["gates"]:
        rows.append(("kept by", _gates(one["gates"], now_ms)))
    elif is_compacted:
        rows.append(("kept by", "[green]nothing: nothing is left to clean[/]"))
    if is_compacted:
        rows.append(("next round", _when(one["next_round_ms"], now_ms, "none, unless something changes")))
    if one["gates"] and one["change"] is not None:
        rows.append(("to clean now", _change(one["change"])))
    _print_rows(console, rows)


def _records(console: Console, one: Mapping[str, Any], now_ms: int, limit: int | None, *, with_groups: bool) -> None:
    """Print records. Consecutive records with the same reasons share one list of reasons."""
    shown = (
        one["records"]
        if limit is None or len(one["records"]) <= limit
        else [*one["records"][: limit - 1], one["records"][-1]]
    )
    for rows, records in groupby(shown, lambda record: _rows(record, now_ms, with_groups=with_groups)):
        for record in records:
            console.print(_title(record))
        _print_rows(console, rows)
    left = len(one["records"]) - len(shown)
    if left:
        console.print(f"... and {left:,} more before the last one (--all, --json)")
    if one["records_left_out"]:
        console.print(f"... and {one['records_left_out']:,} more that the broker does not list")


def _title(record: Mapping[str, Any]) -> str:
    style = _STATUS_STYLES.get(record["status"], "white")
    by = f" by {record['superseded_by']:,}" if record["superseded_by"] is not None else ""
    return (
        f"[bold]offset {record['offset']:,}[/]: [{style}]{record['status']}[/]{by}, of {_time(record['timestamp'])}, "
        f"in {escape(_short(record['segment']))}"
    )


def _rows(record: Mapping[str, Any], now_ms: int, *, with_groups: bool) -> list[tuple[str, str]]:
    """Return the rows below a record's title."""
    goes = _when(record["goes_ms"], now_ms, "never, unless something changes")
    if record["segment"].endswith(".deleted"):
        goes = f"out of the log; the file {_when(record['leaves_disk_ms'], now_ms, 'at the next stop')}"
    rows = [
        *(("held by", _holder(one, now_ms)) for one in record.get("held_by", ())),
        ("kept by", _gates(record["gates"], now_ms)),
        ("removed", ("" if record["bound"] == "exact" else f"at the {record['bound']} ") + goes),
    ]
    if record["change"] is not None:
        rows.append(("to remove now", _change(record["change"])))
    if with_groups:
        rows.append(("groups behind", _groups(record["groups_behind"])))
    return rows


def _holder(one: Mapping[str, Any], now_ms: int) -> str:
    count = one["deliveries"]
    delivery = f"{_ORDINALS[count - 1]} delivery" if count <= len(_ORDINALS) else f"delivery {count}"
    left = duration_text(max(one["lock_ends_ms"] - now_ms, 0))
    return f"member {escape(one['member_id'])}, {delivery}, lock ends in {left} (share group {escape(one['group'])})"


def _print_rows(console: Console, rows: Sequence[tuple[str, str]]) -> None:
    """Print names and their texts, with continuation lines indented. A table would leave trailing blanks.

    A command to run is on a line of its own and never wrapped, so that users can copy and paste it.
    """
    indent = 4 + max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        start = f"  {name}".ljust(indent)
        for paragraph in text.split("\n"):
            is_command = plain(paragraph).startswith("diamant ")
            for line in [paragraph] if is_command else wrap(paragraph, max(MIN_TEXT_WIDTH, console.width - indent)):
                console.print(start + line, soft_wrap=True)
                start = " " * indent


def _gates(gates: Sequence[Mapping[str, Any]], now_ms: int) -> str:
    mark = "• " if len(gates) > 1 else ""
    return "\n".join(f"{mark}{_gate(gate, now_ms)}" for gate in gates)


def _gate(gate: Mapping[str, Any], now_ms: int) -> str:
    until = (
        ""
        if gate["until_ms"] is None or gate["until_ms"] <= now_ms
        else f", [bold]until {_when(gate['until_ms'], now_ms, '')}[/]"
    )
    seen = "" if gate.get("visibility", "known") == "known" else f" ({gate['visibility']})"
    return f"{escape(gate['text'])}{until}{seen}"


def _when(time_ms: int | None, now_ms: int, never: str) -> str:
    if time_ms is None:
        return never
    return "now" if time_ms <= now_ms else f"{_time(time_ms)} (in {duration_text(time_ms - now_ms)})"


def _time(time_ms: int) -> str:
    return time_text(time_ms).replace("T", " ", 1)


def _change(change: Mapping[str, Any]) -> str:
    lines = [escape(change["text"])]
    if change["command"] is not None:
        lines.append(f"[cyan]diamant {escape(change['command'])}[/]")
    configs = ", ".join(f"[cyan]{escape(name)}={escape(value)}[/]" for name, value in change["configs"].items())
    if configs:
        lines.append(f"{'set' if change['command'] is None else 'or set'} {configs} on the topic")
    return "\n".join(lines)


def _groups(groups: list[str]) -> str:
    if not groups:
        return "[green]none[/]"
    more = f", and {len(groups) - MAX_GROUPS} more" if len(groups) > MAX_GROUPS else ""
    return f"[red]{escape(', '.join(groups[:MAX_GROUPS]))}{more}[/]"


def _short(segment: str) -> str:
    return segment.lstrip("0") if segment.lstrip("0")[:1].isdigit() else "0" + segment.lstrip("0")
