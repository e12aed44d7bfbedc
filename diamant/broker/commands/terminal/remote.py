"""Parts shared by the commands for a running broker: options, one-line errors, progress, exit codes.

    @click.command()
    @click.argument("topic")
    @asking
    def compact(topic: str, asked: Asked) -> None:
        report = asked.admin.compact(topic, timeout=asked.timeout_s, on_progress=asked.on_progress)
        asked.show(report, lambda: print_tables(report))
        sys.exit(EXIT_DONE if ... else EXIT_NOT_SO)

An error ends the command with the exit code for its error code (`operation_errors.KINDS`). Ctrl-C does not end the broker's job;
the command names the job that continues.

Also writes certificates to files, and prints why a certificate makes no claim about some partitions.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from diamant.broker.client.admin import AdminError, path_step
from diamant.broker.client.bootstrap import (
    BOOTSTRAP_VARIABLE,
    CA_VARIABLE,
    DEFAULT_BOOTSTRAP,
    USER_VARIABLE,
    default_bootstrap,
)
from diamant.broker.client.client_properties import COMMAND_CONFIG_HELP
from diamant.broker.commands.terminal.asked import TOKEN_VARIABLE, Asked
from diamant.broker.commands.terminal.console import Console, escape
from diamant.broker.commands.terminal.failures import (
    ADDRESS_HINT,
    DOWN_HINT,
    LOGIN_HINT,
    duration,
    fail,
    note,
    report,
    wants_json,
)
from diamant.broker.commands.terminal.files import time_text, visible
from diamant.broker.commands.terminal.progress_text import progress_text
from diamant.words import counted

DEFAULT_TIMEOUT = "10m"

F = TypeVar("F", bound=Callable[..., Any])


LOOK_TIMEOUT_S = 3.0
"""How long to wait for the state of the job after Ctrl-C or --timeout."""


def fail_interrupted(asked: Asked) -> NoReturn:
    """Exit after Ctrl-C. The error says what continues in the broker, and how to follow or cancel it."""
    if not asked.has_begun:
        fail("interrupted", "interrupted")
    if asked.job is None:
        hints = {"running jobs": asked.command("status"), "pending jobs": asked.command("cancel")}
        _end("interrupted before the broker answered: if the job has started, it continues", "interrupted", hints)
    try:
        job = asked.admin.call("GET", f"/v1/jobs/{path_step(asked.job)}", timeout=LOOK_TIMEOUT_S)
    except AdminError as error:
        hints = {"running jobs": asked.command("status")}
        _end(f"interrupted; job {asked.job} continues if the broker does: {error}", "interrupted", hints)
    message, hints = describe_job(asked, job)
    _end(f"interrupted; {message}", "interrupted", hints, job=job["id"], undertaking=job["undertaking"])


def fail_in_time(asked: Asked, error: AdminError) -> NoReturn:
    """Exit after --timeout. The error says what is unfinished; the lines below it show how to follow the job."""
    hints: dict[str, str] = {}
    if asked.job is not None:
        try:
            job = asked.admin.call("GET", f"/v1/jobs/{path_step(asked.job)}", timeout=LOOK_TIMEOUT_S)
            _, hints = describe_job(asked, job)
        except AdminError:
            pass  # Report `error` without hints.
    _end(str(error), error.code, hints)


def describe_job(asked: Asked, job: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Return a sentence about the state of a job, and commands for the user to run, by their purpose."""
    job_id, verb = job["undertaking"], job["verb"].partition("/v1/")[2]
    hints = {}
    if job_id is not None:
        noun = "redaction" if verb == "redact" else "erasure"
        hints["certificate, once issued"] = asked.command("certificates", job_id)
        if job["state"] == "done":
            return f"{noun} {job_id} has been certified", hints
        hints["progress"] = asked.command("status")
        hints["to cancel"] = asked.command("cancel", job_id, "--reason", "interrupted")
        if job["state"] == "failed":
            return f"{noun} {job_id}: {job['error']['error']}", hints
        return f"{noun} {job_id} continues in the broker ({progress_text(job['progress'])})", hints
    if job["state"] != "running":
        told = "is done" if job["state"] == "done" else f"has failed: {job['error']['error']}"
        return f"{verb} {told}", hints
    hints["progress"] = asked.command("status")
    if job["can_be_ended"]:
        hints["to cancel"] = asked.command("cancel", job["id"])
    return f"{verb} continues in the broker as job {job['id']} ({progress_text(job['progress'])})", hints


