"""`diamant spark find`: find a key, or the matches of a pattern, in log directories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from diamant.broker.commands.spark.running import cell_json, give, running, spark_options
from diamant.broker.commands.terminal.failures import fail, note
from diamant.broker.commands.terminal.files import bytes_text
from diamant.broker.commands.terminal.key_options import key_options
from diamant.words import counted


@click.command()
@spark_options
@key_options("Find the records with a key")
@click.option("--pattern", metavar="REGEX", help="Find records whose key, value or header matches.")
def find(
    paths: Sequence[str],
    *,
    topics: Sequence[str],
    master: str,
    spark_settings: Sequence[str],
    as_json: bool,
    parquet: str | None,
    key: bytes | None,
    pattern: str | None,
) -> None:
    """Print the positions of matching records below PATH..., like `diamant log find`.

    A pattern is a Java regular expression over bytes; its text is encoded as UTF-8.

    Exit codes: 0 found; 1 failed; 2 usage; 3 nothing was found.
    """
    if (key is None) == (pattern is None):
        raise click.UsageError("expected either a key (--key, --key-hex, --key-base64, --key-file) or --pattern")
    with running("find", master, spark_settings, paths, topics, parquet) as session:
        from diamant.cleaner.spark.analyses.find_matches import find as find_records

        result = find_records(session, paths, key=key, pattern=pattern, topics=topics)
        is_found = give(result, as_json=as_json, parquet=parquet, show=_show)
    if not is_found:
        fail("nothing was found", "not-so")


def _show(rows: Iterator[Any]) -> None:
    count = 0
    logs = set()
    for row in rows:
        count += 1
        logs.add((row["topic"], row["partition"]))
        click.echo(
            f"{row['topic']}-{row['partition']} offset {row['offset']} {row['status']}, {cell_json(row['timestamp']) or '-'}, "
            f"key {bytes_text(None if row['key'] is None else bytes(row['key']))}, found in {', '.join(row['places'])}: "
            f"{row['segment']} at {row['position']}"
        )
    if count:
        note(f"{counted(count, 'record')} in {counted(len(logs), 'partition')} found")
