"""`diamant roll`: close the active segments of a topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.console import Console
from diamant.broker.commands.terminal.operation_command import operation_command


@operation_command("roll")
def roll(asked: Asked, **fields: Any) -> None:
    """Close the active segment of each partition of TOPIC, as segment.ms would.

    Only closed segments can be cleaned, or removed by retention. An empty active segment stays open.

    Exit codes: 0 done; 1 failed; 2 usage, or no such topic.
    """
    found = asked.admin.roll(**fields, timeout=asked.timeout_s)
    asked.show(found, lambda console: _print(console, found))


def _print(console: Console, found: Mapping[str, Any]) -> None:
    for one in found["rolled"]:
        console.print(f"partition {one['partition']}: the active segment begins at offset {one['active_segment']:,}")
    if not found["rolled"]:
        console.print("nothing to close: the active segments are empty")
