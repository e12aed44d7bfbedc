"""Certificates that the same key has signed, and that hold bytes of what a scan looks for: in a reason, a reference, a name.

They are what they say they are, so nothing of a partition can be hidden in them, and they are kept on purpose: what is
in them is named (`ScanReport.elsewhere`) and stands in the way of nothing. Texts that hold it are refused
(`reason_check.py`), but there are certificates from before that. One that was changed, that another key has signed, or
that has another name is any file.

Anyone who can write to the data directory can change a certificate: `problem_with` checks it before it is handed out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diamant.cleaner.evidence.certificates.certificate import (
    INVALID,
    MAX_BYTES,
    TRUSTED,
    check_signature,
    merkle_root,
    parse_certificate,
)
from diamant.cleaner.evidence.certificates.files import is_certificate_name
from diamant.cleaner.evidence.scan.coverage import coverage_problems
from diamant.cleaner.evidence.scan.report import ScanReport
from diamant.cleaner.evidence.search.findings import RAW
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError

NOT_COVERED = (
    "Earlier certificates of this broker that hold bytes of what is gone, as in the reason or reference that was given for them: "
    "they are listed under elsewhere, and stay until you remove them."
)


def set_own_aside(report: ScanReport, env: Env, directory: str, public_key: bytes) -> bool:
    """Have what was found in certificates that are signed with a key listed as `elsewhere`; blocks.

    Returns whether there was any. Memory: one certificate at a time, of `certificate.MAX_BYTES` at most.
    """
    files = {one.file for one in report.astray if one.what == RAW}
    return report.set_aside(
        {one for one in files if is_certificate_name(one) and _is_own(env, f"{directory}/{one}", public_key)}
    )


def not_covered(report: ScanReport) -> list[str]:
    """Return what a certificate says of those that were set aside, one sentence or none."""
    is_listed = any(one.topic is None and is_certificate_name(one.file) for one in report.elsewhere)
    return [NOT_COVERED] if is_listed else []


def problem_with(certificate: Mapping[str, Any], job_id: str, state: str, public_key: bytes) -> str:
    """Return why a certificate, whose file's name has this id and state, is not what its broker has signed; "" if it is.

    Checked are the signature with the broker's own key, and what the certificate says of itself. Some 5 ms for 100 KB.
    """
    signature = check_signature(certificate, public_key)
    if signature != TRUSTED:
        return "it was changed since it was signed" if signature == INVALID else signature
    if (certificate.get("id"), certificate["state"]) != (job_id, state):
        return f"its file has the name of another one: it is {certificate.get('id')}, {certificate['state']}"
    try:
        segments = certificate["segments"]
        roots = [merkle_root(segments[which]) == segments[f"{which}_root"] for which in ("before", "after")]
        problems = coverage_problems(certificate) or (
            [] if all(roots) else ["The roots are not those of its segments."]
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return f"it is signed, but not of the form that is expected: {error!r}"
    return f"what it says does not add up: {problems[0]}" if problems else ""


def _is_own(env: Env, path: str, public_key: bytes) -> bool:
    try:
        if env.file_size(path) > MAX_BYTES:
            return False
        signature = check_signature(parse_certificate(env.read_bytes(path)), public_key)
    except (OSError, StorageError):
        return False
    return signature == TRUSTED
