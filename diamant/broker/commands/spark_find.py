"""`diamant spark find`: where in log directories a key is, or what a pattern matches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from diamant.broker.commands.failing import say
from diamant.broker.commands.reading import bytes_text, counted
from diamant.broker.commands.spark_running import cell_json, give, running, spark_options

_WIDTH = 1000


@click.command()
@spark_options
@click.option("--key", help="Find the records with this key.")
@click.option("--key-hex", is_flag=True, help="The key is given in hexadecimal.")
@click.option("--pattern", metavar="REGEX", help="Find records with this in key, value or a header.")
def find(
    paths: Sequence[str],
    *,
    topics: Sequence[str],
    master: str,
    spark_settings: Sequence[str],
    as_json: bool,
    parquet: str | None,
    key: str | None,
    key_hex: bool,
    pattern: str | None,
) -> None:
    """Print where records are below PATH..., as `diamant log find` does.

    A pattern is a regular expression of Java over bytes; text in it is taken as UTF-8.
    """
    wanted = _wanted_key(key, pattern, key_hex=key_hex)
    with running("find", master, spark_settings, paths, topics, parquet) as session:
        from diamant.cleaner.spark import find_job

        result = find_job.find(session, paths, key=wanted, pattern=pattern, topics=topics)
        give(result, as_json=as_json, parquet=parquet, show=_show)


def _wanted_key(key: str | None, pattern: str | None, *, key_hex: bool) -> bytes | None:
    if (key is None) == (pattern is None):
        raise click.UsageError("expected either --key or --pattern")
    if key is None:
        if key_hex:
            raise click.UsageError("--key-hex goes with --key")
        return None
    if not key_hex:
        return key.encode(errors="surrogateescape")
    try:
        return bytes.fromhex(key.removeprefix("0x"))
    except ValueError as error:
        raise click.BadParameter(f"{key!r} is not hexadecimal: {error}", param_hint="--key") from None


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
    what = f"{counted(count, 'record')} in {counted(len(logs), 'partition')}" if count else "nothing"
    say(f"{what} found")
