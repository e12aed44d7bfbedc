"""Findings in earlier certificates of the same signer, whose reasons, references or names may contain what a scan looks for.

Their signatures prove that they hide no records, and they are kept on purpose. So findings in them do not block a certificate;
they are listed in `ScanReport.elsewhere`. New reasons and references with such bytes are refused (`reason_check.py`), but some
certificates are older than that check. A certificate that was changed, renamed, or signed with another key is searched like any
other file.

Anyone who can write to the data directory can change a certificate, so `problem_with` checks each one before it is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from diamant.cleaner.evidence.certificates.certificate import (
    INVALID,
    MAX_BYTES,
    TRUSTED,
    check_signature,
    merkle_root,
    parse_certificate,
)
from diamant.cleaner.evidence.scan.coverage import coverage_problems
from diamant.cleaner.evidence.scan.report import ScanReport
from diamant.cleaner.evidence.search.findings import RAW
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError
from diamant.storage.given_names import is_certificate_name

NOT_COVERED = (
    "Earlier certificates of this broker that hold bytes of what is gone, for example in their reason or reference. "
    "They are listed under elsewhere, and stay until you remove them."
)


def set_own_aside(report: ScanReport, env: Env, directory: str, public_key: bytes) -> bool:
    """Move findings in certificates signed with this key to `report.elsewhere`, and return whether there were any.

    Keeps one certificate (at most `certificate.MAX_BYTES`) in memory at a time. Does blocking I/O.
    """
    files = {one.file for one in report.astray if one.what == RAW}
    return report.set_aside(
        {one for one in files if is_certificate_name(one) and _is_own(env, f"{directory}/{one}", public_key)}
    )


def not_covered(report: ScanReport) -> list[str]:
    """Return the sentence that a certificate needs about such findings, in a list; an empty list if there are none."""
    is_listed = any(one.topic is None and is_certificate_name(one.file) for one in report.elsewhere)
    return [NOT_COVERED] if is_listed else []


Problems = Callable[[Mapping[str, Any]], Sequence[str]]
"""Returns sentences about contradictions in a signed certificate."""


def problem_with(
    certificate: Mapping[str, Any], job_id: str, state: str, public_key: bytes, problems: Problems | None = None
) -> str:
    """Return why a certificate is not what its broker signed; "" if it is.

    `job_id` and `state`: those in its file name. `public_key`: the broker's own. `problems`: a check that the contents are
    consistent; None for the check of an erasure or redaction. Takes some 5 ms for 100 KB.
    """
    signature = check_signature(certificate, public_key)
    if signature != TRUSTED:
        return "it was changed since it was signed" if signature == INVALID else signature
    if (certificate.get("id"), certificate["state"]) != (job_id, state):
        return (
            f"its file has the name of another certificate: this one is {certificate.get('id')}, {certificate['state']}"
        )
    try:
        found = (_of_removal if problems is None else problems)(certificate)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return f"it is signed, but not in the expected form: {error!r}"
    return f"its statements do not add up: {found[0]}" if found else ""


def _of_removal(certificate: Mapping[str, Any]) -> Sequence[str]:
    segments = certificate["segments"]
    roots = [merkle_root(segments[which]) == segments[f"{which}_root"] for which in ("before", "after")]
    return coverage_problems(certificate) or ([] if all(roots) else ["The roots are not those of its segments."])


def _is_own(env: Env, path: str, public_key: bytes) -> bool:
    try:
        signature = check_signature(parse_certificate(env.read_bytes(path, MAX_BYTES)), public_key)
    except (OSError, StorageError):
        return False
    return signature == TRUSTED
