"""Carries out registered requests to forget people: a single one, or several whose jobs share scans."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from diamant.broker.erasure.certification.evidence import Evidence
from diamant.broker.erasure.certification.scope import Scope
from diamant.broker.erasure.jobs.job_group import MOST, JobGroup
from diamant.broker.erasure.jobs.job_queue import DEFAULT_TIMEOUT_S, JobQueue
from diamant.broker.operation_errors import OperationError, TimedOut
from diamant.broker.person.person_steps import Forgotten, ForgottenPeople, ForgottenPerson, PersonSteps
from diamant.broker.person.planning import Plan
from diamant.broker.person.register import PersonRequest
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.cleaner.papers.person_intent import OPEN, PersonIntent, PersonJob, TopicFate
from diamant.progress import Progress

if TYPE_CHECKING:
    from diamant.broker.person.person_requests import ForgetEachRequest, ForgetRequest

    ForgetRequests: TypeAlias = ForgetRequest | ForgetEachRequest


class Admitted(NamedTuple):
    """A registered request with its plan and its jobs."""

    entry: PersonRequest
    plan: Plan
    rows: tuple[TopicFate, ...]
    jobs: tuple[PersonJob, ...]


def _in_groups(people: Sequence[Admitted]) -> Iterator[list[Admitted]]:
    """Yield lists of requests whose jobs fit into one group. A request with too many jobs for a group is alone in its list."""
    some: list[Admitted] = []
    for one in people:
        if some and sum(len(other.jobs) for other in (*some, one)) > MOST:
            yield some
            some = []
        some.append(one)
    if some:
        yield some


class Forgetting:
    """Carries out the requests to one broker. Belongs to the loop thread."""

    def __init__(
        self,
        evidence: Evidence,
        steps: PersonSteps,
        queue: JobQueue[PersonIntent, Subject, Forgotten],
        settle: Callable[[str], Awaitable[None]],
    ) -> None:
        """`settle(request_id)` updates the state of a request in the register once it is no longer in progress."""
        self._evidence = evidence
        self._steps = steps
        self._queue = queue
        self._settle = settle

    async def begin_each(
        self, admitted: Sequence[Admitted], request: ForgetEachRequest, progress: Progress
    ) -> ForgottenPeople:
        """Carry out several requests, in groups. A failure of one does not end the others; the result has all outcomes."""
        found: list[ForgottenPerson] = []
        try:
            for some in _in_groups(admitted):
                found += await self._begin_together(some, request, progress)
        finally:
            for one in admitted:
                await self._settle(one.entry.id)
        return ForgottenPeople(found)

    async def _begin_together(
        self, some: Sequence[Admitted], request: ForgetEachRequest, progress: Progress
    ) -> list[ForgottenPerson]:
        """Carry out requests whose jobs share their scans."""
        timeout_s = request.timeout or DEFAULT_TIMEOUT_S * len(some)
        self._steps.jobs.hits.update((one.entry.id, one.plan.hits) for one in some)
        try:
            key = await self._evidence.keys.usable()
            jobs = {one.entry.id: one.jobs for one in some}
            async with asyncio.timeout(timeout_s) as waiting, self._steps.jobs.together(jobs, key, progress) as group:
                waiting.reschedule(None)  # From here on, each request has its own timeout.
                async with asyncio.TaskGroup() as tasks:
                    begun = [tasks.create_task(self._outcome(one, request, timeout_s, group)) for one in some]
                return [one.result() for one in begun]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        except TimeoutError:
            error = f"another erasure or redaction was in progress for {timeout_s:g} s, so this request was not begun"
            return [ForgottenPerson(one.entry.id, error=error, code=TimedOut.code) for one in some]
        finally:
            for one in some:
                self._steps.jobs.hits.pop(one.entry.id, None)

    async def _outcome(
        self, admitted: Admitted, request: ForgetEachRequest, timeout_s: float, group: JobGroup
    ) -> ForgottenPerson:
        """Carry out one of several requests. A failure becomes part of the outcome."""
        try:
            found = await self.begin(admitted, request, Progress(), timeout_s, group)
        except OperationError as error:
            return ForgottenPerson(admitted.entry.id, error=str(error), code=error.code)
        return ForgottenPerson(found.id, found.state, found.certificate_path, found.next_due_ms, found.groups_behind)

    async def begin(
        self,
        admitted: Admitted,
        request: ForgetRequests,
        progress: Progress,
        timeout_s: float | None,
        group: JobGroup | None = None,
    ) -> Forgotten:
        """Carry out a registered request. `group`: the group that its jobs join, if it is one of several requests."""
        entry, plan, rows, jobs = admitted

        def intent(job_id: str, scope: Scope) -> PersonIntent:
            return PersonIntent(
                id=job_id,
                phase=OPEN,
                identifiers=plan.identifiers,
                reason=request.reason,
                reference=entry.reference,
                requested_ms=self._evidence.env.clock.now_ms(),
                rows=rows,
                jobs=jobs,
                not_searched=plan.not_searched,
                is_now=request.now,
                is_confirmed=request.confirm_groups_behind,
                registry=request.registry,
                scope=scope,
            )

        topics = list(dict.fromkeys(one.topic for one in rows))
        self._steps.jobs.hits[entry.id] = plan.hits
        try:
            return await self._queue.begin(topics, intent, timeout_s, progress, job_id=entry.id, group=group)
        except BaseException:
            await self._settle(entry.id)
            raise
        finally:
            self._steps.jobs.hits.pop(entry.id, None)
            if group is not None:
                for job in jobs:
                    group.leave(job.id)
