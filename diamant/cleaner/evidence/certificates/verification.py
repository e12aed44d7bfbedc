"""Verifies a certificate: its signature, its consistency, and its claims against the data directory as it is now.

    signature   trusted, untrusted signer (no pinned key), signed with another key, invalid
    coverage    whether, according to the certificate, the scan read everything that existed and supports the claims
    segments    whether each segment that the erasure left is unchanged, grown, changed or gone; and whether the roots match
    claims      for each partition, if the key or the secret is given: holds, broken (a value is below the claim's end again, as
                after restoring a backup) or cannot be told; and the number of records written since (`claim_checks`)
    outcome     the result in one word

Records of the key can only be recognised with the key or the secret. Without either, only files and topic ids are compared. With
the key alone, it is unknown whether the certificate is about that key. In both cases, no claim is confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeVar

from diamant.cleaner.evidence.certificates import claim_checks
from diamant.cleaner.evidence.certificates.broker_files import set_names_aside
from diamant.cleaner.evidence.certificates.certificate import (
    CLUSTER_TYPE,
    DISK_TYPE,
    INVALID,
    REDACTION_TYPE,
    TRUSTED,
    UNTRUSTED,
    check_form,
    check_kind,
    check_signature,
    expected_form,
    file_digest,
    is_anything_found,
    merkle_root,
)
from diamant.cleaner.evidence.certificates.cluster_claims import KEY_UNREADABLE, UNREADABLE, contradictions, remarks
from diamant.cleaner.evidence.certificates.own_certificates import set_own_aside
from diamant.cleaner.evidence.scan.coverage import coverage_problems
from diamant.cleaner.evidence.scan.file_reader import Advance
from diamant.cleaner.evidence.scan.files_to_read import Partitions
from diamant.cleaner.evidence.scan.report import INCONCLUSIVE, NOT_THERE, VALUES_PRESENT, ScanReport
from diamant.cleaner.evidence.scan.scan import scan_directory
from diamant.cleaner.evidence.search.findings import TOMBSTONE, Finding
from diamant.cleaner.evidence.search.needles import KEY, MIN_BYTES, Needles, is_telling, keyed_digest
from diamant.cleaner.evidence.search.offset_order import LogEnd
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.json_types import JsonObject
from diamant.storage import certificate_states as states
from diamant.storage.checkpoints.checkpoints import TopicPartition
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError

if TYPE_CHECKING:
    from diamant.cleaner.evidence.scan.staging_files import StagingPlace

MAX_PROBLEMS = 20
"""Maximum number of reported problems with a certificate's account of its scan."""
MAX_FILES = 10
"""Maximum number of files that a note names."""

VALUES_OUTSIDE = (
    "Values outside of records, as in files beside the logs, are not looked for: a certificate does not contain them."
)
KEY_OUTSIDE = f"Neither is the key: it was not given, or has fewer than {MIN_BYTES} bytes."
IN_CERTIFICATES = (
    "Other certificates of the same signer hold bytes of what was looked for, for example in their reason or reference."
)

IN_NAMES = (
    "Names of topics, or ids of the cluster and its directory, hold bytes of what was looked for, in the broker's own files "
    "beside the logs."
)

UNCHANGED, GROWN, CHANGED, GONE = "unchanged", "grown", "changed", "gone"

VALID = "valid"
NOT_VALID = "not-valid"
"""The signature is not that of the pinned key, or the certificate contradicts itself."""
UNTRUSTED_SIGNER = "untrusted"
"""No key is pinned."""
NO_LONGER_SO = "broken"
"""Something that the certificate says is gone is there again."""
NOTHING_CERTIFIED = "not-certified"
"""The certificate itself says that nothing, or not everything, is certified."""
NOT_CONFIRMED = "not-confirmed"
"""At least one claim could not be decided."""

Steps: TypeAlias = "Generator[Subject, ScanReport, None]"
"""If a scan of everything is needed, yields the subject to scan for, and receives the report."""

_CLAIMING = (
    states.VALUES_GONE, states.KEY_GONE, states.RECORDS_GONE, states.FIELDS_BLANKED, states.NOTHING_MATCHED, UNREADABLE,
    KEY_UNREADABLE, states.FORGOTTEN, states.FORGOTTEN_BUT_KEPT,
)  # fmt: skip
"""States of certificates that make a claim about every partition."""


