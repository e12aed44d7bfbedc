"""`diamant verify`: check a certificate against a running broker, or offline against files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

import click

from diamant.broker.client.admin import AdminError
from diamant.broker.commands.terminal import remote
from diamant.broker.commands.terminal.asked import Asked
from diamant.broker.commands.terminal.console import Console
from diamant.broker.commands.terminal.failures import fail
from diamant.broker.commands.terminal.files import visible
from diamant.broker.commands.terminal.key_options import IdentifierOption, by_name, key_options
from diamant.broker.commands.terminal.wide_table import TableColumn, print_table
from diamant.broker.operation_errors import EXIT_DONE, EXIT_FAILED, EXIT_NOT_SO, EXIT_NOTHING, BadArgument
from diamant.broker.record_json import key_fields
from diamant.json_types import JsonObject, OnProgress
from diamant.progress import Progress
from diamant.storage.certificate_states import NOTHING_MATCHED
from diamant.storage.input_file import read_input

if TYPE_CHECKING:
    from diamant.cleaner.papers.paper_verification import PaperSubject
    from diamant.cleaner.redaction.where import Where
    from diamant.cleaner.values.schemas import Values
    from diamant.storage.env.env import Env

_WITHOUT_BROKER = (
    "Without a broker: --offline checks the signature; --data DIRECTORY and --secret check the files of a stopped broker, or a "
    "copy"
)


@click.command()
@click.argument("certificate", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--public-key", type=click.Path(exists=True, dir_okay=False), help="The pinned public key, PEM or hexadecimal."
)
@click.option(
    "--data",
    "data_dir",
    type=click.Path(exists=True, file_okay=False),
    help="Check the files of a stopped broker, or a copy of them, without asking a broker.",
)
@click.option(
    "--offline",
    is_flag=True,
    help="Check only the signature and the certificate itself, without asking a broker.",
)
@click.option(
    "--secret",
    type=click.Path(exists=True, dir_okay=False),
    help="With --data, or to read replicas again: the file with the signer's secret for digests.",
)
@key_options("For an erasure, search for the key again; on a Kafka cluster other than Diamant, read the replicas again")
@click.option("--where", help="For a redaction: its --where, to search for the records again.")
@click.option(
    "--set",
    "given",
    multiple=True,
    help="For a redaction that corrected fields: its --set, to compare with the fields.",
)
@click.option(
    "--identifiers",
    "identifiers",
    type=IdentifierOption(),
    multiple=True,
    help="For a person's paper: an identifier of the person, to search for the records again; may be repeated.",
)
@remote.registry_option
@click.option("--signed", type=remote.OutputFile(), help=remote.SIGNED_HELP)
@remote.asking
def verify(
    certificate: str,
    public_key: str | None,
    data_dir: str | None,
    offline: bool,
    secret: str | None,
    key: bytes | None,
    where: str | None,
    given: tuple[str, ...],
    identifiers: tuple[tuple[str, str], ...],
    registry: str | None,
    signed: str | None,
    asked: Asked,
) -> None:
    """Check the signature of the file CERTIFICATE, and whether its claims still hold.

    The size limit is 16 MiB, or 8 MiB if a broker checks the file. Exit codes: 0 valid; 1 failed; 2 usage; 3 not valid, not
    trusted, no longer true, or not confirmed; 4 nothing contradicts it, but the certificate itself states that nothing was
    found, so it proves no removal.
    """
    from diamant.cleaner.evidence.certificates.certificate import (
        CLUSTER_TYPE,
        DISK_TYPE,
        MAX_BYTES,
        CertificateError,
        WrongKind,
        check_kind,
        parse_certificate,
    )
    from diamant.cleaner.evidence.certificates.signing_key import load_secret, read_public_key
    from diamant.storage.errors import StorageError

    is_looking = key is not None or where is not None or bool(identifiers)
    person = by_name(identifiers)
    try:
        fields = parse_certificate(read_input(certificate, MAX_BYTES))
        is_read_again = fields["type"] == CLUSTER_TYPE and key is not None and data_dir is None
        has_files = data_dir is not None or is_read_again
        _check_options(offline=offline, has_files=has_files, secret=secret, is_looking=is_looking or bool(registry))
        check_kind(fields, key=None if is_read_again else key, where=where)
        is_written = remote.write_bundle(fields, signed)
        pinned = None if public_key is None else read_public_key(public_key)
        known = None if secret is None else load_secret(secret)
        # A broker cannot confirm what other brokers returned.
        if is_read_again and key is not None:
            found = _read_again(asked, fields, pinned, key, known)
        elif data_dir is None and not offline and fields["type"] not in (CLUSTER_TYPE, DISK_TYPE):
            found = _ask(
                asked, fields, pinned, key, where=where, set=given, identifiers=person or None, registry=registry
            )
        else:
            sought = _sought(fields, where, given, person, _values_of(data_dir, registry))
            found = _verify_here(fields, pinned, data_dir, asked.on_progress, key=key, secret=known, **sought)
        if found["outcome"] == "not-confirmed" and not found["was_scanned"] and not is_looking:
            found["notes"].append(_what_to_add(fields, needs_secret=data_dir is not None and secret is None))
    except AdminError as error:
        if error.code != "no-answer":
            raise
        fail(f"{error}. {_WITHOUT_BROKER}", error.code)
    except (BadArgument, WrongKind) as error:
        fail(f"{certificate}: {error}" if isinstance(error, WrongKind) else str(error), "bad-argument")
    except CertificateError as error:
        fail(f"{certificate}: {error}", "not-genuine")
    except StorageError as error:
        fail(str(error))
    asked.show(found, lambda console: _print(console, found))
    if not is_written:
        sys.exit(EXIT_FAILED)
    sys.exit({"valid": EXIT_DONE, NOTHING_MATCHED: EXIT_NOTHING}.get(found["outcome"], EXIT_NOT_SO))


def _ask(
    asked: Asked, fields: Mapping[str, Any], pinned: bytes | None, key: bytes | None, **subject: Any
) -> JsonObject:
    """Ask the broker to verify the certificate."""
    trusted = None if pinned is None else pinned.hex()
    wanted = None if key is None else key_fields(key)
    return asked.admin.verify(fields, public_key=trusted, key=wanted, **subject, **asked.waiting)


def _read_again(
    asked: Asked, fields: Mapping[str, Any], pinned: bytes | None, key: bytes, secret: bytes | None
) -> JsonObject:
    """Verify by reading a cluster's replicas again. Without `secret`, uses that of the state directory if it is the signer's."""
    from diamant.broker.clusters.certificate import existing_signing_key
    from diamant.broker.clusters.for_admin import connected
    from diamant.broker.clusters.register import state_directory
    from diamant.broker.clusters.work_progress import WorkProgress
    from diamant.broker.inspection.read_again import read_again
    from diamant.cleaner.evidence.certificates.signing_key import load_secret
    from diamant.cleaner.evidence.certificates.verification import Verification
    from diamant.cleaner.evidence.search.needles import keyed_digest
    from diamant.cleaner.papers.paper_verification import verify_certificate

    own = state_directory() / "signing-key.secret"
    known = load_secret(str(own)) if secret is None and own.exists() else secret
    is_signers = False
    if secret is None:
        with suppress(BadArgument):
            is_signers = (
                existing_signing_key(str(state_directory())).public_bytes.hex() == fields["signature"]["public_key"]
            )
    with connected(asked.admin) as client:

        def read(found: Verification) -> None:
            is_of_key = known is not None and keyed_digest(known, key).hex() == fields["request"]["key_hmac"]
            if is_signers and not is_of_key:
                raise BadArgument("the certificate is not about this key")
            if secret is not None and not is_of_key:
                raise BadArgument("the certificate is about another key, or the secret is not that of its signer")
            progress = WorkProgress(asked.timeout_s, asked.on_progress)
            read_again(client, fields, key, known if is_of_key else None, progress, found)

        return verify_certificate(fields, pinned, key=key, read_replicas=read).to_fields()


def _verify_here(
    fields: Mapping[str, Any],
    pinned: bytes | None,
    data_dir: str | None,
    on_progress: OnProgress,
    **subject: Any,
) -> JsonObject:
    """Verify the signature and, if given, the files in `data_dir`, without a broker. Passes `subject` to `verify_certificate`."""
    from diamant.cleaner.evidence.certificates.verification import CheckedFiles
    from diamant.cleaner.papers.paper_verification import verify_certificate
    from diamant.storage.env.env import RealEnv

    env = RealEnv()
    progress = Progress(lambda now: on_progress(now.to_fields()))
    progress.begin("scanning everything", unit="bytes")
    with nullcontext("") if data_dir is None else _held(env, data_dir) as not_held:
        found = verify_certificate(
            fields,
            pinned,
            None if data_dir is None else CheckedFiles(env, data_dir, advance=progress.move_to),
            **subject,
        ).to_fields()
    if not_held:
        found["notes"].append(not_held)
    return found


def _check_options(*, offline: bool, has_files: bool, secret: str | None, is_looking: bool) -> None:
    """Raise BadArgument if options exclude each other. `has_files`: whether there are files or replicas to read."""
    if offline and (has_files or is_looking):
        raise BadArgument(
            "--offline checks only the signature, so it excludes --data, --key, --where, --identifiers and --registry"
        )
    if secret is not None and not has_files:
        raise BadArgument("--secret needs --data: a broker uses its own secret")


def _what_to_add(certificate: Mapping[str, Any], *, needs_secret: bool) -> str:
    """Return a note with the options that would check the records, too."""
    from diamant.cleaner.evidence.certificates.certificate import PERSON_TYPE, REDACTION_TYPE

    secret = (
        "--secret with the file of the secret (the .secret beside the broker's private key)" if needs_secret else ""
    )
    if certificate["type"] == PERSON_TYPE:
        names = ", ".join(sorted({str(one["name"]) for one in certificate["request"]["identifiers"]}))
        also = f", and {secret}" if secret else ""
        return (
            f"To check the records, too, add --identifiers NAME=VALUE for each identifier of the person ({names}){also}"
        )
    if certificate["type"] == REDACTION_TYPE:
        missing = f"--where, as given to diamant redact{secret and f', and {secret}'}"
    else:
        missing = (
            f"{secret}; or --key with the key, which shows whether it is there, but confirms nothing without the secret"
        )
    return f"To check the records, too, add {missing}. --offline checks only the signature."


@contextmanager
def _held(env: Env, directory: str) -> Iterator[str]:
    """Lock the directory against brokers. Yields a note for the report if it cannot be locked, else an empty string.

    Raises StorageError if a broker holds the lock, because files that change while they are read prove nothing. After an orderly
    stop there is no lock file, so one is created for the duration of the check.
    """
    from diamant.storage import names
    from diamant.storage.errors import InUse, StorageError

    lock, note = None, ""
    try:
        lock = env.lock_for_reading(f"{directory}/{names.LOCK}", create=True)
    except InUse as error:
        raise StorageError(
            f"{error}, so the files could change while they are read. Ask the broker itself, without --data, because it knows "
            "where its logs end; or stop the broker, or check a copy"
        ) from None
    except OSError as error:
        note = (
            f"The directory was not locked ({error.filename}: {error.strerror}): make sure that no broker changed the files "
            "while they were read."
        )
    try:
        yield note
    finally:
        if lock is not None:
            lock.release()


def _values_of(data_dir: str | None, registry: str | None) -> Callable[[str], Values] | None:
    """Return a function that maps a topic to its decoder, which takes schemas from the directory and the registry.

    Returns None unless both are given.
    """
    from diamant.cleaner.values.registry import RegistryAddress
    from diamant.cleaner.values.schema_places import SchemaPlaces
    from diamant.cleaner.values.schemas import Values
    from diamant.cleaner.values.schemas_topic import SchemasTopic
    from diamant.storage.env.env import RealEnv

    if data_dir is None or registry is None:
        return None
    try:
        places = SchemaPlaces(registry=RegistryAddress(registry))
    except ValueError as error:
        raise BadArgument(f"registry: {error}") from None
    return partial(Values, places.schemas(RealEnv(), SchemasTopic(RealEnv(), data_dir)))


class _Sought(TypedDict):
    """Arguments of `verify_certificate`."""

    where: Where | None
    person: PaperSubject | None


def _sought(
    certificate: Mapping[str, Any],
    where: str | None,
    given: Sequence[str],
    person: Mapping[str, Sequence[str]],
    values_of: Callable[[str], Values] | None,
) -> _Sought:
    """Return the search criteria of a verification other than the key."""
    from diamant.cleaner.evidence.certificates.page_words import topics_of
    from diamant.cleaner.papers.paper_verification import PaperSubject
    from diamant.cleaner.redaction.blanking import parse_blanking
    from diamant.cleaner.redaction.where import WhereError, parse_where
    from diamant.cleaner.values.edits import NULL

    subject = PaperSubject(person, values_of) if person else None
    if where is None:
        return {"where": None, "person": subject}
    values = values_of(next(map(str, topics_of(certificate)), "")) if values_of else None
    try:
        condition = parse_where(where, values=values, blanking=parse_blanking((), NULL, given))
    except WhereError as error:
        raise BadArgument(str(error)) from None
    return {"where": condition, "person": subject}


def _print(console: Console, found: Mapping[str, Any]) -> None:
    def say(text: object, style: str = "") -> None:
        # A certificate may come from anywhere, so its text is never printed as markup or a control sequence.
        console.print(visible(str(text)), style=style, markup=False)

    colour = {"valid": "green", "not-confirmed": "yellow", NOTHING_MATCHED: "yellow"}.get(found["outcome"], "red")
    say(found["summary"], colour)
    say(f"The certificate says {found['state']}; signed by {found['signer']}")
    if found["claims"]:
        rows = [
            [
                visible(f"{claim['topic']}-{claim['partition']}"),
                str(claim["below_offset"]),
                visible(_verdict(claim)),
                str(claim["written_since"]),
            ]
            for claim in found["claims"]
        ]
        heads = ("partition", "below offset", "claim", "written since")
        print_table([TableColumn(head, is_text=True) for head in heads], rows, console=console, is_ruled=False)
    for note in found["notes"]:
        say(f"- {note}")


def _verdict(claim: Mapping[str, Any]) -> str:
    from diamant.cleaner.evidence.certificates.page_words import state_text

    state = claim.get("state_now")
    return claim["verdict"] if claim["verdict"] == "holds" or not state else f"{claim['verdict']}: {state_text(state)}"