def _end(message: str, code: str, hints: Mapping[str, str], **fields: Any) -> NoReturn:
    if not wants_json():
        message += "".join(f"\n  {what}: {command}" for what, command in hints.items())
    fail(message, code, hints=hints, **fields)


def asking(command: F) -> F:
    """Pass a command `asked`, and add `--bootstrap-server`, `--token-file`, `--user`, `--ca`, `--command-config`, `--timeout` and
    `--json`.
    """

    @functools.wraps(command)
    def run(
        *args: Any,
        bootstrap: str,
        token_file: str | None,
        user: str | None,
        ca: str | None,
        command_config: str | None,
        timeout_ms: int,
        as_json: bool,
        **options: Any,
    ) -> None:
        with one_line_errors():
            asked = Asked(
                bootstrap, token_file, timeout_ms, as_json=as_json, user=user, ca=ca, command_config=command_config
            )
            try:
                command(*args, asked=asked, **options)
            except KeyboardInterrupt:
                asked.end_progress()
                fail_interrupted(asked)
            except AdminError as error:
                asked.end_progress()
                if error.code != "timed-out":
                    raise
                fail_in_time(asked, error)
            finally:
                asked.end_progress()

    for option in reversed(_OPTIONS):
        run = option(run)
    return run  # type: ignore[return-value]


_OPTIONS = (
    click.option(
        "--bootstrap-server",
        "-b",
        "bootstrap",
        default=default_bootstrap,
        metavar="HOST:PORT",
        help="The broker's Kafka address, from which the command learns the HTTP address, or several to try in this order: "
        "HOST:PORT,HOST:PORT. Or the HTTP address itself: http://HOST:PORT. "
        f"Default: ${BOOTSTRAP_VARIABLE}, else {DEFAULT_BOOTSTRAP}.",
    ),
    click.option(
        "--token-file",
        type=click.Path(dir_okay=False),
        default=lambda: os.environ.get(TOKEN_VARIABLE),
        help=f"A file with the broker's token, if it requires one. Default: ${TOKEN_VARIABLE}.",
    ),
    click.option(
        "--user",
        metavar="NAME:PASSWORD-FILE",
        default=lambda: os.environ.get(USER_VARIABLE),
        help=f"The login for a Kafka address with SASL. Default: ${USER_VARIABLE}.",
    ),
    click.option(
        "--ca",
        metavar="FILE",
        default=lambda: os.environ.get(CA_VARIABLE),
        help=f"Use TLS and trust the CA in this PEM file, or the system's CAs with `system`. Default: ${CA_VARIABLE}, else "
        "no TLS.",
    ),
    click.option(
        "--command-config",
        metavar="FILE",
        help=COMMAND_CONFIG_HELP,
    ),
    click.option(
        "--timeout",
        "timeout_ms",
        type=duration,
        default=DEFAULT_TIMEOUT,
        show_default=True,
        help="How long to wait. Work that has started continues in the broker.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the answer as one JSON object."),
)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """If the user can fix an error, report it in one line on standard error and exit with the error's exit code."""
    try:
        yield
    except AdminError as error:
        message = str(error)
        if error.code == "unauthorized" and error.status:
            message += f". Give the file with the token by --token-file or ${TOKEN_VARIABLE}"
        elif error.code == "unauthorized":
            message += LOGIN_HINT
        elif error.code == "no-answer" and not error.status:
            message += f"{ADDRESS_HINT}. {DOWN_HINT}"
        fail(message, error.code)
    except BrokenPipeError:
        raise  # click handles a closed pager
    except OSError as error:
        # This is about an input file, because errors of output files and of the broker are handled elsewhere.
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), "bad-argument")


@contextmanager
def going_on(asked: Asked, *, is_named: bool = False) -> Iterator[None]:
    """If the broker stops during the block, report that its work continues after the next start, and how to list such work.

    `is_named`: the user named the work by its ID; if the broker does not know the ID, the error also says how to list work.
    """
    try:
        yield
    except AdminError as error:
        asked.end_progress()
        listing = asked.command("certificates")
        if error.code == "not-found" and is_named:
            fail(f"{error}: {listing}", error.code)
        if error.code != "went-away":
            raise
        fail(
            f"{error}. Work that it had started continues at its next start; then {listing} lists it with its "
            "certificate. If it is not listed, nothing was started",
            error.code,
        )


