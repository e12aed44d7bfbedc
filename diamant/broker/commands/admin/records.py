"""`diamant latest` and `diamant find`: print the compacted view of a topic of a running broker, or search all of its records."""

from __future__ import annotations

import json
import sys

import click

from diamant.broker.commands.terminal.completion import topic_names
from diamant.broker.commands.terminal.failures import fail
from diamant.broker.commands.terminal.key_options import key_options
from diamant.broker.commands.terminal.remote import EXIT_DONE, EXIT_NOT_SO, Asked, asking


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.option("--partition", "-p", type=click.IntRange(min=0), metavar="N", help="Only this partition.")
@click.option("--tombstones", is_flag=True, help="Also print tombstones, with a null value.")
@asking
def latest(topic: str, partition: int | None, tombstones: bool, asked: Asked) -> None:
    """Print the latest committed record of each key of TOPIC, cleaned or not, one JSON object per line.

    Leaves out records of aborted transactions, and all records from the oldest open transaction on, as a read_committed consumer
    does. --timeout bounds the wait for each part of the response.

    Exit codes: 0 done; 1 failed, even partway; 2 usage, or no such topic.
    """
    for record in asked.admin.latest(topic, partition, tombstones=tombstones, timeout=asked.timeout_s):
        click.echo(json.dumps(record))


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.option("--partition", "-p", type=click.IntRange(min=0), metavar="N", help="Only this partition.")
@key_options("Find every record of a key")
@click.option("--text", help="Find every record with this text in its key, its value or a header.")
@click.option("--where", help="Find every record that matches this condition, written as for `diamant redact --where`.")
@click.option("--limit", type=click.IntRange(1, 10_000), metavar="N", help="Stop after N records.  [default: 1000]")
@asking
def find(
    topic: str,
    partition: int | None,
    key: bytes | None,
    text: str | None,
    where: str | None,
    limit: int | None,
    asked: Asked,
) -> None:
    """Print every matching record of TOPIC, newest first, one JSON object per line. Keys and values are cut to 1,024 bytes.

    Reads the whole topic, with superseded records and those of open and aborted transactions. --timeout bounds the wait for each
    part of the response.

    Exit codes: 0 done; 1 failed, even partway, or more than --limit records match; 2 usage, or no such topic; 3 nothing matches.
    """
    if (key is not None) + (text is not None) + (where is not None) != 1:
        fail("expected one of: a key, --text, --where", "bad-argument")
    count = 0
    for record in asked.admin.find(
        topic, partition, key=key, text=text, where=where, limit=limit, timeout=asked.timeout_s
    ):
        click.echo(json.dumps(record))
        count += 1
    sys.exit(EXIT_DONE if count else EXIT_NOT_SO)
