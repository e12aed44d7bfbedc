"""`diamant latest` and `diamant find`: print the compacted view of a topic of a running broker, or search all of its records."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.failures import fail
from diamant.broker.commands.terminal.operation_command import operation_command
from diamant.broker.operation_errors import EXIT_DONE, EXIT_NOT_SO


@operation_command("latest")
def latest(asked: Asked, **fields: Any) -> None:
    """Print the latest committed record of each key of TOPIC, even if TOPIC has not been cleaned, one JSON object per line.

    Leaves out records of aborted transactions, and all records from the oldest open transaction on, as a read_committed consumer
    does. --timeout bounds the wait for each part of the response.

    Exit codes: 0 done; 1 failed, perhaps after some records; 2 usage, or no such topic.
    """
    for record in asked.admin.latest(**fields, timeout=asked.timeout_s):
        click.echo(json.dumps(record))


@operation_command("find")
def find(asked: Asked, **fields: Any) -> None:
    """Print every matching record of TOPIC, newest first, one JSON object per line. Keys and values are cut to 1,024 bytes.

    Reads the whole topic, including superseded records and those of open and aborted transactions. --timeout bounds the wait for
    each part of the response.

    Exit codes: 0 done; 1 failed, perhaps after some records, or more than --limit records match; 2 usage, or no such topic;
    3 nothing matches.
    """
    if sum(fields[name] is not None for name in ("key", "text", "where")) != 1:
        fail("expected one of: a key, --text, --where", "bad-argument")
    count = 0
    for record in asked.admin.find(**fields, timeout=asked.timeout_s):
        click.echo(json.dumps(record))
        count += 1
    sys.exit(EXIT_DONE if count else EXIT_NOT_SO)
