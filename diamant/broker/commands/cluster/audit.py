"""`diamant audit`: find what keeps values for too long on any Kafka cluster."""

from __future__ import annotations

import json
import sys
import textwrap
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import click

from diamant.broker.client.kafka_client import KafkaClient
from diamant.broker.commands.cluster.asking_kafka import json_option, on_cluster
from diamant.broker.commands.terminal.completion import topic_names
from diamant.broker.commands.terminal.console import Console
from diamant.broker.commands.terminal.failures import duration, fail, note
from diamant.broker.commands.terminal.files import visible
from diamant.broker.commands.terminal.progress_text import LiveProgress, progress_text
from diamant.broker.commands.terminal.remote import OutputFile
from diamant.broker.operation_errors import EXIT_DONE, EXIT_NOT_SO
from diamant.duration import duration_text
from diamant.words import counted, moment

if TYPE_CHECKING:
    from diamant.broker.inspection.audit_rules import AuditFinding
    from diamant.broker.inspection.cluster_audit import AuditReport

WIDEST = 100
"""The maximum line length in the report: longer lines are hard to read, even on a wide terminal."""
_HEADS = ("topic", "partition", "finding", "seen", "what it means", "set")


@click.command()
@click.argument("topics", nargs=-1, shell_complete=topic_names)
@click.option(
    "--deadline",
    "deadline_ms",
    type=duration,
    default="30d",
    show_default=True,
    help="How long a superseded or deleted value may stay.",
)
@click.option("--html", "page", type=OutputFile(), help="Write the report to this file as an HTML page.")
@json_option
@on_cluster
def audit(client: KafkaClient, topics: tuple[str, ...], deadline_ms: int, page: str | None, as_json: bool) -> None:
    """Find what may keep values beyond a deadline, on any Kafka cluster. Without TOPICS, audits all topics except internal ones.

    Changes nothing. Anything that the user has no permission to read is reported on standard error.

    Exit codes: 0 nothing was found; 1 failed; 2 usage, or no such topic; 3 something was found.
    """
    from diamant.broker.inspection.cluster_audit import audit as run

    with LiveProgress(is_shown=not as_json) as live:
        report = run(client, topics, deadline_ms, lambda progress: live.show(progress_text(progress)))
    if as_json:
        click.echo(json.dumps(report.to_fields()))
    else:
        _print(report)
        for hidden in report.not_visible:
            note(f"not visible: {visible(hidden)}")
    if page is not None:
        try:
            Path(page).write_text(_page(report), encoding="utf-8")
        except OSError as error:
            fail(f"{page}: {error.strerror or error}")
    sys.exit(EXIT_NOT_SO if report.findings else EXIT_DONE)


def _title(report: AuditReport) -> str:
    return (
        f"{counted(len(report.findings), 'finding')} in {counted(report.topics, 'topic')} with "
        f"{counted(report.partitions, 'partition')}, deadline {duration_text(report.deadline_ms)}"
    )


def _cells(one: AuditFinding) -> list[str]:
    configs = ", ".join(f"{name}={value}" for name, value in one.configs.items())
    partition = "" if one.partition is None else str(one.partition)
    return [
        visible(cell) for cell in (one.topic or "(cluster)", partition, one.kind, one.visibility, one.text, configs)
    ]


def _print(report: AuditReport) -> None:
    """Print a block for each finding, because its text is too long for columns."""
    click.echo(_title(report))
    width = min(Console().width, WIDEST)
    for one in report.findings:
        topic, partition, kind, seen, text, configs = _cells(one)
        click.echo(f"\n{'-'.join(filter(None, (topic, partition)))}: {kind} ({seen})")
        click.echo(textwrap.fill(text, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False))
        if configs:
            click.echo(f"  set {configs}")


def _page(report: AuditReport) -> str:
    heads = "".join(f"<th>{escape(head)}</th>" for head in _HEADS)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _cells(one))}</tr>\n" for one in report.findings
    )
    hidden = "".join(f"<li>{escape(visible(one))}</li>\n" for one in report.not_visible)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Audit</title><style>'
        "body{font:16px/1.5 system-ui,sans-serif;margin:2em;color-scheme:light dark}table{border-collapse:collapse}"
        "td,th{border-bottom:1px solid #8888;padding:.3em .8em;text-align:left;vertical-align:top}</style></head><body>\n"
        f"<h1>{escape(_title(report))}</h1><p>{moment(report.now_ms)}</p>\n"
        f"<table><thead><tr>{heads}</tr></thead><tbody>\n{rows}</tbody></table>\n"
        f"{f'<h2>Not visible to this user</h2><ul>{hidden}</ul>' if hidden else ''}</body></html>\n"
    )
