"""`diamant log find`: find a key, or the matches of a pattern, in a log directory."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict

import click

from diamant.broker.commands.terminal.failures import fail, note
from diamant.broker.commands.terminal.files import (
    bytes_json,
    bytes_text,
    one_line_errors,
    show_problem,
    time_text,
)
from diamant.broker.commands.terminal.key_options import key_options
from diamant.broker.commands.terminal.progress_text import LiveProgress
from diamant.broker.operation_errors import EXIT_DONE, EXIT_FAILED
from diamant.cleaner.offline.find_records import Match, Query, find_records
from diamant.cleaner.segments.tolerant_reader import Problem, open_log_directory
from diamant.storage.env.env import RealEnv


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@key_options("Find the records with a key")
@click.option("--pattern", metavar="REGEX", help="Find records whose key, value or header matches.")
@click.option("--json", "as_json", is_flag=True, help="Print each match as one line of JSON.")
def find(directory: str, *, key: bytes | None, pattern: str | None, as_json: bool) -> None:
    """Print the positions of matching records in DIRECTORY, a log directory or a partition directory.

    Text is encoded as UTF-8. A pattern is a Python regular expression over bytes. Each match has a status: live (the latest of
    its key), tombstone, superseded by a later record, aborted, undecided (its transaction is open), keyless, or below the log
    start.

    Exit codes: 0 found; 1 some files could not be read; 2 usage; 3 nothing was found.
    """
    query = _query(key, pattern)
    env = RealEnv()
    problems: list[Problem] = []
    with one_line_errors(), open_log_directory(env, directory) as opened:
        found = 0
        with LiveProgress(sum(partition.size for partition in opened.partitions)) as bar:
            for partition in opened.partitions:
                for match in find_records(env, partition, query, problems.append, bar.advance):
                    bar.hide()
                    click.echo(_json_line(match) if as_json else _text_line(match))
                    found += 1
        problems += opened.problems
        for problem in problems:
            show_problem(problem)
    if not found and not problems:
        fail("nothing was found", "not-so")
    if not found:
        note("nothing was found")
    sys.exit(EXIT_FAILED if problems else EXIT_DONE)


def _query(key: bytes | None, pattern: str | None) -> Query:
    if (key is None) == (pattern is None):
        raise click.UsageError("expected either a key (--key, --key-hex, --key-base64, --key-file) or --pattern")
    if pattern is None:
        return Query(key=key)
    try:
        return Query(pattern=re.compile(pattern.encode(errors="surrogateescape")))
    except re.error as error:
        raise click.BadParameter(f"{pattern!r} is not a regular expression: {error}", param_hint="--pattern") from None


def _text_line(match: Match) -> str:
    return (
        f"{match.topic}-{match.partition} offset {match.offset} {match.status}, {time_text(match.timestamp)}, "
        f"key {bytes_text(match.key)}, found in {', '.join(match.places)}: {match.segment} at {match.position}"
    )


def _json_line(match: Match) -> str:
    return json.dumps({**asdict(match), "key": bytes_json(match.key)})
