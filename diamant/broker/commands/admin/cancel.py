"""`diamant cancel`: cancel a pending erasure or redaction, or list the pending ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.console import Console, escape
from diamant.broker.commands.terminal.failures import fail
from diamant.broker.commands.terminal.files import time_text
from diamant.broker.commands.terminal.remote import asking, going_on
from diamant.broker.commands.terminal.wide_table import TableColumn, print_table


@click.command()
@click.argument("id", metavar="[ID]", required=False)
@click.option("--reason", help="The reason. The certificate records it, so it must not contain a key or a value.")
@asking
def cancel(id: str | None, reason: str | None, asked: Asked) -> None:
    """Cancel an erasure, a redaction or a job, given by its ID. Without an ID, list the pending erasures and redactions.

    Changes already made are kept. The last certificate states that nothing is certified, and why. The ID of a job is a number
    (see diamant status), and no reason is needed to cancel it. If the job has started an erasure or a redaction, cancel the
    erasure or redaction instead. Exit codes: 0 done; 1 failed; 2 usage.
    """
    if id is None:
        answer = asked.admin.certificates()
        unfinished = {"unfinished": answer["unfinished"]}
        asked.show(unfinished, lambda console: _print_unfinished(console, answer["unfinished"]))
        return
    if id.isdecimal():
        job = asked.admin.call("DELETE", f"/v1/jobs/{id}", timeout=asked.timeout_s)
        asked.show(job, lambda console: console.print(f"job {job['id']}, {job['verb']}: {_end_of(job)}"))
        return
    if reason is None:
        fail("--reason is missing: the certificate records it", "bad-argument")
    with going_on(asked, is_named=True):
        found = asked.admin.cancel(id, reason=reason, timeout=asked.timeout_s)
    asked.show(found, lambda console: _print(console, found))


def _end_of(job: Mapping[str, Any]) -> str:
    return "it was over already" if job["state"] == "done" else str(job["error"]["error"])


def _print(console: Console, found: Mapping[str, Any]) -> None:
    path = escape(found["certificate_path"])
    console.print(f"[bold]cancelled: {found['state']}[/bold], certificate {path}", soft_wrap=True)


def _print_unfinished(console: Console, unfinished: Sequence[Mapping[str, Any]]) -> None:
    if not unfinished:
        console.print("No erasure or redaction is in progress.")
        return
    rows = []
    for one in unfinished:
        due_ms = one["due_ms"]
        when = "never: it cannot be read" if due_ms is None else time_text(due_ms)
        rows.append([one["id"], one["kind"], one.get("waits_for") or when])
    print_table(
        [TableColumn(head, is_text=True) for head in ("id", "kind", "status")], rows, console=console, is_ruled=False
    )
