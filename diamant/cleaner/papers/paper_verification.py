"""Verifies certificates of any kind that a broker issues; a person's paper is verified as a whole and part by part.

A paper never claims more than its parts do: its claims are the claims of its parts, and its outcome is their worst outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from diamant.cleaner.evidence.certificates.certificate import (
    INVALID,
    WrongKind,
    check_form,
    check_kind,
    check_signature,
    expected_form,
)
from diamant.cleaner.evidence.certificates.own_certificates import problem_with
from diamant.cleaner.evidence.certificates.verification import (
    NOT_VALID,
    CheckedFiles,
    Verification,
    notes_of_signature,
    verification_steps,
    verified,
)
from diamant.cleaner.papers.paper import contradictions, is_paper
from diamant.cleaner.papers.person_parts import PartSubject, PartSubjects
from diamant.cleaner.redaction.claims import check_redaction_claims
from diamant.cleaner.redaction.where import Where
from diamant.cleaner.values.schemas import Values
from diamant.words import not_searched_text, stay_text

MAX_NOTES = 20


IDENTIFIERS_MISSING = (
    "Without the person's identifiers and the secret, the scan does not look for records with removed or changed values. The "
    "signatures, and what the paper and its parts say about themselves, were checked."
)


@dataclass(frozen=True, slots=True)
class PaperSubject:
    """What a verifier knows about the person of a paper."""

    identifiers: Mapping[str, Sequence[str]]
    values_of: Callable[[str], Values] | None = None
    """As in `PartSubjects`."""


def verify_certificate(
    certificate: Mapping[str, Any],
    pinned: bytes | None,
    place: CheckedFiles | None = None,
    *,
    key: bytes | None = None,
    where: Where | None = None,
    person: PaperSubject | None = None,
    secret: bytes | None = None,
    read_replicas: Callable[[Verification], object] | None = None,
) -> Verification:
    """Verify a certificate, and compare it with a data directory if one is given. Blocks on disk I/O.

    A person's paper is verified with all its parts, in one scan. For the other arguments see `verification_steps`. Raises
    CertificateError, WrongKind.
    """
    steps_of = partial(verification_steps, place=place, check_redaction=check_redaction_claims, secret=secret)
    if not is_paper(certificate):
        if person is not None:
            raise WrongKind(
                "this is not the certificate of a person's request: verify it with a key or a condition, not with identifiers"
            )
        return verified([steps_of(certificate, pinned, key=key, where=where, read_replicas=read_replicas)], place)[0]
    check_form(certificate)
    check_kind(certificate, key=key, where=where)
    found = Verification(
        signature=check_signature(certificate, pinned),
        signer=str(certificate["signature"]["public_key"]),
        state=str(certificate["state"]),
        is_evidence=certificate.get("is_evidence") is True,
    )
    found.notes += notes_of_signature(found)
    if found.signature == INVALID:
        return found
    parts: list[tuple[Mapping[str, Any], PartSubject]] = []
    with expected_form():
        problems = contradictions(certificate)
        if not problems:
            parts += zip(certificate["parts"], _subjects(certificate, person, secret), strict=True)
    signer = bytes.fromhex(found.signer)
    of_parts = verified(
        [steps_of(part, signer, key=subject.key, where=subject.where) for part, subject in parts], place
    )
    with expected_form():
        for (part, subject), one in zip(parts, of_parts, strict=True):
            problems += _add_part(found, part, one, subject.missing)
        if parts and place is not None and (person is None or secret is None):
            found.notes.append(IDENTIFIERS_MISSING)
        found.notes += [f"{text}." for row in certificate["topics"] if (text := stay_text(row))]
        found.notes += [f"{not_searched_text(one)}." for one in certificate["not_searched"]]
        found.notes += [f"{row['topic']}: {row['problem']}." for row in certificate["topics"] if row["problem"]]
    found.coverage_adds_up = not problems
    found.notes += problems[:MAX_NOTES]
    return found


def _subjects(paper: Mapping[str, Any], person: PaperSubject | None, secret: bytes | None) -> list[PartSubject]:
    if person is None or secret is None:
        return [PartSubject() for _ in paper["parts"]]
    known = PartSubjects(paper, secret, person.identifiers, person.values_of)
    return [known.of(part) for part in paper["parts"]]


def _add_part(found: Verification, part: Mapping[str, Any], one: Verification, missing: str) -> list[str]:
    """Add the verification of a part to `found`. Return its problem if it is not valid. `missing`: why its subject is unknown."""
    name = f"{part['id']} ({', '.join(part['request']['topics'])})"
    found.claims += one.claims
    found.segments += one.segments
    found.was_scanned |= one.was_scanned
    found.roots_fit &= one.roots_fit
    found.is_evidence &= one.is_evidence
    found.parts.append(
        {"id": part["id"], "topics": part["request"]["topics"], "outcome": one.outcome, "summary": one.summary}
    )
    if missing:
        found.notes.append(f"{name}: {missing}.")
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
