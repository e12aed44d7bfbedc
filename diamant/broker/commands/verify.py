"""`diamant verify`: check a certificate, against files that no broker need be running for, or against a broker."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diamant.broker.commands.asking import EXIT_DONE, EXIT_NOT_SO, EXIT_USAGE, Asked, asking, fail
from diamant.broker.verbs.errors import BadArgument
from diamant.broker.verbs.record_key import key_from_options, parse_key

if TYPE_CHECKING:
    from rich.console import Console

    from diamant.cleaner.redaction_where import Where


@click.command()
@click.argument("certificate", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--public-key", type=click.Path(exists=True, dir_okay=False), help="The pinned public key, PEM or hexadecimal."
)
@click.option(
    "--data", "data_dir", type=click.Path(exists=True, file_okay=False), help="Check these files; no broker is asked."
)
@click.option("--offline", is_flag=True, help="Check the signature only; no broker is asked.")
@click.option("--secret", type=click.Path(exists=True, dir_okay=False), help="With --data: the secret of the digests.")
@click.option("--key", help="The key that was erased, to look for it, as text.")
@click.option("--key-hex", help="The same, in hexadecimal.")
@click.option("--key-base64", help="The same, in base64.")
@click.option("--where", help="What a redaction was about, to look for it again.")
@asking
def verify(
    certificate: str,
    public_key: str | None,
    data_dir: str | None,
    offline: bool,
    secret: str | None,
    key: str | None,
    key_hex: str | None,
    key_base64: str | None,
    where: str | None,
    asked: Asked,
) -> None:
    """Check the signature of CERTIFICATE, and what has changed since.

    Exit codes: 0 valid, 1 failed, 2 usage, 3 not valid, not trusted, or no longer so.
    """
    from diamant.cleaner.evidence.certificate import CertificateError, parse
    from diamant.cleaner.evidence.signing_key import load_secret, read_public_key
    from diamant.storage.errors import StorageError

    try:
        wanted = (
            key_from_options(key, key_hex, key_base64) if (key, key_hex, key_base64) != (None, None, None) else None
        )
        fields = parse(Path(certificate).read_bytes())
        pinned = None if public_key is None else read_public_key(public_key)
        if data_dir is None and not offline:
            options = {"public_key": None if pinned is None else pinned.hex(), "key": wanted, "where": where}
            found = asked.admin.verify(fields, timeout_s=asked.timeout_s, on_progress=asked.on_progress, **options)
        else:
            from diamant.cleaner.evidence.verification import verify_certificate
            from diamant.storage.env import RealEnv

            found = verify_certificate(
                fields,
                pinned,
                None if data_dir is None else RealEnv(),
                data_dir,
                key=None if wanted is None else parse_key(wanted),
                where=None if where is None else _parsed(where),
                secret=None if secret is None else load_secret(secret),
            ).to_fields()
    except BadArgument as error:
        fail(str(error), EXIT_USAGE)
    except CertificateError as error:
        fail(f"{certificate}: {error}", EXIT_NOT_SO)
    except StorageError as error:
        fail(str(error))
    asked.show(found, lambda console: _print(console, found))
    sys.exit(EXIT_DONE if found["is_valid"] else EXIT_NOT_SO)


def _parsed(text: str) -> Where:
    from diamant.cleaner.redaction_where import WhereError, parse_where

    try:
        return parse_where(text)
    except WhereError as error:
        raise BadArgument(str(error)) from None


def _print(console: Console, found: Mapping[str, Any]) -> None:
    from rich.table import Table

    colour = "green" if found["is_valid"] else "red"
    console.print(f"[{colour}]{'valid' if found['is_valid'] else 'NOT VALID'}[/{colour}]: {found['signature']}")
    console.print(f"The certificate says {found['state']}; signed by {found['signer']}")
    if found["claims"]:
        table = Table("partition", "below offset", "claim", "written since", box=None)
        for claim in found["claims"]:
            name = f"{claim['topic']}-{claim['partition']}"
            table.add_row(name, str(claim["below_offset"]), claim["verdict"], str(claim["written_since"]))
        console.print(table)
    for note in found["notes"]:
        console.print(f"- {note}")
