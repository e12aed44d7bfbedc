"""The last certificate of an erasure or redaction, as stored in the data directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from diamant.broker.errors import NotPossible
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
    """The state in the file name."""
    path: str
    problem: str = ""
    """The difference from what the broker signed; "" if there is none, or if it was not checked."""

    def checked(self, public_key: bytes) -> KeptCertificate:
        """Return a copy with `problem` set by a check against the broker's own key. Any thread."""
        return replace(self, problem=problem_with(self.certificate, self.job_id, self.state, public_key))


def last_certificate(env: Env, directory: str, job_id: str) -> KeptCertificate | None:
    """Return the last certificate of an erasure or redaction; None if there is none. Blocks. NotPossible if it may be damaged.

    A certificate that removed the intent comes last: one with `ended`, or with a final state. Otherwise the latest issue time
    decides, as certified data may come back. With a stopped clock, the file's modification time decides. An unreadable file
    counts as the last one if it was written after all others.
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
    """The time of issue in a certificate; 0 if it has none."""
    clock = certificate.get("clock")
    issued_ms = clock.get("issued_ms") if isinstance(clock, Mapping) else None
    return issued_ms if isinstance(issued_ms, int) else 0
