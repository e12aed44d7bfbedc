"""`diamant latest` and `diamant find`: the compacted view of a topic of a running broker, and a search through all of it."""

from __future__ import annotations

import json
import sys

import click

from diamant.broker.commands.terminal.completion import topic_names
from diamant.broker.commands.terminal.failures import EXIT_USAGE, fail
from diamant.broker.commands.terminal.key_options import key_options
from diamant.broker.commands.terminal.remote import EXIT_DONE, EXIT_NOT_SO, Asked, asking


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.option("--partition", "-p", type=click.IntRange(min=0), metavar="N", help="Only this partition.")
@click.option("--tombstones", is_flag=True, help="Print deletions, too, with a value of null.")
@asking
def latest(topic: str, partition: int | None, tombstones: bool, asked: Asked) -> None:
    """Print the latest committed record of each key of TOPIC, one JSON object on each line, whether it is cleaned or not.

    Records of aborted transactions, and those from the oldest open transaction on, are left out, as for a consumer with
    read_committed. --timeout bounds the wait for each part of the answer.

    Exit codes: 0 done; 1 failed, also half-way; 2 usage, or no such topic.
    """
    for record in asked.admin.latest(topic, partition, tombstones=tombstones, timeout_s=asked.timeout_s):
        click.echo(json.dumps(record))


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.option("--partition", "-p", type=click.IntRange(min=0), metavar="N", help="Only this partition.")
@key_options("Find every record of a key")
@click.option("--text", help="Find every record with this text in its key, its value or a header.")
@click.option("--where", help="Find every record that this means, as `diamant redact --where` describes it.")
@click.option("--limit", type=click.IntRange(1, 10_000), metavar="N", help="End after so many.  [default: 1000]")
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
    """Print every record of TOPIC that matches, one JSON object on each line; of long keys and values the first 1,024 bytes.

    Reads the whole topic. Superseded records, and those of open and aborted transactions, are found, too. --timeout bounds the
    wait for each part of the answer.

    Exit codes: 0 done; 1 failed, also half-way, or if there are more than --limit; 2 usage, or no such topic; 3 nothing matches.
    """
    if (key is not None) + (text is not None) + (where is not None) != 1:
        fail("expected one of a key, --text and --where", EXIT_USAGE)
    count = 0
    for record in asked.admin.find(
        topic, partition, key=key, text=text, where=where, limit=limit, timeout_s=asked.timeout_s
    ):
        click.echo(json.dumps(record))
        count += 1
    sys.exit(EXIT_DONE if count else EXIT_NOT_SO)
