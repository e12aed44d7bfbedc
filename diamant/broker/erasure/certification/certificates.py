"""The certificates of a broker: lists and returns them, and checks whether a certificate is still true."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from diamant.broker.erasure.certification.evidence import Evidence
from diamant.broker.operation_errors import BadArgument, NotFound, NotGenuine, NotPossible
from diamant.broker.operations.calls.blocking import in_thread
from diamant.cleaner.evidence.certificates.certificate import (
    INVALID,
    MAX_BYTES,
    CertificateError,
    WrongKind,
    parse_certificate,
)
from diamant.cleaner.evidence.certificates.claim_checks import untold
from diamant.cleaner.evidence.certificates.files import CertificateList, list_certificates
from diamant.cleaner.evidence.certificates.verification import CheckedFiles, Verification
from diamant.cleaner.papers.paper import is_paper
from diamant.cleaner.papers.paper_verification import PaperSubject, problem_of, verify_certificate
from diamant.cleaner.person.identifiers import parse_identifiers
from diamant.json_types import JsonObject
from diamant.progress import Progress
from diamant.storage.certificate_states import LAST_STATES, NOT_CERTIFIED
from diamant.storage.env.env import Env

if TYPE_CHECKING:
    from diamant.broker.erasure.certification.erasure_requests import CertificateRequest, VerifyRequest
    from diamant.cleaner.redaction.where import Where


@dataclass(frozen=True, slots=True)
class KeptCertificate:
    """A certificate read from a file."""

    certificate: JsonObject
    job_id: str
    state: str
    """The state in the file name."""
    path: str
    problem: str = ""
    """How the certificate differs from the one that the broker signed; "" if it does not, or if it was not checked."""

    def checked(self, public_key: bytes) -> KeptCertificate:
        """Return a copy with `problem` set by a check against the broker's own key. Callable from any thread."""
        return replace(self, problem=problem_of(self.certificate, self.job_id, self.state, public_key))


