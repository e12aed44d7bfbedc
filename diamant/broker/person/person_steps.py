"""The steps of a person's request: first its erasures and redactions, which share scans (`job_group.py`), then its paper.

Each of them is a separate job with its own queue, intent and certificate, and its ID is in the request's intent. So wherever the
broker stops, the next attempt can tell whether a job has ended, is unfinished or has not begun, and continues from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from diamant.broker.erasure.certification.certificates import Certificates
from diamant.broker.erasure.certification.erasure_requests import CancelRequest, EraseRequest, RedactRequest
from diamant.broker.erasure.certification.evidence import Evidence
from diamant.broker.erasure.certification.scope import Present, present_of
from diamant.broker.erasure.certification.signing_keys import reason_of
from diamant.broker.erasure.erase.erase_steps import TOPICS_DELETED
from diamant.broker.erasure.jobs.job_group import MOST, JobGroup
from diamant.broker.erasure.jobs.job_queue import DEFAULT_TIMEOUT_S
from diamant.broker.erasure.jobs.job_table import JobTable
from diamant.broker.erasure.jobs.pending_jobs import CANCELLED, cancel
from diamant.broker.erasure.jobs.removal import Ended, Removal, RemovalResult
from diamant.broker.operation_errors import BrokerStopping, NotFound, OperationError
from diamant.broker.person.joint_jobs import JointJobs
from diamant.broker.person.planning import values_of
from diamant.broker.person.register import CLOSED, DONE, IN_PROGRESS, PersonRequest, RequestRegister
from diamant.cleaner.evidence.certificates.certificate import HMAC, PERSON_TYPE, VERSION
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.search.needles import Needles
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.cleaner.papers.paper import NOT_COVERED, shortfalls, state_of
from diamant.cleaner.papers.person_intent import PersonIntent, PersonJob, TopicFate
from diamant.cleaner.person.people_map import ERASE_KEY, NULL
from diamant.progress import Progress
from diamant.storage.certificate_states import LAST_STATES, NOT_CERTIFIED
from diamant.storage.errors import StorageError

if TYPE_CHECKING:
    from diamant.broker.erasure.erase.erase_result import Erasure
    from diamant.broker.erasure.erase.erasures import Erasures
    from diamant.broker.erasure.redact.redact_result import Redaction
    from diamant.broker.erasure.redact.redactions import Redactions

PARTS_ENDED = "parts-ended"
"""`ended.what` in the paper of a request whose jobs have all ended, some of them without certifying everything."""


class ForgetFailed(OperationError):
    """The request could not continue. Its intent remains, and the broker retries."""


@dataclass(frozen=True, slots=True)
class Forgotten(RemovalResult):
    """The result of a call to `broker.person.forget`. Its state is that of the paper (`cleaner/papers/paper.py`)."""

    groups_behind: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """With `now`: for each partition whose tombstones stay, the groups that have not read them."""

    def own_fields(self) -> Mapping[str, Any]:
        return {"next_due_ms": self.next_due_ms, "groups_behind": self.groups_behind}


@dataclass(frozen=True, slots=True)
class ForgottenPerson:
    """The outcome for one of several people. `Broker.certificate` returns the paper; all papers together would be too large."""

    id: str
    state: str = ""
    certificate_path: str = ""
    next_due_ms: int | None = None
    groups_behind: Mapping[str, Sequence[str]] = field(default_factory=dict)
    error: str = ""
    code: str = ""
    """The code of `error`, which concerns only this person."""


@dataclass(frozen=True, slots=True)
class ForgottenPeople:
    """The result of a call to `broker.person.forget_each`, in the order of the request."""

    people: Sequence[ForgottenPerson]

    def to_fields(self) -> Mapping[str, Any]:
        return {"people": [asdict(one) for one in self.people]}


@dataclass(slots=True)
class _Found:
    """What an attempt has found out about the jobs of a request."""

    parts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """The last certificate of each job that has one."""
    problems: dict[str, str] = field(default_factory=dict)
    """For jobs that have no certificate, or not the one that is needed: the reason."""
    due_ms: list[int] = field(default_factory=list)
    """When the unfinished jobs are due."""
    groups_behind: dict[str, list[str]] = field(default_factory=dict)


class PersonSteps:
    """A person, and the steps that forget this person: jobs of the other kinds (`RemovalKind`)."""

    failure = ForgetFailed
    shares_scans = False

    def __init__(
        self,
        evidence: Evidence,
        kept: Certificates,
        table: JobTable[PersonIntent],
        register: RequestRegister,
        erasures: Erasures,
        redactions: Redactions,
    ) -> None:
        self._evidence = evidence
        self._kept = kept
        self._table = table
        self._register = register
        self._erasures = erasures
        self._redactions = redactions
        self.jobs = JointJobs(evidence, erasures, redactions)

    def due_ms(self, intent: PersonIntent) -> int | None:
        return intent.due_ms

    def subject(self, intent: PersonIntent, key: SigningKey, topics: frozenset[str]) -> Subject:
        del intent
        return Subject(None, topics, Needles(key.secret))

    def sought(self, intent: PersonIntent) -> Sequence[bytes]:
        return [*values_of(intent.identifiers)]

    def deleted(self, _present: Present) -> str:
        return TOPICS_DELETED

    async def carry_out(self, intent: PersonIntent, removal: Removal[Subject]) -> Forgotten:
        """Begin or continue each job, and then issue a paper."""
        if removal.is_new:
            removal.progress.job_id = intent.id
            await self._table.save(intent, removal.key)
        found = _Found()
        step = MOST if removal.group is None else len(intent.jobs) or 1
        for jobs in [intent.jobs[first : first + step] for first in range(0, len(intent.jobs), step)]:
            async with self._group(intent, jobs, removal) as group:
                await self._attempt_all(intent, jobs, removal, group, found)
        return await self._conclude(intent, removal.key, found)

    async def end(
        self, intent: PersonIntent, removal: Removal[Subject], ended: Ended, *, is_scanned: bool = False
    ) -> Forgotten:
        """End the request with a paper. If it was cancelled, cancel its unfinished jobs."""
        del is_scanned
        found = _Found()
        for job in intent.jobs:
            queue = self.jobs.queue(job)
            if ended.what == CANCELLED and job.id in await queue.table.ids_on_disk():
                try:
                    await cancel(lambda queue=queue: [queue], CancelRequest(job.id, reason=ended.reason), Progress())  # type: ignore[misc]
                except NotFound:
                    pass  # The job has just ended.
            await self._take_part(job, found)
        return await self._issue(intent, removal.key, found, NOT_CERTIFIED, ended, None)

    async def is_complete(self, intent: PersonIntent) -> bool:
        """Return whether the existing certificates of the jobs suffice for a final state, so that only the paper is missing."""
        found = _Found()
        for job in intent.jobs:
            await self._take_part(job, found)
        return state_of(self._rows(intent, found), [*found.parts.values()]) in LAST_STATES

    # -- jobs ------------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _group(
        self, intent: PersonIntent, jobs: Sequence[PersonJob], removal: Removal[Subject]
    ) -> AsyncIterator[JobGroup]:
        """Yield the group that these jobs join: the one that several people share, or a new one."""
        if removal.group is not None:
            yield removal.group
            return
        async with self.jobs.together({intent.id: jobs}, removal.key, removal.progress) as group:
            yield group

    async def _attempt_all(
        self,
        intent: PersonIntent,
        jobs: Sequence[PersonJob],
        removal: Removal[Subject],
        group: JobGroup,
        found: _Found,
    ) -> None:
        """Make an attempt at each of these jobs, and add the outcomes to `found`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for job in jobs:
                    tasks.create_task(self._attempt(intent, job, removal.subject.topics, group, found))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _attempt(
        self, intent: PersonIntent, job: PersonJob, topics: frozenset[str], group: JobGroup, found: _Found
    ) -> None:
        try:
            await self._bring_forward(intent, job, topics, group, found)
        finally:
            group.leave(job.id)

    async def _bring_forward(
        self, intent: PersonIntent, job: PersonJob, topics: frozenset[str], group: JobGroup, found: _Found
    ) -> None:
        """Begin or continue a job, and add its outcome to `found`."""
        queue = self.jobs.queue(job)
        try:
            if job.id in await queue.table.ids_on_disk():
                await queue.catch_up(job.id, group)
            elif not await self._take_part(job, found):
                await self._begin(intent, job, topics, group, found)
        except BrokerStopping:
            raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Only the attempt at the job was cancelled, not this attempt at the request.
            if queue.is_stopping:
                raise BrokerStopping("the broker is stopping; the request continues when it starts again") from None
            found.problems[job.id] = "it was cancelled"
        except (OperationError, StorageError, OSError, ValueError) as error:
            found.problems[job.id] = reason_of(error)
        await self._take_part(job, found)
        if job.id in queue.table.due:
            found.due_ms.append(queue.table.due[job.id])
            found.problems.setdefault(job.id, "it is not finished")

    async def _begin(
        self, intent: PersonIntent, job: PersonJob, topics: frozenset[str], group: JobGroup, found: _Found
    ) -> None:
        there = tuple(one for one in job.topics if one in topics)
        if not there:
            return  # All topics of the job were deleted. The paper says so.
        said = {"reason": intent.reason, "reference": intent.reference}
        timeout_s = DEFAULT_TIMEOUT_S * len(intent.jobs)
        result: Erasure | Redaction
        if job.do == ERASE_KEY:
            erase = EraseRequest(
                bytes.fromhex(job.key),
                there,
                **said,  # type: ignore[arg-type]
                now=intent.is_now,
                confirm_groups_behind=intent.is_confirmed,
                timeout=timeout_s,
            )
            result = await self._erasures.erase(erase, Progress(), job.id, group)
            if result.is_now_refused:
                found.groups_behind |= result.groups_behind
        else:
            redact = RedactRequest(
                there[0],
                job.where,
                **said,  # type: ignore[arg-type]
                blank=job.fields,
                blank_with=job.replacement or NULL,
                yes_all=True,
                registry=intent.registry,
                timeout=timeout_s,
            )
            result = await self._redactions.redact(redact, Progress(), job.id, group)

    async def _take_part(self, job: PersonJob, found: _Found) -> bool:
        """Add the last certificate of a job to `found`. Returns whether the job has one."""
        try:
            found.parts[job.id] = await self._kept.last(job.id)
        except NotFound:
            return False
        return True

    # -- the paper -------------------------------------------------------------------------------------------------------

    async def _conclude(self, intent: PersonIntent, key: SigningKey, found: _Found) -> Forgotten:
        """Issue a paper. If it is not the last one, schedule the next attempt for the time when a job is due."""
        state = state_of(self._rows(intent, found), [*found.parts.values()])
        if state in LAST_STATES:
            return await self._issue(intent, key, found, state, None, None)
        now_ms = self._evidence.env.clock.now_ms()
        is_ended = all(one.id in found.parts for one in intent.jobs) and not found.due_ms
        if is_ended:
            ended = Ended(PARTS_ENDED, now_ms, "each erasure and redaction has ended, but not all are certified")
            return await self._issue(intent, key, found, state, ended, None)
        due_ms = max(min(found.due_ms, default=0), now_ms) if found.due_ms else self._table.retry_ms(intent.retries)
        forgotten = await self._issue(intent, key, found, state, None, max(found.due_ms, default=due_ms))
        await self._table.save(replace(intent, due_ms=due_ms, retries=intent.retries + 1), key, due_ms)
        return forgotten

    def _rows(self, intent: PersonIntent, found: _Found) -> list[Mapping[str, Any]]:
        ended = {one.topic for one in present_of(self._evidence.topics, intent).ended}
        return [self._row(row, found) for row in intent.rows if row.topic not in ended]

    def _row(self, row: TopicFate, found: _Found) -> Mapping[str, Any]:
        problems = [
            found.problems[one] for one in row.jobs if one in found.problems and not self._is_marked(one, found)
        ]
        parts = [one for one in row.jobs if one in found.parts]
        fields = {
            "topic": row.topic,
            "do": row.do,
            "records": row.records,
            "identity": {name: list(places) for name, places in row.identity.items()},
            "fields": list(row.fields),
            "keep": None if row.keep is None else asdict(row.keep),
            "parts": parts,
        }
        return {**fields, "problem": "; ".join(dict.fromkeys([*problems, *shortfalls(fields, found.parts)]))}

    def _is_marked(self, job_id: str, found: _Found) -> bool:
        """Return whether a job is an erasure that is complete except for the removal of its tombstones."""
        return found.parts.get(job_id, {}).get("state") == "values-gone"

    async def _issue(
        self,
        intent: PersonIntent,
        key: SigningKey,
        found: _Found,
        state: str,
        ended: Ended | None,
        due_ms: int | None,
    ) -> Forgotten:
        """Sign and store a paper, and note it in the register. Remove the intent if the state is final or `ended` is given."""
        request = self._register.get(intent.id)
        gone = present_of(self._evidence.topics, intent).ended
        rows = self._rows(intent, found)
        named = {part for row in rows for part in row["parts"]}
        fields = {
            "type": PERSON_TYPE,
            "version": VERSION,
            "id": intent.id,
            "state": state,
            **self._evidence.issuer_fields(intent.requested_ms, is_manual_clock=intent.is_manual_clock),
            "request": {
                "reason": intent.reason,
                "reference": intent.reference,
                "received_ms": request.received_ms,
                "due_ms": request.due_ms,
                "identifiers": request.to_fields()["identifiers"],
                "hmac": HMAC,
                "topics": [row.topic for row in intent.rows],
            },
            "topics": rows,
            "parts": [found.parts[job.id] for job in intent.jobs if job.id in named],
            "not_searched": [{"topic": topic, "identifiers": [*names]} for topic, names in intent.not_searched.items()],
            "topics_ended": [asdict(one) for one in gone],
            "ended": None if ended is None else ended.to_fields(),
            "next": None if due_ms is None else {"due_ms": due_ms},
            "not_covered": [*NOT_COVERED],
        }
        is_last = state in LAST_STATES or ended is not None
        signed, path = await self._table.issue(fields, key, is_last=is_last)
        self._table.count_certificate(state, has_ended=ended is not None)
        await self._note(request, state, ended)
        return Forgotten(intent.id, state, signed, path, key.public_pem, due_ms, found.groups_behind)

    async def _note(self, request: PersonRequest, state: str, ended: Ended | None) -> None:
        now_ms = self._evidence.env.clock.now_ms()
        changes: dict[str, object] = {"certificate": state, "state": IN_PROGRESS}
        if ended is not None:
            changes |= {"state": CLOSED, "closed_ms": now_ms, "closed_because": ended.reason or ended.what}
        elif state in LAST_STATES:
            changes |= {"state": DONE, "closed_ms": now_ms}
        await self._register.change(request.id, **changes)
