"""Why a certificate has no claim about partitions, for a terminal: place by place, each once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from diamant.broker.commands.terminal.files import visible

if TYPE_CHECKING:
    from rich.console import Console

MAX_SHOWN = 20
"""Places that are told; the certificate has all."""


def print_reasons(console: Console, certificate: Mapping[str, Any]) -> None:
    """Print the places because of which something is not certified. A file that is in the way of all partitions is one place."""
    from rich.markup import escape

    places = dict.fromkeys(
        (problem["file"], problem.get("offset"), problem["reason"])
        for one in certificate["not_certified"]
        for problem in one["problems"]
    )
    for file, offset, reason in [*places][:MAX_SHOWN]:
        where = "" if offset is None else f", offset {offset}"
        console.print(f"[red]{escape(visible(f'{file}{where}: {reason}'))}[/red]", soft_wrap=True)
    if len(places) > MAX_SHOWN:
        console.print(f"[red]... and {len(places) - MAX_SHOWN:,} places more; see the certificate.[/red]")