WhereT = TypeVar("WhereT")
RedactionCheck: TypeAlias = Callable[[Mapping[str, Any], "Verification", Env, str, WhereT | None, bytes | None], Steps]
"""Checks the claims of a redaction's certificate, and records the results: `redaction.claims.check_redaction_claims`."""


class SegmentStatus(TypedDict):
    """A segment in a certificate, and whether its file is still as recorded."""

    file: str
    status: str


@dataclass(slots=True)
class Verification:
    """The result of a verification."""

    signature: str
    signer: str
    """The public key in the certificate, in hexadecimal."""
    state: str
    """The state that the certificate claims."""
    is_evidence: bool
    segments: list[SegmentStatus] = field(default_factory=list)
    roots_fit: bool = True
    coverage_adds_up: bool = True
    """True if the certificate's account of the scan is complete and supports its claims (`coverage`)."""
    claims: list[JsonObject] = field(default_factory=list)
    was_scanned: bool = False
    parts: list[Mapping[str, Any]] = field(default_factory=list)
    """For a person's certificate, `id`, `topics`, `outcome` and `summary` of each part."""
    notes: list[str] = field(default_factory=list)
    """Human-readable sentences about changes since then, and about checks that were not possible."""

    @property
    def is_valid(self) -> bool:
        """True if the pinned key signed the certificate, and no check contradicts it."""
        return self.outcome == VALID

    @property
    def outcome(self) -> str:
        """The most serious problem. If there is none: `VALID`, or `NOTHING_MATCHED` if the certificate proves no removal."""
        verdicts = {claim["verdict"] for claim in self.claims}
        if self.signature not in (TRUSTED, UNTRUSTED) or not (self.roots_fit and self.coverage_adds_up):
            return NOT_VALID
        if self.signature == UNTRUSTED:
            return UNTRUSTED_SIGNER
        if claim_checks.BROKEN in verdicts:
            return NO_LONGER_SO
        if self.state not in _CLAIMING:
            return NOTHING_CERTIFIED
        if not verdicts <= {claim_checks.HOLDS}:
            return NOT_CONFIRMED
        return states.NOTHING_MATCHED if self.state == states.NOTHING_MATCHED else VALID

    @property
    def summary(self) -> str:
        """The outcome in words."""
        verdicts, signature = [claim["verdict"] for claim in self.claims], self.signature
        match self.outcome:
            case "valid":
                weak = f"; it says {self.state}, which is not a statement about disks"
                return f"valid: {signature}{weak if self.state in (UNREADABLE, KEY_UNREADABLE) else ''}"
            case "nothing-matched":
                return f"NOTHING WAS FOUND: the signature is {signature}; nothing was removed, because nothing matched"
            case "broken":
                which = _which(verdicts, claim_checks.BROKEN)
                return f"BROKEN: removed records are there again; {which} no longer {'hold' if which[-1] == 's' else 'holds'}"
            case "not-certified":
                return f"NOTHING TO CONFIRM: the signature is {signature}, and the certificate itself says {self.state}"
            case "not-confirmed":
                which = _which(verdicts, claim_checks.CANNOT_TELL)
                return f"NOT CONFIRMED: the signature is {signature}; {which} could not be checked"
        if signature == TRUSTED:
            return "NOT VALID: the certificate contradicts itself"
        return f"NOT VALID: {signature}"

    def to_fields(self) -> JsonObject:
        return {
            "is_valid": self.is_valid,
            "summary": self.summary,
            "outcome": self.outcome,
            "signature": self.signature,
            "signer": self.signer,
            "state": self.state,
            "is_evidence": self.is_evidence,
            "roots_fit": self.roots_fit,
            "coverage_adds_up": self.coverage_adds_up,
            "segments": self.segments,
            "claims": self.claims,
            "was_scanned": self.was_scanned,
            **({"parts": self.parts} if self.parts else {}),
            "notes": self.notes,
        }


