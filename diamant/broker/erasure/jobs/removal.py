"""Removals: jobs of two kinds, which either erase a key or redact records. Their subject is the key or the records.

The queue (`job_queue.py`) runs removals of both kinds alike, and certificates of both kinds are issued in the same way
(`removal_certificates.py`). Each kind defines its subject and its steps (`RemovalKind`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from diamant.broker.erasure.certification.record_holders import MAX_HOLDERS, RecordHolder
from diamant.broker.operation_errors import OperationError
from diamant.cleaner.evidence.certificates.intent_parts import RemovalIntent
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.json_types import JsonObject

if TYPE_CHECKING:
    from diamant.broker.erasure.certification.scope import Present
    from diamant.broker.erasure.jobs.job_group import JobGroup
    from diamant.cleaner.evidence.certificates.signing_key import SigningKey
    from diamant.progress import Progress

IntentT = TypeVar("IntentT", bound=RemovalIntent)
IntentT_contra = TypeVar("IntentT_contra", bound=RemovalIntent, contravariant=True)
SubjectT = TypeVar("SubjectT", bound=Subject)
ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended without being completed, as recorded in its certificate."""

    what: str
    at_ms: int
    """The time on the broker's clock."""
    reason: str = ""
    """The reason that the user gave, or an explanation; "" if none is needed."""

    def to_fields(self) -> dict[str, object]:
        """Return the fields of its JSON object."""
        return {"what": self.what, "reason": self.reason, "at_ms": self.at_ms}


@dataclass(frozen=True, slots=True)
class Removal(Generic[SubjectT]):
    """The parts of an attempt that stay the same in all its steps."""

    key: SigningKey
    subject: SubjectT
    """The key or the records to remove. The values to search for are added once they have been located."""
    progress: Progress
    is_patient: bool = False
    """True if a caller waits for the result."""
    is_new: bool = False
    """True for the first attempt, when the values are not known yet."""
    group: JobGroup | None = None
    """The group of jobs with which this job shares its scans; None if it scans alone."""
    holders: list[RecordHolder] = field(default_factory=list)
    """Members of share groups that held the records when they were located, at most `MAX_HOLDERS`."""

    def add_holders(self, holders: Sequence[RecordHolder]) -> None:
        """Add members of share groups that hold records of the subject."""
        self.holders.extend(holders[: MAX_HOLDERS - len(self.holders)])


class RemovalKind(Protocol[IntentT_contra, SubjectT, ResultT_co]):
    """A kind of removal: what its subject is, and the steps that remove it."""

    @property
    def failure(self) -> type[OperationError]:
        """The error to raise if an attempt fails and its job is retried later."""
        ...

    @property
    def shares_scans(self) -> bool:
        """True if one scan can certify several jobs of this kind; False if jobs of this kind do not scan themselves."""
        ...

    def due_ms(self, intent: IntentT_contra) -> int | None:
        """Return when to resume a job that an earlier run has left; None: now."""
        ...

    def subject(self, intent: IntentT_contra, key: SigningKey, topics: frozenset[str]) -> SubjectT:
        """Return the subject, with the needles of the values found so far. `topics`: the topics that still exist."""
        ...

    def sought(self, intent: IntentT_contra) -> Sequence[bytes]:
        """Return the key, or the strings in the condition, that the request names."""
        ...

    def deleted(self, present: Present) -> str:
        """Return `Ended.what` for a removal whose topics were all deleted."""
        ...

    async def carry_out(self, intent: IntentT_contra, removal: Removal[SubjectT]) -> ResultT_co:
        """Continue in the intent's phase, and return the result. Each phase must be saved before the next removes anything."""
        ...

    async def end(
        self, intent: IntentT_contra, removal: Removal[SubjectT], ended: Ended, *, is_scanned: bool = False
    ) -> ResultT_co:
        """Issue a certificate about the job's end, without changing records. `is_scanned`: scan first, to say what is left."""
        ...


@dataclass(frozen=True, slots=True)
class RemovalResult:
    """The result of a call that begins or continues a removal."""

    id: str
    state: str
    """The state that the certificate claims."""
    certificate: JsonObject
    certificate_path: str
    public_key: str
    """The public key as PEM, which the verifier should pin."""
    next_due_ms: int | None
    """The time of the next attempt, or of the certificate for `key-gone`; None if nothing follows."""
    held_by: list[RecordHolder] = field(default_factory=list, kw_only=True)
    """Members of share groups that held the records when this attempt located them."""

    def own_fields(self) -> Mapping[str, Any]:
        """Return the fields that are specific to this kind of result."""
        return {"next_due_ms": self.next_due_ms}

    def to_fields(self) -> JsonObject:
        return {
            "id": self.id,
            "state": self.state,
            **self.own_fields(),
            "held_by": [asdict(one) for one in self.held_by],
            "certificate": self.certificate,
            "certificate_path": self.certificate_path,
            "public_key": self.public_key,
        }
