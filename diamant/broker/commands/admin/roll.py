"""`diamant roll`: close the active segments of a topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from diamant.broker.commands.terminal.completion import topic_names
from diamant.broker.commands.terminal.remote import Asked, asking

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.option("--partition", "-p", type=click.IntRange(min=0), metavar="N", help="Only this partition.")
@asking
def roll(topic: str, partition: int | None, asked: Asked) -> None:
    """Close the active segment of each partition of TOPIC, as segment.ms would.

    Only closed segments can be cleaned, or removed by retention. An empty active segment stays open.

    Exit codes: 0 done; 1 failed; 2 usage, or no such topic.
    """
    found = asked.admin.roll(topic, partition, timeout_s=asked.timeout_s)
    asked.show(found, lambda console: _print(console, found))


def _print(console: Console, found: Mapping[str, Any]) -> None:
    for one in found["rolled"]:
        console.print(f"partition {one['partition']}: the active segment begins at offset {one['active_segment']:,}")
    if not found["rolled"]:
        console.print("nothing to close: the active segments are empty")
