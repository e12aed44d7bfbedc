"""The certificates of a broker: their list, and the check whether one is still true."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from diamant.broker.erasure.evidence.evidence import Evidence
from diamant.broker.erasure.evidence.kept_certificate import KeptCertificate, last_certificate
from diamant.broker.errors import BadArgument, NotFound, NotGenuine, NotPossible
from diamant.broker.operations.calls.blocking import in_thread
from diamant.broker.operations.calls.cross_loop import on_loop
from diamant.broker.operations.calls.progress import Progress
from diamant.cleaner.evidence.certificates.certificate import INVALID, CertificateError, WrongKind
from diamant.cleaner.evidence.certificates.claim_checks import untold
from diamant.cleaner.evidence.certificates.files import CertificateList
from diamant.cleaner.evidence.certificates.own_certificates import problem_with
from diamant.cleaner.evidence.certificates.verification import Verification, verify_certificate
from diamant.cleaner.redaction.claims import check_redaction_claims

if TYPE_CHECKING:
    from diamant.cleaner.redaction.where import Where


class Certificates:
    """The certificates in a data directory."""

    def __init__(self, evidence: Evidence, loop: asyncio.AbstractEventLoop) -> None:
        """`loop`: the broker's."""
        self._evidence = evidence
        self._loop = loop
        self._list = CertificateList()

    # -- any loop --------------------------------------------------------------------------------------------------------

    async def verify(
        self,
        certificate: Mapping[str, Any],
        *,
        public_key: bytes | None = None,
        key: bytes | None = None,
        where: str | None = None,
        progress: Progress | None = None,
    ) -> Verification:
        """Check a certificate against the broker's present data. Raises BadArgument for anything but a certificate.

        Files and records are compared only for certificates signed with the broker's own key: a forged certificate could
        probe whether a file begins with some bytes, or whether a topic has a key.

        `public_key`: the trusted key, 32 bytes; without it the signer is untrusted. `key`, `where`: the subject of the
        erasure or redaction.
        """
        meant = None
        if where is not None:
            from diamant.cleaner.redaction.where import WhereError, parse_where

            try:
                meant = parse_where(where)
            except WhereError as error:
                raise BadArgument(str(error)) from None
        return await on_loop(self._loop, self._verify(certificate, public_key, key, meant, progress or Progress()))

    async def public_key(self) -> str | None:
        """Return the public key as PEM; None if there is no key yet. NotPossible if it cannot be used."""
        key = await self._evidence.keys.existing()
        return None if key is None else key.public_pem

    # -- stored certificates ---------------------------------------------------------------------------------------------

    async def list_all(self) -> list[dict[str, Any]]:
        """Return a summary of the certificates in the data directory (`CertificateList`)."""
        try:
            key = await self._evidence.keys.existing()
        except NotPossible:
            key = None
        check = None if key is None else partial(problem_with, public_key=key.public_bytes)
        return await asyncio.to_thread(self._list.describe, self._evidence.env, self._evidence.directory, check)

    async def last(self, job_id: str) -> dict[str, Any]:
        """Return the last certificate of an erasure or redaction. Raises NotFound; NotGenuine if it was altered."""
        kept = await self.kept(job_id)
        if kept.problem:
            raise NotGenuine(
                f"the certificate is not what this broker has signed, so it proves nothing: {kept.path}: {kept.problem}. Restore "
                "the file from a copy; as_it_is=true hands it out as it is"
            )
        return kept.certificate

    async def kept(self, job_id: str) -> KeptCertificate:
        """Return the stored certificate and its problem, if any. Raises NotFound; NotPossible if it cannot be read."""
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
        progress: Progress,
    ) -> Verification:
        own = await self._evidence.keys.existing()
        secret = None if own is None else own.secret
        is_own = own is not None and _signer(certificate) == own.public_bytes.hex()
        progress.begin("scanning everything", unit="bytes")
        ends = self._evidence.ends()

        def work(check: Callable[[], object]) -> Verification:
            found = verify_certificate(
                certificate,
                public_key,
                self._evidence.env if is_own else None,
                self._evidence.directory if is_own else None,
                key=key,
                where=where,
                check_redaction=check_redaction_claims,
                secret=secret,
                ends=ends,
                advance=progress.move_to,
                check=check,
                staging=self._evidence.staging(ends),
                partitions=self._evidence.partitions_there,
            )
            if not is_own and found.signature != INVALID:
                _leave_open(certificate, found)
            return found

        try:
            return await in_thread(work)
        except (CertificateError, WrongKind) as error:
            raise BadArgument(str(error)) from None


def _signer(certificate: Mapping[str, Any]) -> object:
    """Return the public key in a certificate, in hexadecimal; any value if the certificate is malformed."""
    signature = certificate.get("signature")
    return signature.get("public_key") if isinstance(signature, Mapping) else None


def _leave_open(certificate: Mapping[str, Any], found: Verification) -> None:
    """Leave the claims of another signer's certificate unconfirmed. CertificateError if the claims are malformed."""
    try:
        found.claims = [untold(claim) for claim in certificate["claims"]]
    except (KeyError, TypeError) as error:
        raise CertificateError(f"the certificate's claims do not have the expected form: {error!r}") from None
    found.notes.append(
        "It is signed, but not with this broker's key, so the broker compares no files with it; `diamant verify --data` does."
    )