def _which(verdicts: Sequence[str], verdict: str) -> str:
    """Return a phrase for the claims that have a verdict: `its claim`, `both of its claims`, `1 of its 3 claims`."""
    count, total = verdicts.count(verdict), len(verdicts)
    if count < total:
        return f"{count} of its {total} claims"
    return "its claim" if total == 1 else "both of its claims" if total == 2 else f"all its {total} claims"


@dataclass(frozen=True, slots=True)
class CheckedFiles:
    """The data directory that is compared with a certificate, and how to scan it."""

    env: Env
    directory: str
    ends: Mapping[TopicPartition, LogEnd] | None = None
    """Log ends of the running broker; None if no broker is running. Then the scan writes nothing into the directory."""
    advance: Advance | None = None
    check: Callable[[], object] = bool
    staging: StagingPlace | None = None
    """The staging location of Spark jobs."""
    partitions: Partitions | None = None
    """The running broker's partitions; None if no broker is running."""

    def scan(self, subjects: list[Subject]) -> list[ScanReport]:
        """Scan everything for the given subjects. Does blocking I/O.

        Raises OSError, and StorageError if no directory for temporary files can be created.
        """
        scan = partial(scan_directory, self.env, self.directory, subjects, advance=self.advance, check=self.check)
        if self.ends is not None:
            return scan(self.ends, staging=self.staging, partitions=self.partitions)
        try:
            temporary = TemporaryDirectory(prefix="diamant-verify-")
        except OSError as error:
            reason = error.strerror or error
            raise StorageError(f"verifying needs a directory for temporary files (TMPDIR): {reason}") from None
        with temporary as prove_in:
            return scan({}, staging=self.staging, prove_in=prove_in)


def verified(
    some: Sequence[Generator[Subject, ScanReport, Verification]], place: CheckedFiles | None
) -> list[Verification]:
    """Finish several verifications with one scan for all that need a scan, and return their results.

    `place` may be None only if no verification needs a scan. Does blocking I/O.
    """
    found: dict[int, Verification] = {}
    waiting: dict[int, Subject] = {}
    for index, steps in enumerate(some):
        try:
            waiting[index] = next(steps)
        except StopIteration as end:
            found[index] = end.value
    for index, report in zip(waiting, place.scan([*waiting.values()]) if place and waiting else (), strict=True):
        try:
            some[index].send(report)
        except StopIteration as end:
            found[index] = end.value
    return [found[index] for index in range(len(some))]


def verification_steps(
    certificate: Mapping[str, Any],
    pinned: bytes | None,
    place: CheckedFiles | None,
    *,
    key: bytes | None = None,
    where: WhereT | None = None,
    check_redaction: RedactionCheck[WhereT],
    read_replicas: Callable[[Verification], object] | None = None,
    secret: bytes | None = None,
) -> Generator[Subject, ScanReport, Verification]:
    """Verify the certificate of one erasure or redaction, but leave the scan to the caller (`verified`). Does blocking I/O.

    `pinned`: the trusted public key. `key` or `where`: the subject of the erasure or redaction. `check_redaction`
    (`redaction.claims.check_redaction_claims`): checks the claims of a redaction. `read_replicas`: checks the claims of an
    erasure on another Kafka cluster; if it is None, only that certificate's own statements are checked. Raises CertificateError
    if this is not a certificate, and WrongKind if `key` or `where` does not fit its kind.
    """
    check_form(certificate)
    check_kind(certificate, key=key if read_replicas is None else None, where=where)
    signature = check_signature(certificate, pinned)
    found = Verification(
        signature=signature,
        signer=str(certificate["signature"]["public_key"]),
        state=str(certificate["state"]),
        is_evidence=certificate.get("is_evidence") is True,
    )
    found.notes += notes_of_signature(found)
    if signature == INVALID:
        return found
    if certificate["type"] in (CLUSTER_TYPE, DISK_TYPE):
        _check_cluster(certificate, found, place is not None, read_replicas)
        return found
    with expected_form():
        _note_what_it_proves(certificate, found)
        _check_roots(certificate, found)
        _check_coverage(certificate, found)
        if place is not None:
            env, directory = place.env, place.directory
            _check_segments(certificate, found, env, directory)
            if certificate["type"] == REDACTION_TYPE:
                yield from check_redaction(certificate, found, env, directory, where, secret)
            else:
                yield from _check_claims(certificate, found, env, directory, key, secret)
            if found.was_scanned:
                is_key_looked_for = where is not None or (key is not None and is_telling(key))
                found.notes.append(VALUES_OUTSIDE if is_key_looked_for else f"{VALUES_OUTSIDE} {KEY_OUTSIDE}")
            if place.staging is None and (staged := (certificate.get("coverage") or {}).get("staging")):
                found.notes.append(f"The staging location {staged['place']} was not searched.")
            if not found.was_scanned:
                unscanned = claim_checks.unscanned_claims(certificate, found.notes, env, directory)
                found.claims = found.claims or unscanned
        else:
            found.notes.append(
                "Only the signature and the certificate's own statements were checked: no file was read."
            )
    return found


