"""`diamant compact`: clean a topic of a running broker now, and wait for the result."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.console import Console, escape
from diamant.broker.commands.terminal.failures import fail
from diamant.broker.commands.terminal.files import time_text
from diamant.broker.commands.terminal.operation_command import operation_command
from diamant.broker.commands.terminal.strip_text import MAX_STRIPS, DrawnPartition, draw, of_fields, segments_of
from diamant.broker.commands.terminal.wide_table import TableColumn, print_table
from diamant.broker.operation_errors import EXIT_DONE, EXIT_NOT_SO
from diamant.cleaner.rules.record_kinds import counted

_COLUMNS = ("partition", "offsets", "rounds", "segments", "bytes", "records", "markers", "removed", "kept")
_WIDE_ONLY = ("offsets", "segments", "markers")
_WIDE = 110
"""The minimum terminal width at which all columns are shown."""

_WORDS = {
    "open_transaction": "held back",
    "min_compaction_lag": "too young",
}


@operation_command("compact")
def compact(asked: Asked, **fields: Any) -> None:
    """Compact TOPIC now, wait until it is clean, and print how many records were removed and kept.

    On a Kafka cluster other than Diamant, temporarily lowers configuration values of the topic, and waits for every replica.

    An open transaction holds back all records from its first offset on. min.compaction.lag.ms holds back younger records, unless
    --force is given. The first line of the output says what is held back, and until when.

    Exit codes: 0 the topic is clean (or its tombstones are gone); 1 failed, or --timeout passed, although Diamant continues;
    2 usage, or no such topic; 3 records are held back, a tombstone has not reached its delete horizon, or --timeout passed on a
    cluster other than Diamant.
    """
    if not fields["wait"] and fields["until"] == "clean":
        fail("--no-wait is for --until tombstones-gone, which is not given", "bad-argument")
    topic, partition = fields["topic"], fields["partition"]
    if not asked.admin.is_diamant:
        from diamant.broker.commands.clusters.erase import compact_elsewhere

        fields["force"] = bool(fields["force"])
        compact_elsewhere(asked, show_report, **fields)
    before = segments_of(asked, topic, partition)
    report = asked.admin.compact(**fields, **asked.waiting)
    after = segments_of(asked, topic, partition) if before is not None else None
    asked.show(report, lambda console: show_report(console, report, before, after))
    sys.exit(EXIT_DONE if report["is_reached"] else EXIT_NOT_SO)


def show_report(
    console: Console,
    report: Mapping[str, Any],
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """Print a report: a table, the ranges held back, and the segments before and after."""
    held = f": {escape(report['held_text'])}" if report["held_text"] else ""
    console.print(f"[bold]{escape(report['topic'])}[/]: {_verdict(report)} after {report['duration_ms']:g} ms{held}")
    left_out = () if console.width >= _WIDE else _WIDE_ONLY
    if not any(one["markers_before"] for one in report["partitions"]):
        left_out = (*left_out, "markers")
    columns = [name for name in _COLUMNS if name not in left_out]
    rows = []
    for one in report["partitions"]:
        cells = {
            "partition": str(one["partition"]),
            "offsets": f"{_number(one['first_dirty_offset'])}..{_number(one['cleaned_to_offset'])}",
            "rounds": f"{_number(one['rounds'])} {' '.join(one['runners'])}".strip(),
            "segments": f"{_number(one['segments_before'])} → {_number(one['segments_after'])}",
            "bytes": f"{_number(one['bytes_before'])} → {_number(one['bytes_after'])}",
            "records": f"{_number(one['records_before'])} → {_number(one['records_after'])}",
            "markers": f"{_number(one['markers_before'])} → {_number(one['markers_after'])}",
            "removed": _counts(one["removed"]),
            "kept": "?" if one["kept"] is None else _counts(one["kept"]),
        }
        rows.append([cells[name] for name in columns])
    print_table([TableColumn(name, name in ("removed", "kept")) for name in columns], rows, console=console)
    if report["max_counted_bytes"] and any(one["kept"] is None for one in report["partitions"]):
        bound = f"{report['max_counted_bytes'] >> 30} GiB"
        console.print(f"?: not counted, since it would take reading more than {bound}; diamant count --exact reads all")
    if report["horizon_ms"] is not None:
        console.print(f"the last tombstone may go at {time_text(report['horizon_ms'])}")
    if before is not None and after is not None:
        draw(console, _before_and_after(before, after))


def _before_and_after(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[DrawnPartition]:
    """Return the drawings of the largest partitions, each before and after the compaction."""
    pairs = sorted(zip(of_fields(before), of_fields(after), strict=False), key=lambda pair: -pair[0].size)
    found = []
    for old, new in sorted(pairs[: MAX_STRIPS // 2], key=lambda pair: int(pair[0].label)):
        found += [old._replace(label=f"{old.label} before"), new._replace(label=f"{new.label} after")]
    return found


def _verdict(report: Mapping[str, Any]) -> str:
    if report["is_reached"]:
        return "[green]clean[/]" if report["until"] == "clean" else "[green]tombstones gone[/]"
    return "[yellow]partly held back[/]" if not report["is_clean"] else "[yellow]tombstones are left[/]"


def _counts(counts: Mapping[str, int]) -> str:
    return "\n".join(_counted(count, reason) for reason, count in counts.items() if count) or "-"


def _counted(count: int, reason: str) -> str:
    return f"{count:,} {_WORDS[reason]}" if reason in _WORDS else counted(count, reason)


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"