class Certificates:
    """The certificates in a data directory."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._list = CertificateList()

    async def verify(self, request: VerifyRequest, progress: Progress) -> Verification:
        """Check a certificate against the broker's current data. Raises BadArgument if it is not a certificate.

        Files and records are compared only if the certificate is signed with the broker's own key: with a forged one, a caller
        could probe whether a file begins with certain bytes, or whether a topic has a certain key.
        """
        where = public_key = None
        values_of = partial(self._evidence.values, registry=request.registry)
        if request.public_key is not None:
            try:
                public_key = bytes.fromhex(request.public_key)
            except ValueError:
                public_key = b""
            if len(public_key) != 32:
                raise BadArgument("public_key: expected the 64 hexadecimal digits of an Ed25519 public key")
        if request.where is not None:
            from diamant.cleaner.evidence.certificates.page_words import topics_of
            from diamant.cleaner.redaction.blanking import parse_blanking
            from diamant.cleaner.redaction.where import WhereError, parse_where
            from diamant.cleaner.values.edits import NULL

            try:
                values = values_of(next(map(str, topics_of(request.certificate)), ""))
                where = parse_where(request.where, values=values, blanking=parse_blanking((), NULL, request.set))
            except WhereError as error:
                raise BadArgument(str(error)) from None
        person = None
        if request.identifiers:
            try:
                given = parse_identifiers(request.identifiers)
            except ValueError as error:
                raise BadArgument(f"identifiers: {error}") from None
            person = PaperSubject(given, values_of)
        return await self._verify(request.certificate, public_key, request.key, where, person, progress)

    async def certificate(self, request: CertificateRequest, _progress: Progress) -> Mapping[str, Any]:
        """Return the last certificate of an erasure or redaction, as described at `Broker.certificate`."""
        return (await self.kept(request.id)).certificate if request.as_it_is else await self.last(request.id)

    async def public_key(self) -> str | None:
        """Return the public key as PEM; None if there is no key yet. Raises NotPossible if it cannot be used."""
        key = await self._evidence.keys.existing()
        return None if key is None else key.public_pem

    # -- stored certificates ---------------------------------------------------------------------------------------------

    async def list_all(self) -> list[JsonObject]:
        """Return a summary of each certificate in the data directory (see `CertificateList`)."""
        try:
            key = await self._evidence.keys.existing()
        except NotPossible:
            key = None
        check = None if key is None else partial(problem_of, public_key=key.public_bytes)
        return await asyncio.to_thread(self._list.describe, self._evidence.env, self._evidence.directory, check)

    async def last(self, job_id: str) -> JsonObject:
        """Return the last certificate of an erasure or redaction. Raises NotFound, or NotGenuine if it was altered."""
        kept = await self.kept(job_id)
        if kept.problem:
            raise NotGenuine(
                f"the certificate is not the one that this broker signed, so it proves nothing: {kept.path}: {kept.problem}. "
                "Restore the file from a copy; as_it_is returns it anyway"
            )
        return kept.certificate

    async def kept(self, job_id: str) -> KeptCertificate:
        """Return the stored certificate and its problem, if any. Raises NotFound, or NotPossible if it cannot be read."""
        found = None
        if job_id.isalnum():
            found = await asyncio.to_thread(last_certificate, self._evidence.env, self._evidence.directory, job_id)
        if found is None:
            raise NotFound("there is no such certificate")
        try:
            key = await self._evidence.keys.usable()
        except NotPossible as error:
            return replace(found, problem=f"it cannot be checked: {error}")
        return await asyncio.to_thread(found.checked, key.public_bytes)

    async def _verify(
        self,
        certificate: Mapping[str, Any],
        public_key: bytes | None,
        key: bytes | None,
        where: Where | None,
        person: PaperSubject | None,
        progress: Progress,
    ) -> Verification:
        own = await self._evidence.keys.existing()
        secret = None if own is None else own.secret
        is_own = own is not None and _signer(certificate) == own.public_bytes.hex()
        progress.begin("scanning everything", unit="bytes")
        ends = self._evidence.ends()

        def work(check: Callable[[], object]) -> Verification:
            place = CheckedFiles(
                self._evidence.env,
                self._evidence.directory,
                ends,
                progress.move_to,
                check,
                self._evidence.staging(ends),
                self._evidence.partitions_there,
            )
            place_of_own = place if is_own else None
            found = verify_certificate(
                certificate, public_key, place_of_own, key=key, where=where, person=person, secret=secret
            )
            if not is_own and found.signature != INVALID:
                _leave_open(certificate, found)
            return found

        try:
            return await in_thread(work)
        except (CertificateError, WrongKind) as error:
            raise BadArgument(str(error)) from None


def _signer(certificate: Mapping[str, Any]) -> object:
    """Return the public key in a certificate, in hexadecimal. If the certificate is malformed, the result can be any value."""
    signature = certificate.get("signature")
    return signature.get("public_key") if isinstance(signature, Mapping) else None


def _leave_open(certificate: Mapping[str, Any], found: Verification) -> None:
    """Mark the claims of another signer's certificate as unconfirmed. Raises CertificateError if the claims are malformed."""
    try:
        parts = certificate["parts"] if is_paper(certificate) else [certificate]
        found.claims = [untold(claim) for part in parts for claim in part["claims"]]
    except (KeyError, TypeError) as error:
        raise CertificateError(f"the certificate's claims do not have the expected form: {error!r}") from None
    found.notes.append(
        "It is signed, but not with this broker's key, so the broker compares no files with it; `diamant verify --data` does."
    )


def last_certificate(env: Env, directory: str, job_id: str) -> KeptCertificate | None:
    """Return the last certificate of an erasure or redaction, or None if it has none. Blocking.

    The last certificate is the one that ended the job: it has `ended` or a final state. If there is none, it is the one that was
    issued last, even if an earlier one claims more, since data may come back. If the issue times are equal (the clock stood
    still), the file's modification time decides. Raises NotPossible if an unreadable file is newer than all others.
    """
    found, problems = [], []
    for one in list_certificates(env, directory):
        if one["id"] == job_id:
            path = one["path"]
            try:
                certificate = parse_certificate(env.read_bytes(path, MAX_BYTES))
            except FileNotFoundError:
                continue
            except (CertificateError, OSError) as error:
                problems.append((env.mtime_ms(path), f"{path}: {getattr(error, 'strerror', None) or error}"))
                continue
            is_ended = bool(certificate.get("ended")) or certificate["state"] in LAST_STATES
            is_refused = certificate["state"] == NOT_CERTIFIED
            order = is_ended, _issued_ms(certificate), env.mtime_ms(path), is_refused
            found.append((order, KeptCertificate(certificate, job_id, one["state"], path)))
    written_ms, problem = max(problems, default=(-1, ""))
    if problem and all(written_ms >= order[2] for order, _ in found):
        raise NotPossible(f"its last certificate cannot be read: {problem}. Restore the file, or move it away")
    return max(found, key=lambda one: one[0])[1] if found else None


def _issued_ms(certificate: Mapping[str, Any]) -> int:
    """Return the time at which a certificate was issued; 0 if it does not state one."""
    clock = certificate.get("clock")
    issued_ms = clock.get("issued_ms") if isinstance(clock, Mapping) else None
    return issued_ms if isinstance(issued_ms, int) else 0
