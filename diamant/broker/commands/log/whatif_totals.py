"""What all forecasts of `diamant log whatif` come to: how much is freed, for each combination of settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diamant.cleaner.forecast.forecast import Forecast


@dataclass(frozen=True, slots=True)
class Total:
    """One combination of settings, over all partitions."""

    settings: Mapping[str, str]
    partitions: int
    bytes_before: int
    bytes_after: int
    """Of all `.log` files, once nothing more happens. A forecast that failed counts with what was left when it did."""
    failed: int
    """Forecasts that failed."""

    @property
    def freed_bytes(self) -> int:
        """Less than 0 if the files grow, as by smaller segments."""
        return self.bytes_before - self.bytes_after


def totals(forecasts: Sequence[Sequence[Forecast]]) -> list[Total]:
    """Add up what partitions' forecasts say; each partition has one for each combination, in the same order."""
    return [
        Total(
            settings=dict(column[0].settings),
            partitions=len(column),
            bytes_before=sum(one.before.bytes for one in column),
            bytes_after=sum(one.after.bytes for one in column),
            failed=sum(bool(one.failure) for one in column),
        )
        for column in zip(*forecasts, strict=True)
    ]


def print_totals(found: Sequence[Total], width: int) -> None:
    """Print one row for each combination."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from diamant.broker.commands.terminal.files import size_text

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    heads = ("total of", *found[0].settings, "size", "left", "freed", "")
    for name in heads:
        table.add_column(name, justify="right", no_wrap=True)
    for one in found:
        sign = "-" if one.freed_bytes < 0 else ""
        share = f"{100 * one.freed_bytes / one.bytes_before:.0f} %" if one.bytes_before else "-"
        cells = [
            f"{one.partitions:,} partitions",
            *one.settings.values(),
            size_text(one.bytes_before),
            size_text(one.bytes_after),
            sign + size_text(abs(one.freed_bytes)),
            f"{share}, {one.failed:,} FAILED" if one.failed else share,
        ]
        table.add_row(*map(Text, cells))
    Console(width=width).print(table)
