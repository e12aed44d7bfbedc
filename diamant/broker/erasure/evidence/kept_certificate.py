"""The last certificate of an erasure or a redaction, as it lies in the data directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from diamant.broker.client.errors import NotPossible
from diamant.cleaner.evidence.certificates.certificate import MAX_BYTES, CertificateError, parse_certificate
from diamant.cleaner.evidence.certificates.files import LAST_STATES, NOT_CERTIFIED, list_certificates
from diamant.cleaner.evidence.certificates.own_certificates import problem_with
from diamant.storage.env.env import Env


@dataclass(frozen=True, slots=True)
class KeptCertificate:
    """A certificate from a file."""

    certificate: dict[str, Any]
    job_id: str
    state: str
    """In the name of its file."""
    path: str
    problem: str = ""
    """Why it is not what the broker has signed; "" if it is, or was not checked."""

    def checked(self, public_key: bytes) -> KeptCertificate:
        """Return it with what is wrong with it, checked with the broker's own key. Any thread."""
        return replace(self, problem=problem_with(self.certificate, self.job_id, self.state, public_key))


def last_certificate(env: Env, directory: str, job_id: str) -> KeptCertificate | None:
    """Return the last word on an erasure or a redaction; None if there is none. Blocks; NotPossible if it may be a damaged file.

    That one was ended is the last word, whatever was certified before, and so is that nothing is left: the intent went with it.
    Else it is the certificate that was issued last, as what was certified may have come back. Of those that a clock that stands
    still has issued it is the file that was written last. One that cannot be read counts if it was written after all others.
    """
    found, problems = [], []
    for one in list_certificates(env, directory):
        if one["id"] == job_id:
            path = one["path"]
            try:
                if env.file_size(path) > MAX_BYTES:
                    raise CertificateError(f"it has more than {MAX_BYTES} bytes")
                certificate = parse_certificate(env.read_bytes(path))
            except CertificateError as error:
                problems.append((env.mtime_ms(path), f"{path}: {error}"))
                continue
            is_ended = bool(certificate.get("ended")) or certificate["state"] in LAST_STATES
            is_refused = certificate["state"] == NOT_CERTIFIED
            order = is_ended, _issued_ms(certificate), env.mtime_ms(path), is_refused
            found.append((order, KeptCertificate(certificate, job_id, one["state"], path)))
    written_ms, problem = max(problems, default=(-1, ""))
    if problem and all(written_ms >= order[2] for order, _ in found):
        raise NotPossible(f"its last certificate cannot be read: {problem}. Bring the file back, or move it away")
    return max(found, key=lambda one: one[0])[1] if found else None


def _issued_ms(certificate: Mapping[str, Any]) -> int:
    """The time of issue in a certificate; 0 if it has none."""
    clock = certificate.get("clock")
    issued_ms = clock.get("issued_ms") if isinstance(clock, Mapping) else None
    return issued_ms if isinstance(issued_ms, int) else 0
