"""`diamant certificates`: list a broker's certificates and pending jobs, or fetch one certificate."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import click

from diamant.broker.client.admin import AdminError
from diamant.broker.commands.terminal import remote
from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.console import Console, escape
from diamant.broker.commands.terminal.failures import fail, report
from diamant.broker.commands.terminal.files import time_text, visible
from diamant.broker.operation_errors import EXIT_DONE, EXIT_FAILED, EXIT_NOT_SO

_NO_KEY = (
    "there is no key yet: the broker makes it for the first certificate. To have it before, make both files that "
    "diamant.certificate.key.file names (default: ~/.config/diamant/certificate.key), after umask 077: openssl genpkey "
    "-algorithm ed25519 -out certificate.key; openssl rand -hex 32 > certificate.key.secret"
)


@click.command()
@click.argument("id", metavar="[ID]", required=False)
@click.option("--certificate", "file", type=remote.OutputFile(), help="With an ID: write the certificate to this file.")
@click.option(
    "--page", type=remote.OutputFile(), help="With an ID: write the certificate as an HTML page to this file."
)
@click.option("--signed", type=remote.OutputFile(), help=remote.SIGNED_HELP)
@click.option(
    "--public-key",
    "is_key_wanted",
    is_flag=True,
    help="Print the broker's public key as PEM.",
)
@click.option("--as-it-is", is_flag=True, help="With an ID: show a certificate even if its signature check fails.")
@remote.asking
def certificates(
    id: str | None,
    file: str | None,
    page: str | None,
    signed: str | None,
    *,
    is_key_wanted: bool,
    as_it_is: bool,
    asked: Asked,
) -> None:
    """List the certificates of erasures and redactions, and the pending jobs. With an ID, show its last certificate.

    The broker checks the signatures with its own key. Exit codes: 0 done; 1 failed, or a file could not be written; 2 usage, or
    no such certificate; 3 a certificate has changed since it was signed, or could not be checked.
    """
    if is_key_wanted:
        _print_public_key(asked)
    if id is None:
        if file is not None or page is not None or signed is not None or as_it_is:
            options = "--certificate, --page, --signed and --as-it-is"
            fail(f"{options} need an ID. List the IDs with: {asked.command('certificates')}", "bad-argument")
        listed = asked.admin.certificates()
        asked.show(listed, lambda console: _print_list(console, asked, listed))
        is_genuine = all(one.get("check") in ("signed", None) for one in listed["certificates"])
        sys.exit(EXIT_DONE if is_genuine else EXIT_NOT_SO)
    problem = ""
    try:
        found = asked.admin.certificate(id)
    except AdminError as error:
        if error.code != "not-genuine":
            raise
        problem = f"{error}: {asked.command('certificates', id, '--as-it-is')}"
        if not as_it_is:
            fail(problem, error.code)
        found = asked.admin.certificate(id, as_it_is=True)
        report(problem, error.code)
    is_written = remote.write_outputs({"certificate": found, "certificate_path": f"id {id}"}, file, page, problem)
    is_written = remote.write_bundle(found, signed) and is_written
    asked.show(found, lambda console: _print(console, found))
    if problem:
        sys.exit(EXIT_NOT_SO)
    sys.exit(EXIT_DONE if is_written else EXIT_FAILED)


def _print_public_key(asked: Asked) -> NoReturn:
    listed = asked.admin.certificates()
    key = listed["public_key"]
    if key is None:
        fail(listed["key_problem"] or _NO_KEY)
    asked.show({"public_key": key}, lambda _: click.echo(key, nl=False))
    sys.exit(EXIT_DONE)


def _print_list(console: Console, asked: Asked, listed: Mapping[str, Any]) -> None:
    # Not a table: an id truncated to a column's width is useless.
    for one in listed["certificates"]:
        issued = time_text(one["written_ms"] if one["issued_ms"] is None else one["issued_ms"])
        console.print(f"{one['id']}  {one['kind']:9}  {one['state']:13}  {issued}", soft_wrap=True)
        if one["topics"] is not None:
            about = f"topics: {', '.join(one['topics'])}; reference: {one['reference'] or '-'}"
            console.print(f"    {visible(about)}", soft_wrap=True, markup=False)
        if one["check"] not in ("signed", None):
            text = f"    NOT AS IT WAS SIGNED: {visible(one['check'])}"
            console.print(text, soft_wrap=True, markup=False, style="red")
    if not listed["certificates"]:
        console.print("There are no certificates.")
    for one in listed["unfinished"]:
        due_ms = one["due_ms"]
        when = "never, since it cannot be read" if due_ms is None else f"from {time_text(due_ms)} on"
        console.print(f"in progress: {one['kind']} {one['id']}, continues {when}")
        if waits_for := one.get("waits_for"):
            console.print(f"    waits: {waits_for}", soft_wrap=True, markup=False)
        at_once = f"to continue at once: {asked.command('erase-now', one['id'])}; " if one["kind"] == "erasure" else ""
        never = asked.command("cancel", one["id"], "--reason", "ended by hand")
        console.print(f"    {at_once}to cancel it: {never}", soft_wrap=True, markup=False)


def _print(console: Console, certificate: Mapping[str, Any]) -> None:
    request = certificate["request"]
    issued = time_text(certificate.get("clock", {}).get("issued_ms"))
    console.print(
        f"[bold]{certificate['state']}[/bold], issued {issued}, topics {escape(', '.join(request['topics']))}"
    )
    # Certificates of older versions may contain any text.
    reason, reference = visible(request["reason"]), visible(request.get("reference") or "-")
    console.print(f"reason: {escape(reason)}; reference: {escape(reference)}")
    if "parts" in certificate:
        for part in certificate["parts"]:
            console.print(
                f"{part['id']}  {part['state']:13}  {escape(', '.join(part['request']['topics']))}", soft_wrap=True
            )
        return
    claims, refused = len(certificate["claims"]), len(certificate["not_certified"])
    console.print(f"partitions certified: {claims}, not certified: {refused}")
    if not certificate["is_evidence"]:
        console.print("[yellow]A manual clock was in use: this is not evidence.[/yellow]")
