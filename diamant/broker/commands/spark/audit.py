"""`diamant spark audit`: find topics that keep values past their deadline."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from diamant.broker.commands.spark.running import give, running, spark_options
from diamant.broker.commands.terminal.failures import note
from diamant.broker.commands.terminal.files import time_text
from diamant.broker.commands.terminal.wide_table import TableColumn, print_table
from diamant.broker.operation_errors import EXIT_NOT_SO
from diamant.duration import duration_text

_DAY_MS = 86_400_000


@click.command()
@spark_options
@click.option(
    "--deadline-days",
    type=click.FloatRange(min=0, min_open=True),
    metavar="DAYS",
    help="How long a superseded value may stay. Default: the topic's max.compaction.lag.ms.",
)
@click.option("--now", "now_ms", type=int, metavar="MS", help="The time to assume, in ms since 1970. Default: now.")
@click.option("--all", "is_all", is_flag=True, help="Include topics that are not compacted.")
def audit(
    paths: Sequence[str],
    *,
    topics: Sequence[str],
    master: str,
    spark_settings: Sequence[str],
    as_json: bool,
    parquet: str | None,
    deadline_days: float | None,
    now_ms: int | None,
    is_all: bool,
) -> None:
    """List compacted topics below PATH... that keep superseded values for too long, or have keys left in former partitions.

    Ages are measured by record timestamps. Policies and lags come from the metadata log of each directory. Without a metadata
    log, every topic is audited.

    Exit codes: 0 all is well; 1 failed; 2 usage; 3 a topic is late or has stranded keys.
    """
    with running("audit", master, spark_settings, paths, topics, parquet) as session:
        from diamant.cleaner.spark.analyses.overdue_values import read_audit

        result = read_audit(
            session,
            paths,
            topics,
            now_ms=int(time.time() * 1000) if now_ms is None else now_ms,
            deadline_ms=None if deadline_days is None else int(deadline_days * _DAY_MS),
            is_all=is_all,
        )
        # One row per topic, cached so that finding out the exit code does not count everything again.
        result = result.cache()
        give(result, as_json=as_json, parquet=parquet, show=lambda rows: _show(list(rows)))
        found = [row["is_broken"] for row in result.select("is_broken").collect()]
    if not found:
        note("none of these topics is compacted; --all audits them anyway")
    if any(found):
        sys.exit(EXIT_NOT_SO)


def _show(rows: Sequence[Any]) -> None:
    heads = ("records", "superseded", "oldest", "deadline", "overdue", "by at most", "erased, overdue", "stranded keys")
    cells = [
        [
            row["topic"],
            f"{row['records']:,}",
            f"{row['superseded']:,}",
            time_text(row["oldest_superseded_ms"])[: len("2026-01-31T12:00:00")],
            _duration(row["deadline_ms"]),
            f"{row['overdue']:,}",
            _duration(row["overdue_ms"]),
            f"{row['erased_overdue']:,}",
            f"{row['stranded']:,}",
        ]
        for row in rows
    ]
    print_table([TableColumn("topic", is_text=True), *map(TableColumn, heads)], cells)


def _duration(duration_ms: int | None) -> str:
    return "-" if duration_ms is None else duration_text(duration_ms)
