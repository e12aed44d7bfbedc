"""`diamant ghosts`: list deleted keys that consumer groups may still hold."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.console import Console
from diamant.broker.commands.terminal.files import time_text, visible
from diamant.broker.commands.terminal.operation_command import operation_command
from diamant.broker.commands.terminal.wide_table import TableColumn, print_table
from diamant.broker.operation_errors import EXIT_DONE, EXIT_NOT_SO
from diamant.words import counted


@operation_command("ghosts")
def ghosts(asked: Asked, **fields: Any) -> None:
    """List deleted keys of TOPIC that consumer groups may still hold.

    A group misses a deletion if it makes no progress for longer than delete.retention.ms: the tombstone is removed before the
    group reads it. diamant.tombstone.hold=groups keeps tombstones for such groups. The list is empty when the broker starts. A
    key leaves the list when it is written again, or when the group rewinds. `diamant explain TOPIC --tombstones` shows the
    tombstones that groups have yet to read.

    Exit codes: 0 the list is empty; 1 failed; 2 usage, or no such topic; 3 the list has keys.
    """
    found = asked.admin.ghosts(**fields, timeout=asked.timeout_s)
    asked.show(found, lambda console: _print(console, found))
    sys.exit(EXIT_NOT_SO if found["ghosts"] or found["left_out"] else EXIT_DONE)


def _print(console: Console, found: Mapping[str, Any]) -> None:
    if found["ghosts"]:
        heads = ("partition", "deleted at", "removed", "key", "groups")
        rows = [
            [
                str(one["partition"]),
                f"{one['offset']:,}",
                time_text(one["removed_ms"]),
                visible(one["key"].get("text", "")) or f"0x{one['key'].get('hex', '')}",
                visible(", ".join(one["groups"])),
            ]
            for one in found["ghosts"]
        ]
        print_table([TableColumn(head, is_text=True) for head in heads], rows, console=console)
    elif not found["left_out"]:
        console.print("No group has missed a deletion.")
    if found["left_out"]:
        console.print(f"... and {counted(found['left_out'], 'deletion')} more that the broker only counted")
