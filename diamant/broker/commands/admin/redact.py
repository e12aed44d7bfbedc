"""`diamant redact`: remove the matching records of a topic, and keep the certificate."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from diamant.broker.commands.terminal import remote
from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.console import Console, escape
from diamant.broker.commands.terminal.files import time_text
from diamant.broker.commands.terminal.operation_command import operation_command
from diamant.broker.commands.terminal.wide_table import TableColumn, print_table
from diamant.broker.operation_errors import EXIT_DONE, EXIT_FAILED, EXIT_NOT_SO, EXIT_NOTHING
from diamant.storage.certificate_states import NOT_CERTIFIED, NOTHING_MATCHED


@operation_command("redact")
@remote.certificate_options
def redact(asked: Asked, file: str | None, page: str | None, **fields: Any) -> None:
    """Remove the matching records of TOPIC, or change their fields with --blank or --set, and certify the result.

    All other records, and all other bytes of a changed record, stay the same, and no offset changes.

    Exit codes: 0 done; 1 failed, or a file could not be written; 2 usage; 3 records are left or could not be checked, or no
    record matches although some contain the searched text, or no matching record has one of the fields; 4 nothing matches.
    """
    with remote.going_on(asked):
        found = asked.admin.redact(**fields, **asked.waiting)
    is_written = remote.write_outputs(found, file, page)
    asked.show(found, lambda console: _print(console, found))
    if found["state"] == NOT_CERTIFIED or found["unmatched"] or found["fields_not_seen"]:
        sys.exit(EXIT_NOT_SO)
    if not is_written:
        sys.exit(EXIT_FAILED)
    sys.exit(EXIT_NOTHING if found["state"] == NOTHING_MATCHED else EXIT_DONE)


def _print(console: Console, found: Mapping[str, Any]) -> None:
    from diamant.cleaner.evidence.certificates.page_words import seen_elsewhere, unchangeable, written_since_count

    certificate = found["certificate"]
    if found["unmatched"]:
        console.print(f"[bold red]NOTHING WAS REMOVED[/bold red]: {_doubt(certificate)}")
    elif found["state"] == NOTHING_MATCHED:
        console.print(f"[yellow][bold]NOTHING WAS FOUND[/bold]: {_nothing(certificate)}[/yellow]")
    for name in found["fields_not_seen"]:
        console.print(f"[bold red]NO MATCHING RECORD HAS {escape(name)}[/bold red]: is its path right?", soft_wrap=True)
    console.print(f"[bold]{found['state']}[/bold], certificate {escape(found['certificate_path'])}", soft_wrap=True)
    located = {one["partition"]: one for one in certificate["found"]}
    refused = {one["partition"] for one in certificate["not_certified"]}
    rows = []
    for claim in [*certificate["claims"], *certificate["not_certified"]]:
        one = located.get(claim["partition"], {})
        if one or claim["partition"] in refused:
            cells = [
                f"{claim['topic']}-{claim['partition']}",
                str(one.get("records", 0)),
                str(one.get("superseded", 0)),
                "-" if claim in certificate["not_certified"] else str(claim["below_offset"]),
                claim["state"],
            ]
            rows.append(cells)
    if rows:
        done = "changed" if "fields" in certificate["request"] else "removed"
        heads = ("partition", done, "of these older values", "certified below", "state")
        print_table([TableColumn(head, is_text=True) for head in heads], rows, console=console, is_ruled=False)
    remote.print_reasons(console, certificate)
    remote.print_holders(console, found)
    if problem := unchangeable(certificate):
        console.print(f"[bold red]{escape(problem)}[/bold red]", soft_wrap=True)
    _print_undecided(console, certificate)
    if seen := seen_elsewhere(certificate):
        console.print(f"The same bytes were found elsewhere and left there: {seen}; see the certificate.")
    if certificate["written_since"]:
        count = written_since_count(certificate)
        console.print(f"[red]Matching records written since: {count:,}.[/red]")
    if found["next_due_ms"] is not None:
        console.print(f"The broker continues it from {time_text(found['next_due_ms'])} on.")
    if not certificate["is_evidence"]:
        console.print("[yellow]A manual clock is in use: this is not evidence.[/yellow]")


def _print_undecided(console: Console, certificate: Mapping[str, Any]) -> None:
    """Report that there are remaining records that may match or cannot be changed, and suggest what to do."""
    from diamant.cleaner.evidence.certificates.page_words import unchangeable_count, undecided_count
    from diamant.words import counted

    undecided, request = undecided_count(certificate), certificate["request"]
    if not undecided and not unchangeable_count(certificate):
        return
    holds = "contains" if undecided == 1 else "contain"
    what = f"{counted(undecided, 'record')} {holds} the searched text, but cannot be decoded. " if undecided else ""
    choice = "keep" if "fields" in request else "remove or keep"
    rest = "as requested" if request["undecided"] == "keep" else (
        f"and their partitions cannot be certified: check them, then repeat the command with --undecided {choice}"
    )  # fmt: skip
    console.print(f"[yellow]{what}The certificate lists such records. They stay, {rest}.[/yellow]")


def _nothing(certificate: Mapping[str, Any]) -> str:
    """Report that nothing matches, and suggest what to check."""
    request = certificate["request"]
    searched = (
        "The searched text is nowhere else in the topic either"
        if certificate["coverage"].get("texts_searched_for")
        else "Other places were not searched: that takes a text of 12 bytes or more"
    )
    return (
        f"no record of {request['topics'][0]} matches {escape(request['where_shape'])}, so nothing was removed. {searched}. Are "
        "field, path and spelling right, and is it this topic? Or it was removed before."
    )


def _doubt(certificate: Mapping[str, Any]) -> str:
    """Report that the field or path may be wrong, and where to look."""
    request, unmatched = certificate["request"], certificate["unmatched"]
    first, count = unmatched["first"][0], unmatched["records"]
    holds = "1 record holds" if count == 1 else f"{count:,} records hold"
    return (
        f"no record of {request['topics'][0]} matches {escape(request['where_shape'])}, but {holds} the searched text in "
        f"another place. Is the field or path right? Look at one of them, as {first['topic']}-{first['partition']} at offset "
        f"{first['offset']} (with a consumer, or diamant log dump or diamant log find on a copy of the files), and ask again."
    )
