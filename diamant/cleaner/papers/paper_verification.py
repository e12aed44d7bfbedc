"""Verifies certificates of any kind that a broker issues; of a person's paper the whole and each part.

The whole never says more than its parts: its claims are theirs, and its outcome is the gravest of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diamant.cleaner.evidence.certificates.certificate import (
    INVALID,
    CertificateError,
    check_form,
    check_kind,
    check_signature,
)
from diamant.cleaner.evidence.certificates.own_certificates import problem_with
from diamant.cleaner.evidence.certificates.verification import (
    NOT_VALID,
    Verification,
    notes_of_signature,
    verify_certificate,
)
from diamant.cleaner.papers.paper import contradictions, is_paper
from diamant.cleaner.redaction.claims import check_redaction_claims
from diamant.words import not_searched_text

MAX_NOTES = 20


def verify(certificate: Mapping[str, Any], pinned: bytes | None, *place: Any, **given: Any) -> Verification:
    """Verify a certificate as `verify_certificate` does; a person's paper with all its parts. Blocks.

    CertificateError, WrongKind.
    """
    given = {"check_redaction": check_redaction_claims, **given}
    if not is_paper(certificate):
        return verify_certificate(certificate, pinned, *place, **given)
    check_form(certificate)
    check_kind(certificate, key=given.get("key"), where=given.get("where"))
    found = Verification(
        signature=check_signature(certificate, pinned),
        signer=str(certificate["signature"]["public_key"]),
        state=str(certificate["state"]),
        is_evidence=certificate.get("is_evidence") is True,
    )
    found.notes += notes_of_signature(found)
    if found.signature == INVALID:
        return found
    try:
        problems = contradictions(certificate)
        if not problems:
            for part in certificate["parts"]:
                problems += _add_part(
                    found, part, verify_certificate(part, bytes.fromhex(found.signer), *place, **given)
                )
        found.notes += [
            f"{row['topic']}: {row['records']} records stay, because of {row['keep']['because']}."
            for row in certificate["topics"]
            if row["keep"] and row["records"]
        ]
        found.notes += [f"{not_searched_text(one)}." for one in certificate["not_searched"]]
        found.notes += [f"{row['topic']}: {row['problem']}." for row in certificate["topics"] if row["problem"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CertificateError(f"the certificate is signed, but not in the expected form: {error!r}") from None
    found.coverage_adds_up = not problems
    found.notes += problems[:MAX_NOTES]
    return found


def _add_part(found: Verification, part: Mapping[str, Any], one: Verification) -> list[str]:
    """Add what was found of a part; return why it is not valid, if so."""
    name = f"{part['id']} ({', '.join(part['request']['topics'])})"
    found.claims += one.claims
    found.segments += one.segments
    found.was_scanned |= one.was_scanned
    found.roots_fit &= one.roots_fit
    found.is_evidence &= one.is_evidence
    found.parts.append(
        {"id": part["id"], "topics": part["request"]["topics"], "outcome": one.outcome, "summary": one.summary}
    )
    found.notes += [f"{name}: {note}" for note in one.notes if note not in found.notes][:MAX_NOTES]
    return [f"{name}: {one.summary}"] if one.outcome == NOT_VALID else []


def problem_of(certificate: Mapping[str, Any], job_id: str, state: str, public_key: bytes) -> str:
    """Return why a certificate of any kind is not what its broker signed (`own_certificates.problem_with`); "" if it is."""
    if not is_paper(certificate):
        return problem_with(certificate, job_id, state, public_key)
    return problem_with(certificate, job_id, state, public_key, lambda paper: _problems(paper, public_key))


def _problems(paper: Mapping[str, Any], public_key: bytes) -> list[str]:
    of_parts = (problem_with(one, str(one["id"]), str(one["state"]), public_key) for one in paper["parts"])
    return contradictions(paper) or [one for one in of_parts if one]
