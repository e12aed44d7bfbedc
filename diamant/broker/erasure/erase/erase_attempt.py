"""One attempt at an erasure: its phases (`erasures.py`), each saved before the next removes anything.

A phase (`erase_tombstones`, `erase_values`, `erase_key`) takes the intent and returns the updated one. The last returned intent
is on disk, so the next attempt continues from it after any stop: a phase may run twice, but none is skipped.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace

from diamant.broker.erasure.erase.erase_certificates import EraseCertificates, Verdict
from diamant.broker.erasure.erase.erase_key import EraseKey
from diamant.broker.erasure.erase.erase_result import Erasure
from diamant.broker.erasure.erase.erase_tombstones import EraseTombstones
from diamant.broker.erasure.erase.erase_values import EraseValues
from diamant.broker.erasure.erase.erasing import Erasing
from diamant.broker.erasure.erase.groups_behind import GroupsBehind
from diamant.broker.erasure.evidence.evidence import Evidence
from diamant.broker.erasure.evidence.scope import claims_of
from diamant.broker.erasure.jobs.ended import Ended
from diamant.broker.erasure.jobs.job_queue import JobQueue
from diamant.broker.erasure.jobs.job_table import MAX_FAILURE_DOUBLINGS, RETRY_MS
from diamant.broker.operations.calls.blocking import to_its_end
from diamant.broker.operations.calls.progress import Progress
from diamant.cleaner.erasure.intent import CLOSING, REMOVING, WAITING, WRITING, Intent, waiting_for
from diamant.cleaner.evidence.certificates.certificate import NOTHING_MATCHED
from diamant.cleaner.evidence.certificates.files import NOT_CERTIFIED
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.scan.report import KEY_GONE, VALUES_GONE
from diamant.cleaner.evidence.scan.scan import ScanReport
from diamant.cleaner.evidence.search.needles import Needles
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.storage.env.clock import SystemClock

logger = logging.getLogger(__name__)

TOPICS_DELETED = "topics-deleted"
"""`ended.what` in the certificate of an erasure whose topics were all deleted."""


@dataclass(frozen=True, slots=True)
class EraseTools:
    """The parts of a broker that carry out its erasures."""

    evidence: Evidence
    queue: JobQueue[Intent, Erasure]
    groups: GroupsBehind
    tombstones: EraseTombstones
    values: EraseValues
    key: EraseKey
    certificates: EraseCertificates


async def begin(tools: EraseTools, intent: Intent, key: SigningKey, progress: Progress) -> Erasure:
    """Carry out a new erasure once it has the lock. The caller waits."""
    if intent.is_now:
        await tools.groups.check_known(progress)
    async with tools.queue.attempts.locked(intent.id):
        # From here on the broker may stop at any point; the next start resumes this intent.
        progress.job_id = intent.id
        await tools.queue.table.save(intent, key)
        return await EraseAttempt(tools, intent, key, progress, is_patient=True, is_new=True).carry_out()


class EraseAttempt:
    """One attempt at an erasure. Belongs to the loop thread; `carry_out` needs the lock."""

    def __init__(
        self,
        tools: EraseTools,
        intent: Intent,
        key: SigningKey,
        progress: Progress | None = None,
        *,
        is_patient: bool = False,
        is_new: bool = False,
    ) -> None:
        """`intent`: the one on disk. The rest: see `Erasing`."""
        self._tools = tools
        self._evidence = tools.evidence
        is_manual = intent.is_manual_clock or not isinstance(tools.evidence.env.clock, SystemClock)
        # If the attempt fails, the retry pause decides, not the due time of this attempt.
        self._intent = replace(intent, is_manual_clock=is_manual, due_ms=None)
        self._claims = claims_of(intent, tools.evidence.topics)
        needles, topics = Needles(key.secret, intent.needles), self._claims.present.topics
        subject = (
            Subject(None, topics, needles, bytes.fromhex(intent.key_digest))
            if intent.phase == CLOSING
            else Subject(intent.key, topics, needles)
        )
        self._erasing = Erasing(key, subject, progress or Progress(), is_patient, is_new)

    async def carry_out(self) -> Erasure:
        """Continue in the intent's phase."""
        intent, claims, tools = self._intent, self._claims, self._tools
        for one in claims.present.ended:
            logger.warning("erasure %s: topic %s was deleted and is no longer covered", intent.id, one.topic)
        if not claims.present.topics:
            return await self._end()
        if intent.phase == REMOVING and any(one in self._evidence.logs for one in claims.unclaimed):
            # A partition that could not be opened before is open now.
            intent = replace(intent, phase=WRITING)
        if intent.phase == WRITING:
            intent = await tools.tombstones.write_and_remove(intent, claims, self._erasing)
        elif intent.phase == REMOVING:
            intent = await tools.values.remove(intent, self._erasing)
        if intent.phase == REMOVING:
            intent, erasure = await self._certify_values(intent)
            if not intent.is_now or erasure.state != VALUES_GONE:
                return erasure
        if intent.phase == WAITING:
            intent = await tools.key.remove(intent, self._erasing)
        return await self._certify_key(intent)

    async def _save(self, intent: Intent) -> Intent:
        await self._tools.queue.table.save(intent, self._erasing.key, intent.due_ms)
        return intent

    # -- certificates ----------------------------------------------------------------------------------------------------

    async def _certify_values(self, intent: Intent) -> tuple[Intent, Erasure]:
        verdict = await self._tools.certificates.judge(intent, self._erasing)
        if verdict.state == KEY_GONE:
            state = KEY_GONE if intent.found else NOTHING_MATCHED
            return intent, await self._tools.certificates.issue(intent, self._erasing, replace(verdict, state=state))
        if verdict.state != VALUES_GONE:
            return intent, await self._not_certified(intent, verdict)
        ends = verdict.claims.ends.items()
        horizons = [one.horizon_ms for claim in ends for one in verdict.report.tombstones(*claim)]
        known = [one for one in horizons if one is not None]
        now_ms = self._evidence.env.clock.now_ms()
        # A tombstone without a horizon gets one from the next round.
        due_ms = max([*known, *([now_ms + RETRY_MS] if None in horizons else [])], default=now_ms)
        erasure = await self._tools.certificates.issue(intent, self._erasing, verdict, due_ms)
        is_agreed = not erasure.groups_not_known and (intent.is_confirmed or not erasure.groups_behind)
        if intent.is_now and not is_agreed:
            intent, erasure = replace(intent, is_now=False), replace(erasure, is_now_refused=True)
        # The certificate comes first: after a stop in between, the broker issues it again.
        intent = replace(intent, phase=WAITING, due_ms=now_ms if intent.is_now else due_ms)
        return await self._save(intent), erasure

    async def _not_certified(self, intent: Intent, verdict: Verdict) -> Erasure:
        """Certify the reasons for refusal and schedule a retry. Each attempt scans everything, so the pauses grow."""
        # After repairing a partition that took no tombstone, an operator waits for the retry: bound the pause.
        most = MAX_FAILURE_DOUBLINGS if intent.refused else intent.retries
        due_ms = self._tools.queue.table.retry_ms(min(intent.retries, most))
        intent = replace(intent, due_ms=due_ms, retries=intent.retries + 1)
        if self._erasing.subject.key is not None:
            # These values may lack a tombstone: a filter hid them, or their tombstone was removed.
            missed = tuple(
                place for place, end in verdict.claims.ends.items() if verdict.report.has_telling(place, end)
            )
            intent = replace(intent, missed=missed, phase=WRITING if missed else intent.phase)
        erasure = await self._tools.certificates.issue(
            intent, self._erasing, replace(verdict, state=NOT_CERTIFIED), due_ms
        )
        await self._save(intent)
        return erasure

    async def _certify_key(self, intent: Intent) -> Erasure:
        verdict = await self._tools.certificates.judge(intent, self._erasing)
        if verdict.state == KEY_GONE:
            erasure = await self._tools.certificates.issue(intent, self._erasing, verdict)
            if intent.is_now:
                await self._wake_others(intent)
            return erasure
        if self._erasing.subject.key is not None:
            # A value came back or cannot be read. Removing it needs the key, so the intent holds the key again.
            intent = replace(intent, phase=REMOVING)
        return await self._not_certified(intent, verdict)

    async def _wake_others(self, intent: Intent) -> None:
        """Resume other erasures of the key: their intents still hold it, waiting for tombstones that are now removed."""
        table, digest = self._tools.queue.table, self._erasing.subject.key_digest
        for one in await asyncio.to_thread(waiting_for, table.files, [*table.due], self._erasing.key, intent, digest):
            if one in table.due:
                table.schedule(one, self._evidence.env.clock.now_ms())

    # -- ends without completion -----------------------------------------------------------------------------------------

    async def _end(self) -> Erasure:
        """End an erasure whose topics are all gone. The scan reports where else the key was seen."""
        await to_its_end(asyncio.to_thread(self._evidence.remove_doomed, self._intent.topics, []))
        verdict = await self._tools.certificates.judge(self._intent, self._erasing)
        ended = Ended(TOPICS_DELETED, self._evidence.env.clock.now_ms())
        return await self._tools.certificates.issue(self._intent, self._erasing, verdict, ended=ended)

    async def give_up(self, ended: Ended) -> Erasure:
        """End the erasure without changing anything else. `ended` is recorded in its certificate."""
        certificates = self._tools.certificates
        verdict = certificates.judged(self._intent, self._erasing.subject, ScanReport())
        return await certificates.issue(self._intent, self._erasing, verdict, ended=ended)
