"""`diamant explain`: explain why records are still in a running broker's logs, and until when."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import Any

import click

from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.console import Console
from diamant.broker.commands.terminal.explanation_view import MAX_ROWS, show_explanation
from diamant.broker.commands.terminal.operation_command import operation_command
from diamant.broker.commands.terminal.strip_text import draw, of_fields, segments_of
from diamant.broker.operation_errors import EXIT_DONE, EXIT_NOT_SO


@operation_command("explain")
@click.option("--all", "is_all", is_flag=True, help=f"Print all records found, not only {MAX_ROWS} per partition.")
def explain(asked: Asked, is_all: bool, **fields: Any) -> None:
    """Explain why records of TOPIC are still on disk, when they will be removed, and how to remove them now.

    Without a key, an offset or --tombstones, explains why each partition is not clean. On a Kafka cluster other than Diamant,
    partitions are read whole from their leaders, and reasons not fully visible from outside are marked bounded or not-visible.

    Exit codes: 0 done; 1 failed; 2 usage, or no such topic; 3 no such record.
    """
    topic, partition, tombstones = fields["topic"], fields["partition"], fields["tombstones"]
    # The result of a job omits the key of the record at --offset, so a request with --offset does not use a job.
    waiting = asked.waiting if fields["offset"] is None else {"timeout": asked.timeout_s}
    found = asked.admin.explain(**fields, **waiting)
    if not asked.as_json:
        complete_commands(found, asked)
    is_of_records = fields["key"] is not None or fields["offset"] is not None or tombstones
    is_here = "visibility" not in found
    segments = segments_of(asked, topic, partition) if is_here and not is_of_records else None

    def show(console: Console) -> None:
        clock = "the broker's clock" if is_here else "the clock of this machine"
        show_explanation(console, found, tombstones, None if is_all else MAX_ROWS, clock=clock)
        if segments is not None:
            console.print()
            draw(console, of_fields(segments))

    asked.show(found, show)
    is_empty = not any(one["records"] for one in found["partitions"])
    sys.exit(EXIT_NOT_SO if is_of_records and is_empty else EXIT_DONE)


def complete_commands(found: Mapping[str, Any], asked: Asked) -> None:
    """Add the key, if any, and the broker's address to the commands in an explanation, so that users can copy and run them."""
    for one in found["partitions"]:
        for change in (one["change"], *(record["change"] for record in one["records"])):
            if change is not None and change["command"] is not None:
                words = shlex.split(change["command"])
                if "--key" in words and found["key"] is not None:
                    at = words.index("--key")
                    words[at : at + 2] = _key_option(found["key"])
                change["command"] = asked.command(*words).removeprefix("diamant ")


def _key_option(key: Mapping[str, str]) -> list[str]:
    text = key.get("text")
    return ["--key", text] if text else ["--key-hex", key.get("hex", "")]