def files_of(findings: Iterable[Finding]) -> str:
    """Return the names of at most `MAX_FILES` files with these findings, and how many further files there are."""
    files = sorted({one.file for one in findings})
    more = f" and {len(files) - MAX_FILES} more" if len(files) > MAX_FILES else ""
    return ", ".join(files[:MAX_FILES]) + more


def notes_of_signature(found: Verification) -> Iterable[str]:
    """Yield what a reader must know about the signature and the clock, in sentences."""
    if found.signature == INVALID:
        yield "Nothing else was checked: the contents of a changed certificate prove nothing."
        return
    if found.signature == UNTRUSTED:
        yield "No public key was given to compare with: anyone can have signed this. Pin the broker's public key."
    if not found.is_evidence:
        yield "A manual clock was in use: the times in the certificate, and so the certificate itself, are not evidence."


def _check_cluster(
    certificate: Mapping[str, Any],
    found: Verification,
    has_files: bool,
    read_replicas: Callable[[Verification], object] | None,
) -> None:
    """Check a certificate about a Kafka cluster against its own rows, and with `read_replicas` against the replicas."""
    with expected_form():
        problems = contradictions(certificate)
        found.notes += problems[:MAX_PROBLEMS]
        found.notes += remarks(certificate)[:MAX_PROBLEMS]
        claims = [claim_checks.untold(claim) for claim in certificate["claims"]]
    found.coverage_adds_up = not problems
    if read_replicas is not None:
        read_replicas(found)
    else:
        found.notes.append(
            "Only the signature and the certificate's own statements were checked: nothing was read again."
        )
    if has_files:
        found.claims = claims
        found.notes.append(
            "It is about a Kafka cluster: `diamant certify DIRECTORY --erasure CERTIFICATE` searches its files."
        )


def _note_what_it_proves(certificate: Mapping[str, Any], found: Verification) -> None:
    if unmatched := certificate.get("unmatched"):
        found.notes.append(
            f"No record matched when it was issued, and nothing was removed, but {unmatched['records']} records of the topic "
            "held the text in another place: the field or path may have been wrong."
        )
    if found.state in (states.KEY_GONE, states.RECORDS_GONE, states.NOTHING_MATCHED) and not is_anything_found(
        certificate
    ):
        found.notes.append("Nothing was found when it was issued, and nothing was removed, so it proves no removal.")
    if unlisted := certificate.get("written_since_not_listed"):
        found.notes.append(
            f"When it was issued, {len(certificate['written_since']) + unlisted} records had been written above the offsets "
            f"that the claims cover; {unlisted} of them are not listed in it."
        )


def _check_roots(certificate: Mapping[str, Any], found: Verification) -> None:
    segments = certificate["segments"]
    for which in ("before", "after"):
        if merkle_root(segments[which]) != segments[f"{which}_root"]:
            found.roots_fit = False
            found.notes.append(f"The root over the segments {which} the job does not match the segments listed.")


def _check_coverage(certificate: Mapping[str, Any], found: Verification) -> None:
    problems = coverage_problems(certificate)
    if found.state in _CLAIMING and not certificate["claims"]:
        problems.append("It says that something is gone, but has no claim for any partition.")
    found.coverage_adds_up = not problems
    found.notes += problems[:MAX_PROBLEMS]
    if len(problems) > MAX_PROBLEMS:
        found.notes.append(f"{len(problems) - MAX_PROBLEMS} more statements about the scan do not add up.")


