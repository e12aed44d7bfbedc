"""`diamant erase` and `diamant erase-now`: erase a key from topics, and keep the certificate."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import click

from diamant.broker.commands.terminal import remote
from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.console import Console, escape
from diamant.broker.commands.terminal.files import time_text
from diamant.broker.commands.terminal.key_options import required
from diamant.broker.commands.terminal.operation_command import operation_command
from diamant.broker.commands.terminal.wide_table import TableColumn, print_table
from diamant.broker.operation_errors import EXIT_DONE, EXIT_FAILED, EXIT_NOT_SO, EXIT_NOTHING
from diamant.json_types import JsonObject
from diamant.storage.certificate_states import NOT_CERTIFIED, NOTHING_MATCHED, VALUES_GONE

MAX_SHOWN = 20
"""The maximum number of later writes of the key to list."""
_UNKNOWN = " Its values are unknown, so copies of them in other files were not looked for."


@operation_command("erase", optional=("topics", "reason"))
@remote.certificate_options
@click.option("--tombstones", type=click.Choice(["now"]), help="The same as --now.")
@click.option("--resume", metavar="ID", help="Continue an open erasure on a Kafka cluster other than Diamant.")
@click.option(
    "--dry-run", is_flag=True, help="On a Kafka cluster other than Diamant: search, print the plan, and change nothing."
)
def erase(
    asked: Asked,
    file: str | None,
    page: str | None,
    tombstones: str | None,
    resume: str | None,
    *,
    dry_run: bool,
    **fields: Any,
) -> None:
    """Erase a key from TOPICS and certify the removal.

    On a Kafka cluster other than Diamant, temporarily lowers configuration values of the topics, and closes the erasure once
    every replica has been read and none holds a value. If a replica cannot be read, or --timeout passes, the erasure stays open
    (exit code 3), and --resume continues it. With --tombstones now, also removes the tombstones immediately. `diamant restore`
    lists open erasures.

    Exit codes: 0 done; 1 failed, or a file could not be written; 2 usage; 3 not everything is certified, the key was written
    again during the erasure, or the tombstones stay despite --now; 4 the topics have no record with the key.
    """
    if resume is not None:
        now, is_confirmed = fields.pop("now") or bool(tombstones), fields["confirm_groups_behind"]
        if now:
            del fields["confirm_groups_behind"]
        given = {**fields, "dry_run": dry_run}
        more = [name for name, value in given.items() if value not in (None, "", (), False)]
        if more:
            names = ["TOPICS" if name == "topics" else f"--{name.replace('_', '-')}" for name in more]
            raise click.UsageError(
                f"--resume continues an erasure with its original options: expected no {', '.join(names)}"
            )
        from diamant.broker.commands.clusters.erase import resume_elsewhere

        resume_elsewhere(asked, resume, file, page, _is_agreed, now=now, is_confirmed=is_confirmed)
    if not fields["topics"] or fields["reason"] is None:
        raise click.UsageError(
            "Missing argument 'TOPICS...'." if not fields["topics"] else "Missing option '--reason'."
        )
    fields["key"] = required(fields["key"])
    fields["now"] = fields["now"] or bool(tombstones)
    if not asked.admin.is_diamant:
        from diamant.broker.commands.clusters.erase import erase_elsewhere

        erase_elsewhere(asked, file, page, _is_agreed, dry_run=dry_run, **fields)
    if dry_run:
        raise click.UsageError("--dry-run is for Kafka clusters other than Diamant; this broker is a Diamant")
    is_now, is_confirmed = fields.pop("now"), fields.pop("confirm_groups_behind")
    with remote.going_on(asked):
        found = asked.admin.erase(**fields, **asked.waiting)
    # Write the certificate first, because it is valid however the next steps end.
    is_written = remote.write_outputs(found, file, page)
    is_refused = False
    if is_now and found["state"] == VALUES_GONE:
        asked.end_progress()
        is_refused = not _is_agreed(found, is_asked=not is_confirmed)
        if not is_refused:
            found = _go_on_now(asked, found["id"], is_confirmed=True)
            is_written = remote.write_outputs(found, file, page)
    _end(asked, found, is_refused=is_refused, is_written=is_written)


@operation_command("erase_now")
@remote.certificate_options
def erase_now(asked: Asked, id: str, confirm_groups_behind: bool, file: str | None, page: str | None) -> None:
    """Remove the tombstones of the erasure ID before their delete horizon, and certify that the key itself is gone.

    Lists the groups that have not read the tombstones, and asks for confirmation. Exit codes: the same as for `diamant erase`.
    """
    found = _go_on_now(asked, id, is_confirmed=confirm_groups_behind)
    is_refused = found["is_now_refused"]
    if is_refused:
        asked.end_progress()
        is_refused = not _is_agreed(found, is_asked=True)
        if not is_refused:
            found = _go_on_now(asked, id, is_confirmed=True)
    is_written = remote.write_outputs(found, file, page)
    _end(asked, found, is_refused=is_refused, is_written=is_written)


def _go_on_now(asked: Asked, erasure_id: str, *, is_confirmed: bool) -> JsonObject:
    with remote.going_on(asked, is_named=True):
        return asked.admin.erase_now(erasure_id, confirm_groups_behind=is_confirmed, **asked.waiting)


def _end(asked: Asked, found: Mapping[str, Any], *, is_refused: bool, is_written: bool) -> NoReturn:
    """Print the outcome and exit with its code."""
    asked.show(found, lambda console: _print(console, asked, found))
    if is_refused:
        click.echo(_refusal(asked, found), err=True)
    if found["state"] == NOT_CERTIFIED or found["written_since"] or is_refused:
        sys.exit(EXIT_NOT_SO)
    if not is_written:
        sys.exit(EXIT_FAILED)
    sys.exit(EXIT_NOTHING if found["state"] == NOTHING_MATCHED else EXIT_DONE)


def _is_agreed(found: Mapping[str, Any], *, is_asked: bool) -> bool:
    """List the groups that have not read the tombstones, and ask for confirmation. No answer means no."""
    behind, unknown = found["groups_behind"], found.get("groups_not_known", [])
    for partition, groups in behind.items():
        click.echo(f"groups that have not read the tombstone in {partition}: {', '.join(groups)}", err=True)
    for reason in unknown:
        click.echo(f"groups that may be behind are not known: {reason}", err=True)
    if not behind and not unknown:
        click.echo("no group with committed offsets is behind the tombstones; others may be", err=True)
    if not is_asked:
        return True
    try:
        return click.confirm("Remove the tombstones now? Groups that are behind will never see the deletion.", err=True)
    except click.Abort:
        click.echo(err=True)
        return False


def _refusal(asked: Asked, found: Mapping[str, Any]) -> str:
    due_ms = found["next_due_ms"]
    until = "" if due_ms is None else f" until {time_text(due_ms)}; then the broker removes them by itself"
    return (
        f"diamant: declined, so erasure {found['id']} continues without --now: the values are gone, the tombstones stay"
        f"{until}. To remove them at once: {asked.command('erase-now', found['id'], '--confirm-groups-behind')}"
        f"; to cancel the erasure: {asked.command('cancel', found['id'], '--reason', 'tombstones stay')}"
    )


def _print(console: Console, asked: Asked, found: Mapping[str, Any]) -> None:
    from diamant.cleaner.evidence.certificates.page_words import seen_elsewhere

    certificate = found["certificate"]
    if found["state"] == NOTHING_MATCHED:
        topics = escape(", ".join(certificate["request"]["topics"]))
        is_known = certificate["coverage"]["values_searched_for"] > 0
        console.print(
            f"[yellow][bold]NOTHING WAS FOUND[/bold] under this key in {topics}, so nothing was erased. Is the key spelled as "
            "the producer writes it (case, prefix, blanks; for bytes that are not text: --key-hex or --key-base64), and is it "
            f"in these topics? Or it was erased before.{'' if is_known else _UNKNOWN}[/yellow]"
        )
    console.print(f"[bold]{found['state']}[/bold], certificate {escape(found['certificate_path'])}", soft_wrap=True)
    rows = []
    values = {(one["topic"], one["partition"]): one["values"] for one in certificate["found"]}
    steps = {(one["topic"], one["partition"]): one for one in certificate["done"]}
    for claim in [*certificate["claims"], *certificate["not_certified"]]:
        place = claim["topic"], claim["partition"]
        if place in values or claim in certificate["not_certified"]:
            offset = steps.get(place, {}).get("tombstone_offset", "-")
            below = "-" if claim in certificate["not_certified"] else claim["below_offset"]
            rows.append([f"{place[0]}-{place[1]}", str(values.get(place, 0)), str(offset), str(below), claim["state"]])
    if rows:
        heads = ("partition", "found", "tombstone at", "certified below", "state")
        print_table([TableColumn(head, is_text=True) for head in heads], rows, console=console, is_ruled=False)
    remote.print_reasons(console, certificate)
    remote.print_holders(console, found)
    if seen := seen_elsewhere(certificate):
        console.print(f"The same key or bytes were found elsewhere and left there: {seen}; see the certificate.")
    since = found["written_since"]
    for one in since[:MAX_SHOWN]:
        console.print(
            f"[red]The key was written again: {one['topic']}-{one['partition']} at offset {one['offset']}.[/red]"
        )
    if more := len(since) - len(since[:MAX_SHOWN]) + found.get("written_since_not_listed", 0):
        console.print(f"[red]... and {more:,} more times.[/red]")
    if marks := certificate.get("tombstones_since"):
        count = len(marks) + certificate["tombstones_since_not_listed"]
        where = ", ".join(sorted({f"{one['topic']}-{one['partition']}" for one in marks})[:MAX_SHOWN])
        console.print(
            f"Another client has deleted the key since: {count:,} tombstones after the certified offsets, in {where}."
        )
    if found["next_due_ms"] is not None and found["state"] == NOT_CERTIFIED:
        console.print(
            f"The broker tries again from {time_text(found['next_due_ms'])} on. To see the result: "
            f"{asked.command('certificates', found['id'])}; to give up: "
            f"{asked.command('cancel', found['id'], '--reason', 'cannot be certified')}",
            soft_wrap=True,
        )
    elif found["next_due_ms"] is not None:
        console.print(
            f"The broker removes the tombstones from {time_text(found['next_due_ms'])} on and issues the next certificate."
        )
        console.print(
            f"To see it then: {asked.command('certificates', found['id'])}; to get it now: "
            f"{asked.command('erase-now', found['id'])}",
            soft_wrap=True,
        )
    if not certificate["is_evidence"]:
        console.print("[yellow]A manual clock is in use: this is not evidence.[/yellow]")
