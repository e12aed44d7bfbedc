"""`diamant latest`: the compacted view of a topic of a running broker."""

from __future__ import annotations

import json

import click

from diamant.broker.commands.terminal.completion import topic_names
from diamant.broker.commands.terminal.remote import Asked, asking


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
