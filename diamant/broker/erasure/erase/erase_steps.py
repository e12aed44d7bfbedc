"""The steps of an erasure: its phases (`erasures.py`). The result of each is saved before the next one removes anything.

A phase (`erase_tombstones`, `erase_values`, `erase_key`) takes the intent and returns the updated intent, which is saved to disk.
After a stop, the next attempt continues from the saved intent. So a phase may run twice, but none is skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from diamant.broker.erasure.certification.evidence import Evidence
from diamant.broker.erasure.certification.scope import Present, claims_of
from diamant.broker.erasure.erase.erase_certificates import EraseCertificates, EraseVerdict
from diamant.broker.erasure.erase.erase_key import EraseKey
from diamant.broker.erasure.erase.erase_result import EraseFailed, Erasure
from diamant.broker.erasure.erase.erase_tombstones import EraseTombstones
from diamant.broker.erasure.erase.erase_values import EraseValues
from diamant.broker.erasure.erase.groups_behind import GroupsBehind
from diamant.broker.erasure.jobs.job_table import MAX_FAILURE_DOUBLINGS, RETRY_MS, JobTable
from diamant.broker.erasure.jobs.removal import Ended, Removal
from diamant.cleaner.erasure_state.intent import CLOSING, REMOVING, WAITING, WRITING, Intent
from diamant.cleaner.erasure_state.pending_erasures import PendingKeys
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.scan.report import ScanReport
from diamant.cleaner.evidence.search.needles import Needles
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.storage.certificate_states import KEY_GONE, NOT_CERTIFIED, NOTHING_MATCHED, VALUES_GONE

if TYPE_CHECKING:
    from diamant.broker.node.cleaner import NodeCleaner
    from diamant.broker.node.node import Node
    from diamant.broker.operations.compactions.compactions import Compactions

TOPICS_DELETED = "topics-deleted"
"""`ended.what` in the certificate of an erasure whose topics were all deleted."""


class EraseSteps:
    """A key, and the steps that remove it (`RemovalKind`)."""

    failure = EraseFailed
    shares_scans = True

    def __init__(
        self,
        node: Node,
        evidence: Evidence,
        table: JobTable[Intent],
        cleaning: NodeCleaner,
        compactions: Compactions,
        groups: GroupsBehind,
        keys: PendingKeys,
    ) -> None:
        self._evidence = evidence
        self._table = table
        self._keys = keys
        self._values = EraseValues(evidence, cleaning, compactions, table.waits_for)
        self._tombstones = EraseTombstones(node, evidence, table, cleaning, self._values)
        self._key = EraseKey(evidence, cleaning, groups, table, self._values)
        self._certificates = EraseCertificates(evidence, groups, table)

    def due_ms(self, intent: Intent) -> int | None:
        # After the restart, a partition that refused a tombstone may accept one.
        return None if intent.refused else intent.due_ms

    def subject(self, intent: Intent, key: SigningKey, topics: frozenset[str]) -> Subject:
        needles = Needles(key.secret, intent.needles)
        if intent.phase == CLOSING:
            return Subject(None, topics, needles, bytes.fromhex(intent.key_digest))
        return Subject(intent.key, topics, needles)

    def sought(self, intent: Intent) -> Sequence[bytes]:
        return [intent.key]

    def deleted(self, _present: Present) -> str:
        return TOPICS_DELETED

    async def carry_out(self, intent: Intent, removal: Removal[Subject]) -> Erasure:
        """Continue the erasure in the intent's phase."""
        if removal.is_new:
            # From here on, the broker may stop at any point: the next start resumes from this intent.
            removal.progress.job_id = intent.id
            await self._table.save(intent, removal.key)
        # This attempt's due time has passed. If the attempt fails, the next one follows after the retry pause.
        intent, claims = replace(intent, due_ms=None), claims_of(intent, self._evidence.topics)
        if intent.phase == REMOVING and any(one in self._evidence.logs for one in claims.unclaimed):
            # A partition that could not be opened before is open now.
            intent = replace(intent, phase=WRITING)
        if intent.phase == WRITING:
            intent = await self._tombstones.write_and_remove(intent, claims, removal)
        elif intent.phase == REMOVING:
            intent = await self._values.remove(intent, removal)
        if intent.phase == REMOVING:
            intent, erasure = await self._certify_values(intent, removal)
            if not intent.is_now or erasure.state != VALUES_GONE:
                return erasure
        if intent.phase == WAITING:
            intent = await self._key.remove(intent, removal)
        return await self._certify_key(intent, removal)

    async def end(
        self, intent: Intent, removal: Removal[Subject], ended: Ended, *, is_scanned: bool = False
    ) -> Erasure:
        certificates = self._certificates
        verdict = (
            await certificates.judge(intent, removal)
            if is_scanned
            else certificates.judged(intent, removal.subject, ScanReport())
        )
        return await certificates.issue(intent, removal, verdict, ended=ended)

    # -- certificates ----------------------------------------------------------------------------------------------------

    async def _certify_values(self, intent: Intent, removal: Removal[Subject]) -> tuple[Intent, Erasure]:
        verdict = await self._certificates.judge(intent, removal)
        if verdict.state == KEY_GONE:
            state = KEY_GONE if intent.found else NOTHING_MATCHED
            return intent, await self._certificates.issue(intent, removal, replace(verdict, state=state))
        if verdict.state != VALUES_GONE:
            return intent, await self._not_certified(intent, removal, verdict)
        ends = verdict.claims.ends.items()
        horizons = [one.horizon_ms for claim in ends for one in verdict.report.tombstones(*claim)]
        known = [one for one in horizons if one is not None]
        now_ms = self._evidence.env.clock.now_ms()
        # A tombstone without a horizon gets one in the next round.
        due_ms = max([*known, *([now_ms + RETRY_MS] if None in horizons else [])], default=now_ms)
        erasure = await self._certificates.issue(intent, removal, verdict, due_ms)
        is_agreed = not erasure.groups_not_known and (intent.is_confirmed or not erasure.groups_behind)
        if intent.is_now and not is_agreed:
            intent, erasure = replace(intent, is_now=False), replace(erasure, is_now_refused=True)
        # Issue the certificate first: if the broker stops before the intent is saved, it issues the certificate again.
        intent = replace(intent, phase=WAITING, due_ms=now_ms if intent.is_now else due_ms)
        await self._table.save(intent, removal.key, intent.due_ms)
        return intent, erasure

    async def _not_certified(self, intent: Intent, removal: Removal[Subject], verdict: EraseVerdict) -> Erasure:
        """Issue a certificate with the reasons, and schedule a retry. The pauses grow, since each attempt scans everything."""
        # Bound the pause if a partition accepts no tombstone: after repairing it, the operator waits for the retry.
        most = MAX_FAILURE_DOUBLINGS if intent.refused else intent.retries
        due_ms = self._table.retry_ms(min(intent.retries, most))
        intent = replace(intent, due_ms=due_ms, retries=intent.retries + 1)
        if removal.subject.key is not None:
            # The values found may have no tombstone: a filter hid them, or the tombstone was removed.
            missed = tuple(
                place for place, end in verdict.claims.ends.items() if verdict.report.has_telling(place, end)
            )
            intent = replace(intent, missed=missed, phase=WRITING if missed else intent.phase)
        erasure = await self._certificates.issue(intent, removal, replace(verdict, state=NOT_CERTIFIED), due_ms)
        await self._table.save(intent, removal.key, intent.due_ms)
        return erasure

    async def _certify_key(self, intent: Intent, removal: Removal[Subject]) -> Erasure:
        verdict = await self._certificates.judge(intent, removal)
        if verdict.state == KEY_GONE:
            erasure = await self._certificates.issue(intent, removal, verdict)
            if intent.is_now:
                await self._wake_others(intent, removal)
            return erasure
        if removal.subject.key is not None:
            # A value has come back or cannot be read. Its removal needs the key, so the intent holds the key again.
            intent = replace(intent, phase=REMOVING)
        return await self._not_certified(intent, removal, verdict)

    async def _wake_others(self, intent: Intent, removal: Removal[Subject]) -> None:
        """Resume other erasures of the key now: they wait for tombstones that are gone, and their intents still hold the key."""
        digest = removal.subject.key_digest
        for one in await asyncio.to_thread(self._keys.waiting_for, removal.key, intent, digest):
            if one in self._table.due:
                self._table.schedule(one, self._evidence.env.clock.now_ms())
