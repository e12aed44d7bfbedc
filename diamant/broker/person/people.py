"""The operations of `broker.person`, which concern a person's data and the requests about it.

    await broker.person.preview({"customer_id": "42"}, map)
    forgotten = await broker.person.forget({"customer_id": "42"}, map, reason="GDPR Art. 17")
    forgotten.state, forgotten.certificate, forgotten.next_due_ms

A request is in the register (`register.py`) before anything is changed, and its intent is on disk before its first job begins.
One job runs at a time. A second request to forget a person is refused with an error that names the one in progress.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import nan
from typing import TYPE_CHECKING, Any, TypeAlias

from diamant.broker import certificate_texts
from diamant.broker.erasure.certification.certificates import Certificates
from diamant.broker.erasure.certification.erasure_requests import CancelRequest
from diamant.broker.erasure.certification.evidence import Evidence
from diamant.broker.erasure.jobs.job_queue import JobQueue
from diamant.broker.erasure.jobs.job_table import JobTable
from diamant.broker.erasure.jobs.pending_jobs import cancel
from diamant.broker.operation_errors import BadArgument, NotFound, NotPossible
from diamant.broker.person.following import given_identifiers, of_person
from diamant.broker.person.forgetting import Admitted, Forgetting
from diamant.broker.person.person_steps import Forgotten, ForgottenPeople, PersonSteps
from diamant.broker.person.planning import Plan, Planning, Plans, values_of
from diamant.broker.person.register import (
    CLOSED,
    DONE,
    IN_PROGRESS,
    OPEN,
    RECEIVED,
    Extension,
    PersonRequest,
    RequestRegister,
    digests,
)
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.cleaner.papers.person_intent import PersonIntent, person_files
from diamant.cleaner.person.keeping import Keep
from diamant.duration import parse_time_ms
from diamant.progress import Progress
from diamant.storage.certificate_states import LAST_STATES
from diamant.words import moment

if TYPE_CHECKING:
    from diamant.broker.erasure.erase.erasures import Erasures
    from diamant.broker.erasure.redact.redactions import Redactions
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.node import Node
    from diamant.broker.operations.records.explain_operation import ExplainOperation
    from diamant.broker.person.person_requests import (
        CloseRequest,
        ExtendRequest,
        ForgetEachRequest,
        ForgetRequest,
        PreviewEachRequest,
        PreviewRequest,
        ReceiveRequest,
        RequestsRequest,
    )

    ForgetRequests: TypeAlias = ForgetRequest | ForgetEachRequest
    PlanRequests: TypeAlias = ForgetRequests | PreviewRequest | PreviewEachRequest

logger = logging.getLogger(__name__)

DAY_MS = 24 * 3_600_000
MAX_EXTENSION_MONTHS = 2
"""By how much a request can be extended in total, according to Art. 12 (3) of the GDPR."""
MAX_RUN = 4
"""A reason is searched for identifiers of at most this many words."""
_AROUND_WORDS = ".,:;!?()[]<>'\"“”„"


class People:
    """All persons' requests to one broker. Belongs to the loop thread."""

    def __init__(
        self,
        node: Node,
        evidence: Evidence,
        kept: Certificates,
        erasures: Erasures,
        redactions: Redactions,
        explaining: ExplainOperation,
        groups: Lazy[GroupCoordinator],
    ) -> None:
        """`kept`: the stored certificates. `erasures` and `redactions` run the jobs of a request."""
        self._evidence = evidence
        self._kept = kept
        self._clock = node.env.clock
        self._planning = Planning(node, explaining, groups)
        self.register = RequestRegister(node)
        self.table: JobTable[PersonIntent] = JobTable("person", person_files(evidence.env, evidence.directory), node)
        self._steps = PersonSteps(evidence, kept, self.table, self.register, erasures, redactions)
        self.queue: JobQueue[PersonIntent, Subject, Forgotten] = JobQueue(self._steps, self.table, evidence, node)
        self._forgetting = Forgetting(evidence, self._steps, self.queue, self._settle)
        self._admission = asyncio.Lock()

    async def start(self) -> None:
        """Schedule unfinished requests, read the register, and update entries that are outdated because the broker stopped."""
        await self.queue.start()  # First: if a stop interrupted the renaming of a paper, this completes it.
        try:
            await self.register.load()
            for request in [one for one in self.register.known() if one.state == IN_PROGRESS]:
                await self._settle(request.id)
        except NotPossible as error:
            logger.error("the register of requests cannot be read: %s", error)

    def days_left(self) -> float:
        """Return the days until the first open request is due; NaN if none is open."""
        due_ms = self.register.next_due_ms
        return nan if due_ms is None else (due_ms - self._clock.now_ms()) / DAY_MS

    # -- forgetting ------------------------------------------------------------------------------------------------------

    async def preview(self, request: PreviewRequest, progress: Progress) -> Plan:
        """Return what forgetting a person would do; see `Broker.person.preview`."""
        return (await self._plans([request.identifiers], request, progress))[0]

    async def preview_each(self, request: PreviewEachRequest, progress: Progress) -> Plans:
        """Return what forgetting several people would do; see `Broker.person.preview_each`."""
        return Plans(await self._plans(request.subjects, request, progress))

    async def forget(self, request: ForgetRequest, progress: Progress) -> Forgotten:
        """Forget a person; see `Broker.person.forget`."""
        [admitted] = await self._admitted([request.identifiers], request, progress)
        return await self._forgetting.begin(admitted, request, progress, request.timeout)

    async def forget_each(self, request: ForgetEachRequest, progress: Progress) -> ForgottenPeople:
        """Forget several people; see `Broker.person.forget_each`."""
        return await self._forgetting.begin_each(
            await self._admitted(request.subjects, request, progress), request, progress
        )

    async def _plans(
        self, subjects: Sequence[Mapping[str, Any]], request: PlanRequests, progress: Progress
    ) -> list[Plan]:
        return await self._planning.plans(
            subjects, request.map, progress, is_confirmed=request.confirm, registry=request.registry
        )

    async def _admitted(
        self, subjects: Sequence[Mapping[str, Any]], request: ForgetRequests, progress: Progress
    ) -> list[Admitted]:
        """Plan and register a request for each person. If one is refused, none is registered."""
        certificate_texts.check_reason(request.reason, request.reference)
        received_ms = self._received_ms(request.received)
        plans = await self._plans(subjects, request, progress)
        for number, plan in enumerate(plans, 1):
            if not plan.topics:
                raise BadArgument(
                    f"{of_person(number, len(plans))}no topic of the map can be searched for any of these identifiers, so "
                    "there is nothing to do"
                )
        work = [(plan, *plan.jobs()) for plan in plans]
        entries = await self._admit(request, plans, received_ms)
        return [Admitted(entry, *one) for entry, one in zip(entries, work, strict=True)]

    async def _admit(self, request: ForgetRequests, plans: Sequence[Plan], received_ms: int) -> list[PersonRequest]:
        """Register an open or new request of each person as in progress. Raises NotPossible if one of them already is."""
        secret = (await self._evidence.keys.usable()).secret
        entries: list[PersonRequest] = []
        async with self._admission:
            await self.register.load()
            for number, plan in enumerate(plans, 1):
                known = digests(secret, plan.identifiers)
                found = self.register.open_of(known, {one.id for one in entries})
                person = of_person(number, len(plans))
                if found is not None and found.state == IN_PROGRESS:
                    raise NotPossible(
                        f"{person}request {found.id} of the same person is in progress, so nothing was begun: `diamant person "
                        "requests` shows its progress, `diamant person close` cancels it"
                    )
                changes = {
                    "state": IN_PROGRESS,
                    "identifiers": known,
                    "reason": request.reason,
                    "topics": tuple(plan.entries()),
                }
                entry = found or self._entry("forget", received_ms, request.reference, known)
                reference = request.reference or entry.reference
                entries.append(replace(entry, **changes, reference=reference))  # type: ignore[arg-type]
                for other in plans:  # All papers contain the same reason.
                    certificate_texts.check_unsaid(
                        f"{person}reason and reference", [request.reason, reference], [*values_of(other.identifiers)]
                    )
            return [await self.register.put(one) for one in entries]

    async def _settle(self, request_id: str) -> None:
        """Update the state of a request in the register from the files that it has: its intent, its last paper, or none."""
        if request_id in await self.table.ids_on_disk():
            return
        try:
            paper: Mapping[str, Any] | None = await self._kept.last(request_id)
        except (NotFound, NotPossible):
            paper = None
        if paper is None:
            await self.register.change(request_id, state=RECEIVED)
        elif paper["ended"] is not None or paper["state"] in LAST_STATES:
            ended = paper["ended"] or {}
            await self.register.change(
                request_id,
                state=CLOSED if ended else DONE,
                certificate=paper["state"],
                closed_ms=paper["clock"]["issued_ms"],
                closed_because=ended.get("reason") or ended.get("what") or "",
            )

    # -- the register ----------------------------------------------------------------------------------------------------

    async def requests(self, request: RequestsRequest, _progress: Progress) -> Mapping[str, Any]:
        """Return the requests in the register; see `Broker.person.requests`."""
        await self.register.load()
        found = [one for one in self.register.known() if one.is_open or not request.open]
        found.sort(key=lambda one: (not one.is_open, one.due_ms if one.is_open else -(one.closed_ms or 0)))
        now_ms = self._clock.now_ms()
        return {
            "now_ms": now_ms,
            "requests": [
                {
                    **one.to_fields(),
                    "is_overdue": one.is_open and one.due_ms < now_ms,
                    "next_due_ms": self.table.due.get(one.id),
                }
                for one in found
            ],
        }

    async def receive(self, request: ReceiveRequest, _progress: Progress) -> PersonRequest:
        """Register a request; see `Broker.person.receive`."""
        identifiers = given_identifiers(request.identifiers)
        if request.reference:
            certificate_texts.check_reason("-", request.reference)
            certificate_texts.check_unsaid("the reference", [request.reference], [*values_of(identifiers)])
        received_ms = self._received_ms(request.received)
        secret = (await self._evidence.keys.usable()).secret
        known = digests(secret, identifiers)
        return await self.register.put(self._entry(request.kind, received_ms, request.reference, known))

    async def extend(self, request: ExtendRequest, _progress: Progress) -> PersonRequest:
        """Extend the due date of a request; see `Broker.person.extend`."""
        certificate_texts.check_reason(request.reason)
        found = await self._open(request.id)
        await self._check_unnamed(found, request.reason)
        due_ms = Keep(f"P{request.months}M", "").until_ms(found.due_ms)
        if due_ms > Keep(f"P{1 + MAX_EXTENSION_MONTHS}M", "").until_ms(found.received_ms):
            raise NotPossible(
                f"a request can be extended by at most {MAX_EXTENSION_MONTHS} months in total (GDPR Art. 12); this exceeds that"
            )
        extension = Extension(request.reason, self._clock.now_ms(), found.due_ms)
        return await self.register.change(found.id, due_ms=due_ms, extensions=(*found.extensions, extension))

    async def close(self, request: CloseRequest, progress: Progress) -> PersonRequest:
        """Close a request; see `Broker.person.close`."""
        certificate_texts.check_reason(request.reason)
        found = await self._open(request.id)
        await self._check_unnamed(found, request.reason)
        if found.state == IN_PROGRESS:
            await self._check_unfinished(found.id)
            await cancel(lambda: [self.queue], CancelRequest(found.id, reason=request.reason), progress)
            return self.register.get(found.id)
        return await self.register.change(
            found.id, state=CLOSED, closed_ms=self._clock.now_ms(), closed_because=request.reason
        )

    async def _check_unnamed(self, entry: PersonRequest, reason: str) -> None:
        """Refuse a reason that contains an identifier of the request, as a word or as consecutive words. Raises BadArgument."""
        secret = (await self._evidence.keys.usable()).secret
        words = [word.strip(_AROUND_WORDS) for word in reason.split()]
        runs = {" ".join(words[at : at + most]) for at in range(len(words)) for most in range(1, MAX_RUN + 1)}
        names = dict.fromkeys((name for name, _ in entry.identifiers), (*runs,))
        if {*digests(secret, names)} & {*entry.identifiers}:
            raise BadArgument("the reason must not contain an identifier of the request: the register keeps it")

    async def _check_unfinished(self, request_id: str) -> None:
        """Refuse to cancel a request if all its parts are complete. Raises NotPossible."""
        try:
            intent = await asyncio.to_thread(self.table.files.read, request_id, await self._evidence.keys.usable())
        except (OSError, ValueError):
            return  # `cancel` will raise this error.
        if await self._steps.is_complete(intent):
            raise NotPossible(
                f"each part of request {request_id} is complete, but closing it would end it as not certified. Its last paper "
                f"will be issued automatically, from {moment(self.table.due.get(request_id, self._clock.now_ms()))} on"
            )

    async def _open(self, request_id: str) -> PersonRequest:
        await self.register.load()
        found = self.register.get(request_id)
        if found.state not in OPEN:
            raise NotPossible(f"request {request_id} is already {found.state}")
        return found

    def _entry(
        self, kind: str, received_ms: int, reference: str, identifiers: Sequence[tuple[str, str]]
    ) -> PersonRequest:
        due_ms = Keep("P1M", "").until_ms(received_ms)
        return PersonRequest(RequestRegister.new_id(), kind, received_ms, due_ms, reference, tuple(identifiers))

    def _received_ms(self, text: str) -> int:
        now_ms: int = self._clock.now_ms()
        if not text:
            return now_ms
        try:
            found = parse_time_ms(text)
        except ValueError as error:
            raise BadArgument(f"received: {error}") from None
        if not 0 <= found <= now_ms:
            raise BadArgument("received: expected a time that is not in the future")
        return found
