"""`diamant erase`: erase a key from topics, and keep the certificate."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diamant.broker.commands.asking import EXIT_DONE, EXIT_NOT_SO, EXIT_USAGE, Asked, asking, fail
from diamant.broker.commands.reading import time_text
from diamant.broker.verbs.errors import BadArgument
from diamant.broker.verbs.record_key import key_from_options

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@click.argument("topics", nargs=-1, required=True)
@click.option("--key", help="The key, as text.")
@click.option("--key-hex", help="The key, in hexadecimal.")
@click.option("--key-base64", help="The key, in base64.")
@click.option("--reason", required=True, help="Why; it stands in the certificate.")
@click.option("--reference", default="", help="The requester's reference; it stands in the certificate.")
@click.option(
    "--now", is_flag=True, help="Remove the tombstone before its horizon, after listing the groups that are behind."
)
@click.option("--yes", is_flag=True, help="With --now: do not ask.")
@click.option("--force", is_flag=True, help="Pass over min.compaction.lag.ms.")
@click.option(
    "--engine",
    type=click.Choice(["inline", "process", "spark"]),
    help="Who is to compact, whatever the size: a thread of the broker, a worker process, Spark.",
)
@click.option("--certificate", "file", type=click.Path(dir_okay=False), help="Write the certificate to this file.")
@click.option("--page", type=click.Path(dir_okay=False), help="Write the certificate as an HTML page to this file.")
@asking
def erase(
    topics: Sequence[str],
    key: str | None,
    key_hex: str | None,
    key_base64: str | None,
    reason: str,
    reference: str,
    now: bool,
    yes: bool,
    force: bool,
    engine: str | None,
    file: str | None,
    page: str | None,
    asked: Asked,
) -> None:
    """Erase a key from TOPICS and certify what is gone.

    Exit codes: 0 done, 1 failed, 2 usage, 3 if not everything is certified, or the key was written again meanwhile.
    """
    try:
        wanted = key_from_options(key, key_hex, key_base64)
    except BadArgument as error:
        fail(str(error), EXIT_USAGE)
    options: dict[str, Any] = {
        "reason": reason,
        "reference": reference,
        "force": force,
        "timeout_ms": round(asked.timeout_s * 1000),
        **({} if engine is None else {"engine": engine}),
    }

    def call(**more: Any) -> dict[str, Any]:
        return asked.admin.erase(
            wanted, topics, timeout_s=asked.timeout_s, on_progress=asked.on_progress, **options, **more
        )

    found = call()
    if now and found["state"] == "values-gone":
        _agree(found["groups_behind"], is_agreed=yes)
        found = call(now=True, confirm_groups_behind=True)
    if file is not None:
        Path(file).write_text(json.dumps(found["certificate"], indent=1, sort_keys=True), encoding="utf-8")
    if page is not None:
        from diamant.cleaner.evidence.page import certificate_page

        Path(page).write_text(certificate_page(found["certificate"]), encoding="utf-8")
    asked.show(found, lambda console: _print(console, found))
    is_done = found["state"] in ("values-gone", "key-gone") and not found["written_since"]
    sys.exit(EXIT_DONE if is_done else EXIT_NOT_SO)


def _agree(behind: Mapping[str, Sequence[str]], *, is_agreed: bool) -> None:
    """Have the user agree that consumers miss the tombstone."""
    for partition, groups in behind.items():
        click.echo(f"have not passed the tombstone in {partition}: {', '.join(groups)}", err=True)
    if not behind:
        click.echo("no group with committed offsets is behind the tombstones; others may be", err=True)
    if not is_agreed:
        click.confirm("Remove the tombstones now, so that whoever is behind never learns of it?", abort=True, err=True)


def _print(console: Console, found: Mapping[str, Any]) -> None:
    from rich.table import Table

    certificate = found["certificate"]
    console.print(f"[bold]{found['state']}[/bold], certificate {found['certificate_path']}", soft_wrap=True)
    table = Table("partition", "found", "tombstone at", "certified below", "state", box=None)
    values = {(one["topic"], one["partition"]): one["values"] for one in certificate["found"]}
    steps = {(one["topic"], one["partition"]): one for one in certificate["done"]}
    for claim in [*certificate["claims"], *certificate["not_certified"]]:
        place = claim["topic"], claim["partition"]
        if place in values or claim in certificate["not_certified"]:
            offset = steps.get(place, {}).get("tombstone_offset", "-")
            below = claim.get("below_offset", "-")
            table.add_row(f"{place[0]}-{place[1]}", str(values.get(place, 0)), str(offset), str(below), claim["state"])
    if table.row_count:
        console.print(table)
    else:
        console.print("The key was found in none of the topics' partitions.")
    if certificate["elsewhere"]:
        console.print(
            f"The same key or bytes are in {len(certificate['elsewhere'])} other records; see the certificate."
        )
    for one in found["written_since"]:
        console.print(
            f"[red]The key was written again: {one['topic']}-{one['partition']} at offset {one['offset']}.[/red]"
        )
    if found["next_due_ms"] is not None:
        console.print(
            f"The tombstones go from {time_text(found['next_due_ms'])} on; then the next certificate follows."
        )
    if not certificate["is_evidence"]:
        console.print("[yellow]A manual clock is in use: this is no evidence.[/yellow]")
