"""`diamant spark stats`: count the records in the partitions of log directories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from diamant.broker.commands.spark.running import give, give_rows, running, spark_options
from diamant.broker.commands.terminal.wide_table import TableColumn, print_table
from diamant.cleaner.rules.record_kinds import COUNTS, RARE, shown
from diamant.words import size_text


@click.command()
@spark_options
def stats(
    paths: Sequence[str],
    *,
    topics: Sequence[str],
    master: str,
    spark_settings: Sequence[str],
    as_json: bool,
    parquet: str | None,
) -> None:
    """Count the records of the partitions below PATH..., like `diamant log stats`."""
    with running("stats", master, spark_settings, paths, topics, parquet) as session:
        from diamant.cleaner.spark.analyses.stats_rows import read_stats, stats_rows

        if parquet is None:
            give_rows(iter(stats_rows(session.sparkContext, paths, topics)), as_json=as_json, show=_show)
        else:
            give(read_stats(session, paths, topics), as_json=as_json, parquet=parquet, show=_show)


def _show(rows: Iterator[Any]) -> None:
    found = list(rows)
    counts = [name for name in COUNTS if name not in RARE or any(row[name] for row in found)]
    has_replicas = len({(row["topic"], row["partition"]) for row in found}) < len(found)
    heads = ["segments", "size", *map(shown, counts), "dirty", "cleaned up to"]
    columns = [TableColumn("partition", is_text=True), *map(TableColumn, heads)]
    if has_replicas:
        columns.append(TableColumn("directory", is_text=True))
    cells = [
        [
            f"{row['topic']}-{row['partition']}",
            f"{row['segments']:,}",
            size_text(row["bytes"]),
            *(f"{row[name]:,}" for name in counts),
            "-" if row["dirty_ratio"] is None else f"{row['dirty_ratio']:.2f}",
            "-" if row["first_dirty_offset"] is None else f"{row['first_dirty_offset']:,}",
            *([row["directory"]] if has_replicas else []),
        ]
        for row in found
    ]
    print_table(columns, cells)
