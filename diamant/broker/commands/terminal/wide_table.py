"""Tables that may be wider than a terminal: columns that do not fit continue in tables below.

If the output is not a terminal and $COLUMNS is not set, lines are not wrapped, so that other programs can read them.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from diamant.broker.commands.terminal.console import Console, cells, escape

UNBOUNDED = 1000


class TableColumn(NamedTuple):
    """A heading, and the alignment of the cells below it."""

    name: str
    is_text: bool = False
    least: int | None = None
    """The minimum width to which cells are wrapped on a narrow terminal; None: cells are never wrapped."""


class StyledCell(NamedTuple):
    """A cell's text, and a style in the words of the markup, such as `bold red`."""

    text: str
    style: str


Cell: TypeAlias = str | StyledCell


def print_table(
    columns: Sequence[TableColumn],
    rows: Sequence[Sequence[Cell]],
    *,
    repeated: int = 1,
    console: Console | None = None,
    is_ruled: bool = True,
) -> None:
    """Print rows, one cell per column. Each continuation table repeats the first `repeated` columns.

    If the repeated columns leave no room for another column, the terminal wraps the lines. Prints to `console`, at its width, or
    to standard output. Without `is_ruled`, prints no rule below the headings and no blank lines around the table.
    """
    limit = UNBOUNDED
    if console is not None or sys.stdout.isatty() or "COLUMNS" in os.environ:
        limit = (console or Console()).width
    console = console or Console()
    widths = _widths(columns, rows, limit)
    first = list(range(repeated))
    chosen = list(first)
    for index in range(repeated, len(columns)):
        if len(chosen) > repeated and _total([widths[one] for one in (*chosen, index)]) > limit:
            _print(console, columns, rows, widths, chosen, is_ruled)
            chosen = list(first)
        chosen.append(index)
    _print(console, columns, rows, widths, chosen, is_ruled)


def _total(widths: Sequence[int]) -> int:
    """Return the width of a table, with one blank before the first column and two between columns."""
    return sum(widths) + 2 * len(widths) - 1


def _widths(columns: Sequence[TableColumn], rows: Sequence[Sequence[Cell]], limit: int) -> list[int]:
    """Return the width of each column: the width of its widest cell, or less if its cells are wrapped."""
    widths = [
        max(cells(line) for line in (column.name, *(line for row in rows for line in _text(row[index]).split("\n"))))
        for index, column in enumerate(columns)
    ]
    folded = {index: max(column.least, cells(column.name)) for index, column in enumerate(columns) if column.least}
    while _total(widths) > limit and (wider := [index for index in folded if widths[index] > folded[index]]):
        widths[max(wider, key=lambda index: widths[index])] -= 1
    return widths


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell.text


def _print(
    console: Console,
    columns: Sequence[TableColumn],
    rows: Sequence[Sequence[Cell]],
    widths: Sequence[int],
    chosen: Sequence[int],
    is_ruled: bool,
) -> None:
    heads = [StyledCell(columns[index].name, "bold") for index in chosen]
    lines = [*_lines(heads, columns, widths, chosen)]
    if is_ruled:
        rule = "─" if "utf" in console.encoding.lower() else "-"
        lines = ["", *lines, " " + rule * (_total([widths[index] for index in chosen]) - 1)]
    for row in rows:
        lines += _lines([row[index] for index in chosen], columns, widths, chosen)
    console.print("\n".join(lines + [""] * is_ruled), soft_wrap=True)


def _lines(
    row: Sequence[Cell], columns: Sequence[TableColumn], widths: Sequence[int], chosen: Sequence[int]
) -> Iterator[str]:
    """Yield the lines of a row as markup: more than one if a cell has several lines or is wrapped."""
    pieces = []
    for cell, index in zip(row, chosen, strict=True):
        lines = _text(cell).split("\n")
        if any(cells(line) > widths[index] for line in lines):
            lines = [part for line in lines for part in textwrap.wrap(line, widths[index], break_on_hyphens=False)]
        pieces.append(lines)
    for number in range(max(map(len, pieces))):
        parts = []
        for cell, index, found in zip(row, chosen, pieces, strict=True):
            text = found[number] if number < len(found) else ""
            blanks = " " * (widths[index] - cells(text))
            text = escape(text) if isinstance(cell, str) or not text else f"[{cell.style}]{escape(text)}[/]"
            parts.append(text + blanks if columns[index].is_text else blanks + text)
        yield f" {'  '.join(parts)}".rstrip()