SIGNED_HELP = (
    "Write the signed bytes to this file, and the signature and the public key beside it (.sig, .pem), for "
    "`openssl pkeyutl -verify`."
)


class OutputFile(click.Path):
    """The `type` of an option for a file that the command writes at its end. Refuses a path that clearly cannot be written."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Raises BadParameter if it cannot be written, or is already the path of another output file."""
        path = super().convert(value, param, ctx)
        directory = os.path.dirname(path) or "."
        if not os.path.isdir(directory):
            self.fail(f"Directory {directory!r} does not exist.", param, ctx)
        if not os.path.exists(path) and not os.access(directory, os.W_OK):
            self.fail(f"Directory {directory!r} is not writable.", param, ctx)
        known = {} if ctx is None else ctx.params
        if any(
            one and os.path.realpath(one) == os.path.realpath(path) for one in (known.get("file"), known.get("page"))
        ):
            self.fail(f"{path!r} is given for the certificate and the page: expected two files.", param, ctx)
        return path


registry_option = click.option("--registry", metavar="URL", help="A schema registry to use instead of the broker's.")


def certificate_options(command: F) -> F:
    """Add the options `--certificate` and `--page`, which the command gets as `file` and `page`, for `write_outputs`."""
    page = click.option("--page", type=OutputFile(), help="Write the certificate as an HTML page to this file.")
    file = click.option("--certificate", "file", type=OutputFile(), help="Write the certificate to this file.")
    return file(page(command))


def write_outputs(found: Mapping[str, Any], file: str | None, page: str | None, problem: str = "") -> bool:
    """Write a response's certificate to the requested files, as JSON and as a page.

    `problem`: why the certificate fails its signature check; the page prints it.
    Returns False after a failure, with an error on standard error. The work itself is done, so other output still follows.
    """
    certificate, texts = found["certificate"], {}
    if file is not None:
        texts[file] = json.dumps(certificate, indent=1, sort_keys=True)
    if page is not None:
        from diamant.cleaner.papers.paper_page import page_of

        texts[page] = page_of(certificate, problem)
    is_written = True
    for path, text in texts.items():
        try:
            Path(path).write_text(text, encoding="utf-8")
        except OSError as error:
            is_written = False
            reason = error.strerror or error
            report(f"{path}: {reason}; the broker keeps the certificate: {found['certificate_path']}")
    return is_written


def write_bundle(certificate: Mapping[str, Any], file: str | None) -> bool:
    """Write the bundle of a certificate to `file`, `file`.sig and `file`.pem, if given. Return False after a failure."""
    from diamant.cleaner.evidence.certificates.certificate import CertificateError, bundle_of

    if file is None:
        return True
    written: list[str] = []
    try:
        for path, content in bundle_of(certificate).files(file).items():
            Path(path).write_bytes(content)
            written.append(path)
        note(f"wrote {', '.join(written)}")
    except OSError as error:
        report(f"{error.filename or file}: {error.strerror or error}")
        return False
    except CertificateError as error:
        report(str(error))
        return False
    return True


MAX_SHOWN = 20
"""The maximum number of places to print. The certificate lists all of them."""


def print_holders(console: Console, found: Mapping[str, Any]) -> None:
    """Print which members of share groups held affected records, according to the answer to an erasure or a redaction."""
    for one in found["held_by"][:MAX_SHOWN]:
        console.print(
            f"[yellow]Member {escape(one['member_id'])} of share group {escape(one['group'])} held "
            f"{counted(one['records'], 'record')} of {escape(one['topic'])}-{one['partition']}, and has it in memory; "
            f"its lock ends at {time_text(one['lock_ends_ms'])}.[/yellow]",
            soft_wrap=True,
        )


def print_reasons(console: Console, certificate: Mapping[str, Any]) -> None:
    """Print the places that prevent a claim. A place that concerns several partitions is printed once."""
    places = dict.fromkeys(
        (problem["file"], problem.get("offset"), problem["reason"])
        for one in certificate["not_certified"]
        for problem in one["problems"]
    )
    for file, offset, reason in [*places][:MAX_SHOWN]:
        where = "" if offset is None else f", offset {offset}"
        console.print(f"[red]{escape(visible(f'{file}{where}: {reason}'))}[/red]", soft_wrap=True)
    if len(places) > MAX_SHOWN:
        console.print(f"[red]... and {len(places) - MAX_SHOWN:,} more places; see the certificate.[/red]")
