"""Erase a key and certify that it is gone: `broker.erase(key, topics, reason=...)`.

    erasure = await broker.erase(b"customer-42", ["users"], reason="GDPR Art. 17")
    erasure.state, erasure.next_due_ms, erasure.certificate

An erasure has the following phases (`cleaner/erasure_state/intent.py`). If the broker stops, its next start resumes them:

    writing     the key is located in every partition; tombstones are written where a value has none yet
    removing    the partitions are compacted, files that await deletion are deleted, everything is scanned, and `values-gone` is
                certified; if the topics hold nothing of the key, `nothing-matched` is certified, and the erasure ends
    waiting     the erasure waits for the tombstones' horizon or a call to `erase_now`; then another round removes the tombstones
    closing     the intent drops the key, everything is scanned again, `key-gone` is certified, and the intent is removed

The intent is on disk before anything else happens, and each phase is recorded once its work is done (`erase_steps.py`). The claim
about a partition ends after the tombstone, or, if none was needed, where the log ended when the key was located. Records beyond
that offset are listed but not erased. A partition with unreadable data or a remaining value gets no claim. An erasure that cannot
be finished or certified is retried with growing pauses.

A topic name in a request refers to the topic that has this name at that time (`certification/scope.py`). If that topic is
deleted later, it gets no claim, and the certificate says so. Once all topics are deleted, the erasure ends.

One erasure runs at a time. Parts shared with redactions are in `jobs/job_queue.py`.
No error text and no log line contains a key or a value.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from diamant.broker import certificate_texts
from diamant.broker.erasure.certification.certificates import Certificates
from diamant.broker.erasure.certification.erasure_requests import EraseNowRequest, EraseRequest
from diamant.broker.erasure.certification.evidence import Evidence
from diamant.broker.erasure.certification.scope import Scope, claims_of
from diamant.broker.erasure.erase.erase_result import Erasure
from diamant.broker.erasure.erase.erase_steps import EraseSteps
from diamant.broker.erasure.erase.groups_behind import GroupsBehind
from diamant.broker.erasure.jobs.job_queue import JobQueue
from diamant.broker.erasure.jobs.job_table import JobTable
from diamant.broker.operation_errors import BadArgument, NotFound, NotPossible
from diamant.broker.operations.compactions.compactions import check_engine
from diamant.cleaner.erasure_state.intent import WAITING, WRITING, Intent, intent_files
from diamant.cleaner.erasure_state.pending_erasures import PendingErasures, PendingKeys, no_note
from diamant.cleaner.evidence.certificates.files import certificate_path
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.cleaner.evidence.search.record_search import Subject
from diamant.progress import Progress
from diamant.storage.certificate_states import LAST_STATES
from diamant.storage.uuid_text import uuid_to_text

if TYPE_CHECKING:
    from diamant.broker.erasure.jobs.job_group import JobGroup
    from diamant.broker.groups.coordinator.coordinator import GroupCoordinator
    from diamant.broker.node.cleaner import NodeCleaner
    from diamant.broker.node.lazy import Lazy
    from diamant.broker.node.node import Node
    from diamant.broker.operations.compactions.compactions import Compactions

MAX_TOPICS = 1_000


class Erasures:
    """All erasures of one broker. Created with the first erasure, or at a start that finds an unfinished one."""

    def __init__(
        self,
        node: Node,
        evidence: Evidence,
        kept: Certificates,
        cleaning: NodeCleaner,
        compactions: Compactions,
        groups: Lazy[GroupCoordinator],
        on_key: Callable[[bytes], object] = no_note,
    ) -> None:
        """`kept`: the stored certificates. `on_key` is called with the key of each erasure in progress."""
        self._evidence = evidence
        self._kept = kept
        files = intent_files(evidence.env, evidence.directory)
        self._keys = PendingKeys(files, on_key)
        self.table: JobTable[Intent] = JobTable(
            "erasure", files, node, on_known=self._keys.note, on_finished=self._keys.drop
        )
        self._groups = GroupsBehind(evidence.logs, groups, node.topics)
        steps = EraseSteps(node, evidence, self.table, cleaning, compactions, self._groups, self._keys)
        self.queue: JobQueue[Intent, Subject, Erasure] = JobQueue(steps, self.table, evidence, node)

    def pending(self, topic: str) -> PendingErasures | None:
        """Return the erasures in progress that may concern tombstones of a topic; None if there are none."""
        image = self._evidence.topics.image.topics.get(topic)
        return None if image is None else self._keys.of(self._evidence.keys.loaded, topic, uuid_to_text(image.topic_id))

    # -- a call ---------------------------------------------------------------------------------------------------------

    async def erase(
        self, request: EraseRequest, progress: Progress, job_id: str | None = None, group: JobGroup | None = None
    ) -> Erasure:
        """Erase a key; see `Broker.erase`. `job_id`: None for a new id. `group`: see `JobQueue.begin`."""
        certificate_texts.check_reason(request.reason, request.reference)
        certificate_texts.check_unsaid("reason and reference", [request.reason, request.reference], [request.key])
        check_engine(request.engine)
        self._check(request.key, request.topics)

        def intent(job_id: str, scope: Scope) -> Intent:
            return Intent(
                id=job_id,
                phase=WRITING,
                key=request.key,
                topics=tuple(sorted({*request.topics})),
                reason=request.reason,
                reference=request.reference,
                requested_ms=self._evidence.env.clock.now_ms(),
                key_bytes=len(request.key),
                is_now=request.now,
                is_confirmed=request.confirm_groups_behind,
                is_forced=request.force,
                engine=request.engine,
                scope=scope,
            )

        check = self._groups.check_known if request.now else None
        return await self.queue.begin(
            sorted({*request.topics}), intent, request.timeout, progress, check, job_id=job_id, group=group
        )

    async def erase_now(self, request: EraseNowRequest, progress: Progress) -> Erasure:
        """Resume an erasure now, before its tombstones' horizon; see `Broker.erase_now`."""
        erasure_id, is_confirmed = request.id, request.confirm_groups_behind
        with self.queue.call(is_new=False):
            progress.job_id = erasure_id
            if erasure_id not in await self.table.ids_on_disk():
                return await self._over_already(erasure_id)
            key = await self._evidence.keys.usable()
            if erasure_id not in self.table.due or erasure_id in self.queue.attempts.ending:
                raise NotPossible(
                    f"erasure {erasure_id} cannot continue: its intent cannot be read, or it is ending or being cancelled"
                )
            work = self._hasten(erasure_id, is_confirmed, key, progress)
            return await self.queue.run(erasure_id, request.timeout, work)

    def _check(self, key: bytes, topics: Sequence[str]) -> None:
        """Refuse topics that are not compacted, since a tombstone removes nothing there, and keys that are too long for them."""
        if not topics:
            raise BadArgument("topics is empty: name the topics from which to erase the key")
        if len(topics) > MAX_TOPICS:
            raise BadArgument(f"{len(topics)} topics are named, at most {MAX_TOPICS} are allowed")
        logs = [log for name in topics for log in self._evidence.user_topic(name).logs.values()]
        for log in logs:
            if not log.config.is_compacted:
                raise NotPossible(
                    f"{log.topic} is not compacted, so a tombstone removes nothing from it: set cleanup.policy=compact "
                    "(or compact,delete), wait for its retention, or redact the records"
                )
        most = max((log.config.max_message_bytes for log in logs), default=len(key))
        if len(key) > most:
            raise BadArgument(f"the key has {len(key)} bytes, but the topics allow at most {most} (max.message.bytes)")

    async def _hasten(self, erasure_id: str, is_confirmed: bool, key: SigningKey, progress: Progress) -> Erasure:
        await self._groups.check_known(progress)
        async with self.queue.attempts.locked(erasure_id):
            try:
                intent = await asyncio.to_thread(self.table.files.read, erasure_id, key)
            except FileNotFoundError:
                return await self._over_already(erasure_id)
            is_confirmed = is_confirmed or (intent.is_now and intent.is_confirmed)
            intent = replace(intent, is_now=True, is_confirmed=is_confirmed)
            if intent.phase == WAITING:
                affected = claims_of(intent, self._evidence.topics).affected
                behind = {} if intent.is_confirmed else await self._groups.behind(intent, affected)
                if behind:
                    return await self._now_refused(intent, behind)
                intent = replace(intent, due_ms=self._evidence.env.clock.now_ms())
            # If the broker stops from here on, the erasure resumes in its current phase.
            await self.table.save(intent, key, intent.due_ms)
            return await self.queue.carry_out(intent, key, progress)

    async def _now_refused(self, intent: Intent, behind: dict[str, list[str]]) -> Erasure:
        """Return the result for an erasure that keeps waiting because groups would miss its tombstones."""
        known = await self._as_certified(intent.id)
        return replace(known, next_due_ms=intent.due_ms, groups_behind=behind, is_now_refused=True)

    async def _over_already(self, erasure_id: str) -> Erasure:
        """Return the result of an erasure that has ended with everything certified. Raises NotFound if it has not."""
        try:
            found = await self._as_certified(erasure_id)
            if found.state in LAST_STATES:
                return found
        except NotFound:
            pass  # An erasure that ended without a certificate gets the same error as a missing one.
        raise NotFound(
            f"there is no erasure {erasure_id[:64]!r} in progress: it has ended, or the id is wrong. The list of certificates "
            "shows the unfinished ones"
        )

    async def _as_certified(self, erasure_id: str) -> Erasure:
        found = await self._kept.last(erasure_id)
        path = certificate_path(self._evidence.directory, erasure_id, found["state"])
        return Erasure(
            erasure_id, found["state"], found, path, (await self._evidence.keys.usable()).public_pem, None, {}
        )