def _check_segments(certificate: Mapping[str, Any], found: Verification, env: Env, directory: str) -> None:
    changed = 0
    for segment in certificate["segments"]["after"]:
        name = str(segment["file"])
        status = _segment_status(env, directory, name, int(segment["size"]), str(segment["sha256"]))
        changed += status in (CHANGED, GONE)
        found.segments.append({"file": name, "status": status})
    if changed:
        found.notes.append(
            f"Segments that differ from the recorded ones: {changed} of {len(found.segments)}. They were cleaned again or "
            "removed since, as cleaner and retention normally do; or these are other files, such as those of a backup."
        )


def _segment_status(env: Env, directory: str, name: str, size: int, sha256: str) -> str:
    if name.startswith("/") or ".." in name.split("/"):
        return GONE
    path = f"{directory}/{name}"
    try:
        count, digest = file_digest(env, path, size)
        if (count, digest) != (size, sha256):
            return CHANGED
        return UNCHANGED if env.file_size(path) == size else GROWN
    except OSError:
        return GONE


def take_report(
    certificate: Mapping[str, Any],
    found: Verification,
    report: ScanReport,
    subject: Subject,
    env: Env,
    directory: str,
) -> None:
    """Record that a scan was made, detach findings from partitions that do not exist, and set aside those that do not count.

    Does blocking I/O.
    """
    claim_checks.disown(certificate, report, subject, env, directory)
    found.was_scanned = True
    if set_own_aside(report, env, directory, bytes.fromhex(found.signer)):
        found.notes.append(IN_CERTIFICATES)
    if set_names_aside(report, env, directory, subject.needles):
        found.notes.append(IN_NAMES)


def _check_claims(
    certificate: Mapping[str, Any],
    found: Verification,
    env: Env,
    directory: str,
    key: bytes | None,
    secret: bytes | None,
) -> Steps:
    key_digest = bytes.fromhex(certificate["request"]["key_hmac"])
    if secret is not None and key is not None and keyed_digest(secret, key) != key_digest:
        found.notes.append("The key given is not that of the certificate, or the secret is another one.")
        found.claims = [claim_checks.untold(claim) for claim in certificate["claims"]]
        return
    if secret is None and key is None:
        found.notes.append("Neither the key nor the secret was given, so no record was read and no claim is confirmed.")
        return
    needles = Needles(b"\0" * 32 if secret is None else secret)
    if key is not None:
        needles.add(KEY, key)
    subject = Subject(key, frozenset(certificate["request"]["topics"]), needles)
    if key is None:
        subject.key_digest = key_digest
    report = yield subject
    take_report(certificate, found, report, subject, env, directory)
    astray = report.astray

    def judge(claim: Mapping[str, Any], partition: TopicPartition, end: int) -> tuple[str, str, int]:
        state = report.state(partition, end, subject.key_digest.hex())
        since = len(report.written_since(partition, end)) + report.unlisted_since(partition, end)
        if state == VALUES_PRESENT or (claim["state"] == states.KEY_GONE and state == states.VALUES_GONE):
            return claim_checks.BROKEN, state, since
        if state == INCONCLUSIVE or (claim["state"] == states.KEY_GONE and astray):
            return claim_checks.CANNOT_TELL, state, since
        return claim_checks.HOLDS, state, since

    found.claims = claim_checks.check_claims(
        certificate, report, judge, found.notes, env, directory, is_bound=secret is not None
    )
    if astray:
        found.notes.append(f"Files outside all partitions that contain the key: {files_of(astray)}.")
    broken = sum(claim["verdict"] == claim_checks.BROKEN for claim in found.claims)
    if broken:
        found.notes.append(f"Claims that no longer hold: {broken}. There is a value of the key again.")
    written = sum(claim["written_since"] for claim in found.claims)
    if written:
        found.notes.append(f"Writes of the key since, above the offsets that the claims cover: {written}.")
    marks = 0
    for claim in found.claims:
        if claim.get("state_now") not in (NOT_THERE, claim_checks.RECREATED):
            one = claim_checks.partition_of(claim), int(claim["below_offset"])
            marks += len(report.tombstones_since(*one)) + report.unlisted_since(*one, (TOMBSTONE,))
    if marks:
        found.notes.append(f"Tombstones of the key since, above the offsets that the claims cover: {marks}.")
