"""`diamant certify`: search the disks of a Kafka broker for the key of an erasure, and join disk certificates."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from diamant.broker.commands.terminal.failures import fail, tell
from diamant.broker.commands.terminal.files import one_line_errors, visible
from diamant.broker.commands.terminal.key_options import key_options, required
from diamant.broker.commands.terminal.progress_text import LiveProgress
from diamant.broker.commands.terminal.remote import OutputFile
from diamant.broker.operation_errors import EXIT_DONE, EXIT_NOT_SO, OperationError
from diamant.storage.input_file import read_input
from diamant.words import counted

MEGABYTE = 1_000_000
MAX_SHOWN = 20


@click.command()
@click.argument("directories", nargs=-1, metavar="[LOGDIR]...", type=click.Path(exists=True, file_okay=False))
@click.option(
    "--erasure",
    type=click.Path(exists=True, dir_okay=False),
    required=True,
    help="The certificate of the erasure that `diamant erase` wrote.",
)
@click.option(
    "--join",
    "disks",
    type=click.Path(exists=True, dir_okay=False),
    multiple=True,
    help="Instead of searching, add this disk certificate to the certificate of the erasure; may be repeated.",
)
@key_options("The key that was erased")
@click.option(
    "--max-rate",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    metavar="MB",
    help="The maximum number of MB to read per second; 0: no limit.",
)
@click.option("--certificate", "file", type=OutputFile(), help="Write the certificate to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the certificate.")
def certify(
    directories: tuple[str, ...],
    erasure: str,
    disks: tuple[str, ...],
    key: bytes | None,
    max_rate: int,
    file: str | None,
    *,
    as_json: bool,
) -> None:
    """Search all LOGDIRs of one Kafka broker, which may be running, for the key of an erasure, and certify the result.

    Only reads the LOGDIRs. The state directory ($DIAMANT_STATE_DIR) must have the files signing-key and signing-key.secret that
    the erasure used. With --join, adds disk certificates to the certificate of the erasure, which then lists the replicas whose
    disks were not searched.

    Exit codes: 0 the state is values-gone or key-gone; 1 failed; 2 usage, or certificates and directories that do not belong
    together; 3 not everything is certified: something is left, a replica is missing, or the key has been written again.
    """
    from diamant.broker.clusters.certificate import existing_signing_key
    from diamant.broker.clusters.register import state_directory
    from diamant.broker.inspection.disks import ReadLimit, certify_disks, checked, disk_of, join
    from diamant.cleaner.evidence.certificates.certificate import CLUSTER_TYPE, MAX_BYTES, parse_certificate
    from diamant.cleaner.evidence.certificates.cluster_claims import written_since
    from diamant.storage.env.env import RealEnv
    from diamant.storage.errors import StorageError

    if bool(directories) == bool(disks):
        raise click.UsageError("expected log directories to search, or certificates to --join")
    try:
        with one_line_errors():
            signing = existing_signing_key(str(state_directory()))
            with _naming(erasure):
                found = checked(parse_certificate(read_input(erasure, MAX_BYTES)), signing, CLUSTER_TYPE)
            parts = []
            for one in disks:
                with _naming(one):
                    parts.append(disk_of(found, parse_certificate(read_input(one, MAX_BYTES)), signing))
            if parts:
                found = join(found, parts, signing)
            if directories:
                with LiveProgress(_size(directories)) as bar:
                    limit = ReadLimit(max_rate * MEGABYTE, bar.advance)
                    found = certify_disks(RealEnv(), directories, found, required(key), signing, limit)
    except OperationError as error:
        fail(str(error), error.code)
    except StorageError as error:
        fail(str(error))
    text = json.dumps(found, indent=1, sort_keys=True)
    if file is not None:
        Path(file).write_text(text, encoding="utf-8")
    tell(text if as_json else _told(found))
    is_done = found["state"] in ("values-gone", "key-gone") and not written_since(found)
    sys.exit(EXIT_DONE if is_done else EXIT_NOT_SO)


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Add the path of a certificate to errors about it."""
    from diamant.storage.errors import StorageError

    try:
        yield
    except (OperationError, StorageError) as error:
        raise type(error)(f"{path}: {error}") from None


def _size(directories: Sequence[str]) -> int:
    paths = (os.path.join(path, name) for one in directories for path, _, files in os.walk(one) for name in files)
    return sum(os.stat(path).st_size for path in paths if os.path.exists(path))


def _told(found: Mapping[str, Any]) -> str:
    from diamant.cleaner.evidence.certificates.cluster_claims import written_since

    of = f"broker {found['broker']}" if "broker" in found else "the cluster"
    lines = [f"{found['state']}: {of}, {counted(len(found['claims']), 'claim')}"]
    lines += [f"not searched: the disk of {name}" for name in found.get("without_disk", ())]
    lines += [
        f"{one['topic']}-{one['partition']}: {one['state']}: {problem['file']}: {problem['reason']}"
        for one in found["not_certified"]
        for problem in one["problems"]
    ]
    for name, offsets in written_since(found).items():
        more = ", ..." if len(offsets) > MAX_SHOWN else ""
        told = ", ".join(map(str, sorted(offsets)[:MAX_SHOWN]))
        lines.append(f"{name}: the key was written again since the erasure: offset {told}{more}; not erased")
    return "\n".join(map(visible, lines))
