"""The jobs of people's requests, in groups: erasures and redactions that run one after the other and share scans."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from diamant.broker.erasure.certification.evidence import Evidence, ScanRequest
from diamant.broker.erasure.jobs.job_group import JobGroup
from diamant.broker.erasure.jobs.pending_jobs import AnyQueue
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.papers.person_intent import PersonJob
from diamant.cleaner.person.people_map import ERASE_KEY
from diamant.progress import Progress

if TYPE_CHECKING:
    from diamant.broker.erasure.erase.erasures import Erasures
    from diamant.broker.erasure.redact.redactions import Redactions
    from diamant.cleaner.evidence.scan.report import ScanReport
    from diamant.cleaner.redaction.hits import HitsByPartition

LOOK_AGAIN_S = 0.01


class JointJobs:
    """Forms groups of jobs in one broker. Belongs to the loop thread."""

    def __init__(self, evidence: Evidence, erasures: Erasures, redactions: Redactions) -> None:
        self._evidence = evidence
        self._erasures = erasures
        self._redactions = redactions
        self.hits: dict[str, HitsByPartition] = {}
        """For each request ID, what its search has found. Used by the first attempt."""

    def queue(self, job: PersonJob) -> AnyQueue:
        """Return the queue that runs a job: that of erasures or that of redactions."""
        return self._erasures.queue if job.do == ERASE_KEY else self._redactions.queue

    @asynccontextmanager
    async def together(
        self, people: Mapping[str, Sequence[PersonJob]], key: SigningKey, progress: Progress
    ) -> AsyncIterator[JobGroup]:
        """Hold the lock of all jobs during the block, and yield a group for the jobs in `people` (by request ID)."""

        async def scan(asked: Sequence[ScanRequest], progress: Progress) -> list[ScanReport]:
            return await self._evidence.scan(asked, key, progress)

        jobs = [job for some in people.values() for job in some]
        names = {job.id: f"{job.do} in {', '.join(job.topics)}" for job in jobs}
        hits = {job.id: self.hits.get(request_id, {}) for request_id, some in people.items() for job in some}
        group = JobGroup(scan, names, progress, hits)
        async with self._alone(next(iter(people)), jobs):
            try:
                yield group
            finally:
                await group.end()

    @asynccontextmanager
    async def _alone(self, request_id: str, jobs: Sequence[PersonJob]) -> AsyncIterator[None]:
        """Hold the lock of erasures and redactions during the block. Lets waiting attempts at these jobs go first."""
        lock = self._erasures.queue.attempts.lock
        while True:
            for job in jobs:
                if self.queue(job).is_attempting(job.id):
                    async with self.queue(job).attempts.locked(job.id):
                        pass
            async with lock:
                if not any(self.queue(job).is_attempting(job.id) for job in jobs):
                    lock.holder = f"person {request_id}"
                    try:
                        yield
                    finally:
                        lock.holder = ""
                    return
            await asyncio.sleep(LOOK_AGAIN_S)  # Let the attempt that is waiting for the lock go first.
