"""Removes the matching records of a topic, and certifies that they are gone: `broker.redact(topic, where=..., reason=...)`.

    redaction = await broker.redact("orders", where='value.customer.email == "ada@example.com"', reason="GDPR Art. 17")
    redaction.state, redaction.removed, redaction.certificate

Redactions are for topics where a tombstone removes nothing, and for personal data in values and headers. A redaction's phases:

    locating    the condition is evaluated for every record of every partition, with cleaning paused; nothing is changed yet
    rewriting   segments with matching records are rewritten without them and swapped in, as after a round of the cleaner. An
                active segment is rolled first. From here on there is an intent, so the redaction resumes after any stop
    scanning    files that await deletion are deleted, everything is scanned, and the result is certified

A redaction covers the records that existed at the time of the request, in the topic that had the name at that time. Records at or
above the last stable offset stay, since they belong to an open transaction or follow one. If any of them match, the result is
`not-certified`, and the broker retries. A redaction ends without claims if the topic is deleted, or if every record matches
without the caller's consent, in the first run or in a later one before anything was removed.

Bounds: those in `jobs/job_queue.py`, `cleaner/redaction/locate.py` (for the offsets of all partitions together) and
`cleaner/redaction/where.py`. Error messages and log lines never contain the condition, a key or a value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker import certificate_texts
from diamant.broker.erasure.certification.erasure_requests import RedactRequest
from diamant.broker.erasure.certification.evidence import Evidence
from diamant.broker.erasure.certification.scope import Scope
from diamant.broker.erasure.jobs.attempts import JobLock
from diamant.broker.erasure.jobs.job_queue import JobQueue
from diamant.broker.erasure.jobs.job_table import JobTable
from diamant.broker.erasure.redact.redact_result import Redaction, RedactLimits
from diamant.broker.erasure.redact.redact_steps import RedactSteps
from diamant.broker.operation_errors import BadArgument
from diamant.cleaner.redaction.blanking import parse_blanking
from diamant.cleaner.redaction.claims import Redacted
from diamant.cleaner.redaction.intent import LOCATING, RedactionIntent, redaction_files
from diamant.cleaner.redaction.where import HOLD, KEEP, REMOVE, WhereError, parse_where
from diamant.progress import Progress

if TYPE_CHECKING:
    from diamant.broker.erasure.jobs.job_group import JobGroup
    from diamant.broker.node.cleaner import NodeCleaner
    from diamant.broker.node.node import Node


class Redactions:
    """All redactions of one broker. Created with the first redaction, or at a start that finds an unfinished one."""

    def __init__(
        self,
        node: Node,
        evidence: Evidence,
        cleaning: NodeCleaner,
        lock: JobLock,
        limits: RedactLimits | None = None,
    ) -> None:
        """`lock`: the lock that is shared with erasures, so that one job runs at a time. `limits`: None for the defaults."""
        self._evidence = evidence
        self.table: JobTable[RedactionIntent] = JobTable(
            "redaction", redaction_files(evidence.env, evidence.directory), node
        )
        self._steps = RedactSteps(evidence, self.table, cleaning, limits or RedactLimits())
        self.queue: JobQueue[RedactionIntent, Redacted, Redaction] = JobQueue(
            self._steps, self.table, evidence, node, lock
        )

    async def redact(
        self,
        request: RedactRequest,
        progress: Progress,
        job_id: str | None = None,
        group: JobGroup | None = None,
    ) -> Redaction:
        """Remove the matching records; see `Broker.redact`. `job_id`: None for a new id. `group`: see `JobQueue.begin`."""
        try:
            blanking = parse_blanking(request.blank, request.blank_with, request.set)
            where = parse_where(request.where, request.undecided, blanking=blanking)
        except WhereError as error:
            raise BadArgument(str(error)) from None
        if blanking is not None and request.undecided == REMOVE:
            raise BadArgument(
                f"undecided: expected {HOLD} or {KEEP}: blank and set change records, and {REMOVE} would remove them"
            )
        certificate_texts.check_reason(request.reason, request.reference)
        certificate_texts.check_unsaid("reason and reference", [request.reason, request.reference], where.said)
        self._evidence.user_topic(request.topic)
        self._evidence.values(request.topic, request.registry)

        def intent(job_id: str, scope: Scope) -> RedactionIntent:
            intent = RedactionIntent(
                id=job_id,
                phase=LOCATING,
                topic=request.topic,
                where=request.where,
                reason=request.reason,
                reference=request.reference,
                requested_ms=self._evidence.env.clock.now_ms(),
                is_all_agreed=request.yes_all,
                undecided=request.undecided,
                blank=request.blank,
                blank_with=request.blank_with,
                set=request.set,
                registry=request.registry,
                scope=scope,
            )
            return self._steps.with_ends(intent)

        return await self.queue.begin([request.topic], intent, request.timeout, progress, job_id=job_id, group=group)
