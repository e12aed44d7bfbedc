"""Tables that may be wider than a terminal: columns that do not fit continue in tables below.

Without a terminal or $COLUMNS, lines are not wrapped, for other programs to read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

UNBOUNDED = 1000


class TableColumn(NamedTuple):
    """A heading, and the alignment of the cells below it."""

    name: str
    is_text: bool = False


def print_table(
    columns: Sequence[TableColumn],
    rows: Sequence[Sequence[str]],
    *,
    repeated: int = 1,
    console: Console | None = None,
    is_ruled: bool = True,
) -> None:
    """Print rows, one cell per column. Each continuation table repeats the first `repeated` columns.

    If the repeated columns leave no room for another one, the terminal wraps the lines. Prints to `console`, at its width, or to
    standard output. Without `is_ruled` there is no line below the headings.
    """
    from rich.console import Console
    from rich.measure import Measurement

    if console is not None:
        limit = console.width
        console = Console(file=console.file, force_terminal=console.is_terminal, width=UNBOUNDED, highlight=False)
    else:
        is_bounded = sys.stdout.isatty() or "COLUMNS" in os.environ
        limit = Console().width if is_bounded else UNBOUNDED
        console = Console(width=UNBOUNDED)

    def fits(chosen: Sequence[int]) -> bool:
        return Measurement.get(console, console.options, _table(columns, rows, chosen, is_ruled)).maximum <= limit

    first = list(range(repeated))
    chosen = list(first)
    for index in range(repeated, len(columns)):
        if len(chosen) > repeated and not fits([*chosen, index]):
            console.print(_table(columns, rows, chosen, is_ruled))
            chosen = list(first)
        chosen.append(index)
    console.print(_table(columns, rows, chosen, is_ruled))


def _table(
    columns: Sequence[TableColumn], rows: Sequence[Sequence[str]], chosen: Sequence[int], is_ruled: bool
) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False) if is_ruled else Table(box=None)
    for index in chosen:
        table.add_column(columns[index].name, justify="left" if columns[index].is_text else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(row[index]) for index in chosen))
    return table
